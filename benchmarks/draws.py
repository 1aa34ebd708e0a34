"""Joint draws without a covariance between points: seconds, and how near that is to the floor.

Known θ: a Matérn-5/2 kernel on [−1, 1]^d. One exact expert (Matheron's rule) and nearest rows (one point
after another), at 10,000 points; `--points 100000` takes a minute. The floor of Matheron's rule are its
cosines, as fast as one vectorised function computes them; that of nearest rows is one normal number
for each point and draw.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from _measure import peak_memory, problem

from distgp import Matern52
from distgp.aggregation import Aggregator, Ensemble, Nearest, PoE
from distgp.experts import ExactExpert, Expert, NearestExpert, Parameters
from distgp.kernels.prior import BLOCK, FEATURES

NEIGHBOURS = 32


def seconds(call: Callable[[], object]) -> float:
    """Time a call, of which a GPU has finished its part."""
    start = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def cosines(count: float, device: str) -> float:
    """Seconds for so many cosines, measured on a few of the blocks."""
    block = torch.randn(BLOCK[device], dtype=torch.float64, device=device)
    repeats, out = 50, torch.cos(block)
    taken = seconds(lambda: [torch.cos(block, out=out) for _ in range(repeats)])
    return count * taken / (repeats * block.numel())


def normals(count: float) -> float:
    """Seconds for so many normal numbers, measured on some of them."""
    rng, some = np.random.default_rng(0), 2**22
    return count * seconds(lambda: rng.standard_normal(some)) / some


def timed(
    expert: Expert, aggregator: Aggregator, n: int, X: torch.Tensor, size: int
) -> tuple[float, torch.Tensor]:
    """Seconds for the draws, and the draws."""
    d = X.shape[-1]
    theta = Parameters.of(1.0 * Matern52([0.5] * d), 0.01).to(X.device)
    rows = problem(n, d).to(X.device)
    ensemble = Ensemble.condition(expert, theta, [rows])
    combined = aggregator.combine(ensemble)
    combined.draws(ensemble, X[:100], 10, 0)  # what is computed once
    found: list[torch.Tensor] = []

    def call() -> None:
        drawn = combined.draws(ensemble, X, size, 0)
        assert drawn is not None
        found.append(drawn)

    return seconds(call), found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--exact-rows", type=int, default=2_000)
    parser.add_argument("--nearest-rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    N, size, device = options.points, options.draws, options.device
    X = problem(N, options.columns, seed=1).X.to(device)
    floors = {
        "exact": cosines((N + options.exact_rows) * FEATURES * size, device),
        "nearest": normals(N * size),
    }
    cases: dict[str, tuple[Expert, Aggregator, int]] = {
        "exact": (ExactExpert(), PoE(), options.exact_rows),
        "nearest": (NearestExpert(NEIGHBOURS, NEIGHBOURS), Nearest(), options.nearest_rows),
    }
    print(f"{size:,} draws at {N:,} points, {options.columns} columns, {device}")
    for name, (expert, aggregator, n) in cases.items():
        taken, drawn = timed(expert, aggregator, n, X, size)
        assert bool(torch.isfinite(drawn).all())
        print(
            f"{name}, {n:,} rows: {taken:.2f} s, {taken / floors[name]:.1f} times its floor of "
            f"{floors[name]:.2f} s; the largest memory so far is {peak_memory() / 2**30:.1f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
