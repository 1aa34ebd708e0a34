"""What does float32 cost? 1,000 points in ten clusters of width 10⁻³, noise variance 10⁻⁴.

A hard case: every cluster's covariance is nearly singular. Errors are against float64, of the mean
and the standard deviation, at 200 points all over the square.
"""

from __future__ import annotations

import torch

import distgp
from distgp.data import Shard
from distgp.experts import ExactExpert, Parameters, SparseExpert, inducing


def clustered() -> tuple[Shard, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    wide = torch.float64
    centres = torch.rand(10, 2, generator=generator, dtype=wide).repeat(100, 1) * 2 - 1
    X = centres + 1e-3 * torch.randn(1000, 2, generator=generator, dtype=wide)
    y = torch.sin(3 * X.sum(-1)) + 1e-2 * torch.randn(1000, generator=generator, dtype=wide)
    return Shard.of(X, y), torch.rand(200, 2, generator=generator, dtype=wide) * 2 - 1


def main() -> None:
    shard, X = clustered()
    kernel, noise = 1.0 * distgp.RBF(0.5), 1e-4
    Z = inducing.greedy(shard.X, kernel, noise, seed=0)
    theta = Parameters.of(kernel, noise, Z)
    narrow = torch.float32
    print(f"{'expert':16s} {'mean max':>9s} {'mean rms':>9s} {'std max':>9s} {'std rms':>9s}")
    for expert in (ExactExpert(), SparseExpert()):
        wide = expert.condition(theta, shard).predict(X)
        posterior = expert.condition(theta.to(dtype=narrow), shard.to(dtype=narrow))
        short = posterior.predict(X.to(narrow))
        cells = []
        for error in (short.mean - wide.mean, short.std - wide.std):
            cells += [float(error.abs().max()), float(error.square().mean().sqrt())]
        label = "exact" if expert.name == "exact" else f"sparse, m = {len(Z)}"
        print(f"{label:16s} " + " ".join(f"{cell:9.1e}" for cell in cells))


if __name__ == "__main__":
    main()
