"""What does float32 cost? 1,000 points in ten clusters of width 10⁻³, noise variance 10⁻⁴.

    python benchmarks/precision.py            writes benchmarks/results/precision.csv
    python benchmarks/precision.py --page     writes the table into docs/results.md

A hard case: every cluster's covariance is nearly singular. Errors are against float64, of the mean
and the standard deviation, at 200 points all over the square.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from _measure import measured_with, read_csv, table_in_page, write_csv

import distgp
from distgp.data import Shard
from distgp.experts import ExactExpert, Parameters, SparseExpert, inducing

RESULTS = Path(__file__).parent / "results" / "precision.csv"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"


def clustered() -> tuple[Shard, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    wide = torch.float64
    centres = torch.rand(10, 2, generator=generator, dtype=wide).repeat(100, 1) * 2 - 1
    X = centres + 1e-3 * torch.randn(1000, 2, generator=generator, dtype=wide)
    y = torch.sin(3 * X.sum(-1)) + 1e-2 * torch.randn(1000, generator=generator, dtype=wide)
    return Shard.of(X, y), torch.rand(200, 2, generator=generator, dtype=wide) * 2 - 1


def measure() -> None:
    shard, X = clustered()
    kernel, noise = 1.0 * distgp.RBF(0.5), 1e-4
    Z = inducing.greedy(shard.X, kernel, noise, seed=0)
    theta = Parameters.of(kernel, noise, Z)
    narrow = torch.float32
    rows: list[dict[str, object]] = []
    for expert in (ExactExpert(), SparseExpert()):
        wide = expert.condition(theta, shard).predict(X)
        posterior = expert.condition(theta.to(dtype=narrow), shard.to(dtype=narrow))
        short = posterior.predict(X.to(narrow))
        label = "exact" if expert.name == "exact" else f"sparse, m = {len(Z)}"
        row: dict[str, object] = {"expert": label}
        for name, error in (("mean", short.mean - wide.mean), ("std", short.std - wide.std)):
            row[f"{name}_max"] = f"{float(error.abs().max()):.1e}"
            row[f"{name}_rms"] = f"{float(error.square().mean().sqrt()):.1e}"
        rows.append(row)
        print(row)
    write_csv(rows, RESULTS, "cpu")


def page() -> None:
    """Write the table into the page, between its marks."""
    rows = read_csv(RESULTS)
    lines = [
        "| experts | error of means, at most | of standard deviations |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        cells = [f"{float(row[name]):.7f}".rstrip("0") for name in ("mean_max", "std_max")]
        lines.append(f"| {' | '.join([row['expert'], *cells])} |")
    plain = [row | {"device": ""} for row in rows]  # no times, so that threads do not matter
    table_in_page(PAGE, "precision", [*lines, "", measured_with(plain)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What does float32 cost?")
    parser.add_argument("--page", action="store_true", help="write the table and measure nothing")
    page() if parser.parse_args().page else measure()
