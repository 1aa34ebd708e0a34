"""What does a GPU do in a second? Sums over a billion rows, a step of FACT, weights of a thousand experts.

    python benchmarks/gpu.py            on a machine with a GPU; writes benchmarks/results/gpu.csv
    python benchmarks/gpu.py --page     writes the table into docs/speed.md

Sums: AAᵀ, Ay, yᵀy and Σk(x, x), d = 8, m = 128, as a sparse expert is conditioned, of 10⁹ rows: the
time of 2²³ rows on the GPU, scaled up; beside it the two matrix products alone, of the same sizes, and
how far AAᵀ is from sums whose V is found by a triangular solve. FACT: objective and gradient of 1,000
exact experts of 1,000 rows, d = 8. Weights: `combine` of these experts by opt, by opt from projections of
the means on central inputs, and by two-level, once each; the loss is that of the latent RMSE at 2,000
points against opt's.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from _measure import measured_with, read_csv, table_in_page, write_csv
from limits import step
from torch import Tensor

import distgp
from distgp import metrics
from distgp.aggregation import Aggregator, Combined, Ensemble, Opt, TwoLevel
from distgp.data import Shard
from distgp.experts import ExactExpert, Parameters
from distgp.experts.sums import inducing_factor, row_sums
from distgp.kernels import Kernel
from experiments.study import seconds

RESULTS = Path(__file__).parent / "results" / "gpu.csv"
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
Row = dict[str, object]
D, M, SHARD, INDUCING = 8, 1_000, 1_000, 128
BILLION = 10**9


def data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs in [−1, 1]⁸ and a smooth function of them."""
    g = torch.Generator("cuda").manual_seed(seed)
    X = torch.rand(n, D, generator=g, dtype=torch.float64, device="cuda") * 2 - 1
    return X, torch.sin(3 * X.sum(-1) / D**0.5)


def sums() -> Iterator[Row]:
    X, y = data(2**23)
    rows = Shard.of(X, y)
    times = BILLION / len(X)
    A = torch.rand(INDUCING, 2**19, dtype=torch.float64, device="cuda")
    W = torch.rand(INDUCING, INDUCING, dtype=torch.float64, device="cuda")
    plain = seconds({"products": lambda: (W @ A) @ A.mT}, "cuda", repeats=5)["products"]
    yield {"what": "the two matrix products alone", "s": plain * BILLION / 2**19}
    cases: dict[str, Kernel] = {
        "RBF, ℓ = 1": distgp.RBF([1.0] * D),
        "Matérn-5/2, ℓ = 1": distgp.Matern52([1.0] * D),
        "RBF, ℓ = 30": distgp.RBF([30.0] * D),
    }
    for name, base in cases.items():
        theta = Parameters.of((1.3 * base).to("cuda"), 0.05, X[:INDUCING].clone())
        with torch.no_grad():
            Lu = inducing_factor(theta)
            taken = seconds({"s": lambda t=theta, L=Lu: row_sums(t, L, rows)}, "cuda", repeats=3)
            some = rows.take(slice(0, 2**18))
            found = row_sums(theta, Lu, some).AAt
            K = theta.kernel(some.X, theta.inducing)
            V = torch.linalg.solve_triangular(Lu, K.mT, upper=False)
            error = float((found - V @ V.mT / theta.noise).norm() / found.norm())
        total = taken["s"] * times
        yield {
            "what": f"sums over 10⁹ rows, {name}",
            "s": total,
            "million_rows_per_s": 1e-6 * BILLION / total,
            "error": error,
        }


def experts() -> Iterator[Row]:
    X, f = data(M * SHARD)
    g = torch.Generator("cuda").manual_seed(1)
    y = f + 0.2 * torch.randn(len(f), generator=g, dtype=torch.float64, device="cuda")
    theta = Parameters.of((1.0 * distgp.RBF([1.5] * D)).to("cuda"), 0.04)
    shards = [Shard.of(a, b) for a, b in zip(X.split(SHARD), y.split(SHARD), strict=True)]
    run = step(ExactExpert(), theta, shards)
    taken = seconds({"s": run}, "cuda", repeats=3)["s"]
    yield {"what": f"FACT step, {M:,} exact experts of {SHARD:,} rows", "s": taken}
    ensemble = Ensemble.condition(ExactExpert(), theta, shards)
    points, truth = data(2_000, seed=2)
    ways: dict[str, Aggregator] = {
        "opt": Opt(variance="weighted"),
        "Opt(n_basis=512)": Opt(variance="weighted", n_basis=512),
        "Opt(n_basis=2048)": Opt(variance="weighted", n_basis=2048),
        "two-level": TwoLevel(),
    }
    best = None
    for name, way in ways.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seconds_taken, combined = once(way, ensemble)
            error = metrics.rmse(truth, combined.mean(ensemble, points))
        best = error if best is None else best
        yield {
            "what": f"weights of {M:,} experts, {name}",
            "s": seconds_taken,
            "rmse": error,
            "loss": error / best - 1.0,
        }


def once(way: Aggregator, ensemble: Ensemble) -> tuple[float, Combined]:
    """The seconds that `combine` takes, and what it returns."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    combined = way.combine(ensemble)
    stop.record()
    torch.cuda.synchronize()
    return 1e-3 * start.elapsed_time(stop), combined


def page() -> None:
    rows = read_csv(RESULTS)
    named = lambda row: "weights" if row["what"].startswith("weights") else ""  # noqa: E731
    lines = [measured_with(rows, named), "", "| step | seconds | RMSE |", "| --- | --- | --- |"]
    for row in rows:
        error = f"{float(row['rmse']):.4f}" if row.get("rmse") else ""
        lines.append(f"| {row['what']} | {float(row['s']):.3g} | {error} |")
    table_in_page(PAGE, "gpu", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What does a GPU do in a second?")
    parser.add_argument("--page", action="store_true", help="write the table and measure nothing")
    if parser.parse_args().page:
        page()
        return
    rows: list[Row] = []
    for part in (sums(), experts()):
        for row in part:
            rows.append({**row, "gpu": torch.cuda.get_device_name()})
            print(row, flush=True)
            write_csv(rows, RESULTS, "cuda")


if __name__ == "__main__":
    main()
