"""How close does each aggregator come to the full GP, and what does it cost?

The paper's synthetic prediction task: a draw from the prior of an RBF kernel, σ² = 0.25, σ_f² = 1,
hyperparameters known. d = 2: n rows in [−1, 1]², lengthscale 0.3, test grid of 50 × 50 on
[−1.2, 1.2]², M = 2 … 100. d = 4, 6, 10: 4,000 rows, lengthscales 0.5, 1, 2, 1,000 test points in
[−1.1, 1.1]^d, M = 20. Exact experts, and sparse ones with m = 128 shared random inducing inputs.

RMSE and NLPD are of the latent truth; w2 is the 2-Wasserstein distance to the full GP of the same
kind (the full sparse GP for sparse experts), w2_exact that to the exact full GP. Seconds: `combine`
once (the weights), `mean` and `predict` (mean and variance) at all test points, medians of three.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from _measure import read_csv, write_csv
from torch import Tensor

import distgp
from distgp import metrics
from distgp.aggregation import NPAE, Aggregator, Ensemble, GPoE, Opt, Pooled, TwoLevel
from distgp.experts import ExactExpert, Parameters, Prediction, inducing
from experiments.draws import NOISE, prior_problem, random_shards, rbf
from experiments.study import seconds
from experiments.synthetic import MANY, METHODS

LENGTHSCALES = {2: 0.3, 4: 0.5, 6: 1.0, 10: 2.0}
Row = dict[str, object]


def aggregators(kind: str) -> list[tuple[str, Aggregator]]:
    """Every aggregator with its defaults, and the other variances of opt and two-level."""
    listed = [(name, distgp.AGGREGATORS[name]()) for name in METHODS["exact"]]
    listed.insert(2, ("gpoe/normalised", GPoE("normalised")))
    listed += [
        ("opt/weighted", Opt(variance="weighted")),
        ("opt/central", Opt(variance="central")),
        ("opt/exact", Opt(cross="exact")),
        ("two-level/nested", TwoLevel(variance="nested")),
    ]
    return [*listed, ("pooled", Pooled())] if kind == "sparse" else listed


def timed(call: Callable[[], object], device: str) -> float:
    return seconds({"call": call}, device, repeats=3)["call"]


def study(n: int, d: int, Ms: tuple[int, ...], kind: str, seed: int, device: str) -> list[Row]:
    data, X, f = prior_problem(n, seed, device, d=d, lengthscale=LENGTHSCALES[d])
    kernel = rbf(device, LENGTHSCALES[d])
    Z = inducing.random_subset(data.X, 128, seed=0) if kind == "sparse" else None
    theta, expert = Parameters.of(kernel, NOISE, Z), distgp.EXPERTS[kind]()
    start = time.perf_counter()
    full = expert.condition(theta, data).predict(X)
    taken = time.perf_counter() - start
    base: Row = {"seed": seed, "d": d, "n": n, "N": len(X), "expert": kind}
    exact = full
    if kind == "sparse":
        exact = ExactExpert().condition(Parameters.of(kernel, NOISE), data).predict(X)
    rows = [
        base | {"M": 1, "aggregator": "full", "predict_s": taken} | scores(f, full, full, exact)
    ]
    for M in Ms:
        ensemble = Ensemble.condition(expert, theta, random_shards(data, M, seed))
        for name, aggregator in aggregators(kind):
            row: Row = base | {"M": M, "aggregator": name}
            rows.append(row | measure(aggregator, ensemble, X, f, full, exact, device))
            print(line(rows[-1]), flush=True)
    return rows


def measure(
    aggregator: Aggregator,
    ensemble: Ensemble,
    X: Tensor,
    f: Tensor,
    full: Prediction,
    exact: Prediction,
    device: str,
) -> Row:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        combined = aggregator.combine(ensemble)
        out = combined.predict(ensemble, X)
        warned = " ".join(sorted({warning.category.__name__ for warning in caught}))
        return scores(f, out, full, exact) | {
            "warnings": warned,
            "weight_sum": combined.weight_sum,
            "weight_norm": combined.weight_norm,
            "combine_s": timed(lambda: aggregator.combine(ensemble), device),
            "mean_s": timed(lambda: combined.mean(ensemble, X), device),
            "predict_s": timed(lambda: combined.predict(ensemble, X), device),
        }


def scores(f: Tensor, out: Prediction, full: Prediction, exact: Prediction) -> Row:
    return {
        "rmse": metrics.rmse(f, out.mean),
        "nlpd": metrics.nlpd(f, out.mean, out.variance),
        "w2": metrics.wasserstein2(out.mean, out.variance, full.mean, full.variance),
        "w2_exact": metrics.wasserstein2(out.mean, out.variance, exact.mean, exact.variance),
        "coverage": metrics.coverage(f, out.mean, out.variance, 0.9),
    }


TABLES = ("rmse", "w2", "w2_exact", "nlpd", "coverage")
COLUMNS = ("rmse", "nlpd", "w2", "coverage", "weight_norm", "combine_s", "mean_s", "predict_s")


def line(row: Row) -> str:
    head = f"{row['d']:>3} {row['expert']:>7} {row['M']:>4} {row['aggregator']:18s}"
    cells = (f"{row[c]:10.4g}" if row.get(c) is not None else f"{'':10s}" for c in COLUMNS)
    return head + " ".join(cells)


def verdicts(rows: list[Row]) -> list[tuple[bool, str]]:
    """What the study is to show, and whether it does."""
    mean: dict[tuple[object, ...], dict[str, float]] = {}
    keyed = sorted(rows, key=lambda r: str(_key(r)))
    for key, group in itertools.groupby(keyed, _key):
        values = list(group)
        mean[key] = {c: statistics.fmean(_number(v.get(c)) for v in values) for c in COLUMNS}
    exact = [key for key in mean if key[1] == "exact" and isinstance(key[2], int) and key[2] >= 4]
    cases = sorted({key[:3] for key in exact}, key=str)

    def nearest(case: tuple[object, ...]) -> bool:
        others = [
            value["w2"]
            for key, value in mean.items()
            if key[:3] == case and not str(key[3]).startswith(("two-level", "full"))
        ]
        return mean[(*case, "two-level")]["w2"] <= min(others)

    lead = min(
        mean[(*c, "grbcm")]["w2"] / mean[(*c, "two-level")]["w2"]
        for c in cases
        if isinstance(c[2], int) and c[2] >= 20
    )
    ratios = {
        kind: [
            mean[(*key[:3], "opt")]["predict_s"] / value["predict_s"]
            for key, value in mean.items()
            if key[1] == kind and key[3] == "poe"
        ]
        for kind in ("exact", "sparse")
    }
    best = all(nearest(case) for case in cases)
    return [
        (best, "two-level nearest to the full GP (W2) in every exact row with M ≥ 4"),
        (lead >= 2, f"two-level at least {lead:.2f} × nearer than grBCM at M ≥ 20"),
        *(
            (
                kind == "sparse" or statistics.median(values) <= 1.1,
                f"opt's prediction against PoE's, {kind} experts: "
                f"median {statistics.median(values):.2f}, largest {max(values):.2f}",
            )
            for kind, values in ratios.items()
        ),
    ]


def print_tables(path: Path) -> None:
    """Means over seeds of a table written before, as Markdown."""
    rows = read_csv(path)
    cells: dict[tuple[str, ...], list[float]] = {}
    for row, score in itertools.product(rows, TABLES):
        key = (row["expert"], score, row["aggregator"], row["d"], row["M"])
        cells.setdefault(key, []).append(float(row[score]))
    cases = list(dict.fromkeys((row["d"], row["M"]) for row in rows if row["M"] != "1"))
    for kind, score in itertools.product(("exact", "sparse"), TABLES):
        print(f"\n{score}, {kind} experts, means over {len({r['seed'] for r in rows})} seeds\n")
        print("| | " + " | ".join(f"d = {d}, M = {M}" for d, M in cases) + " |")
        print("| --- |" + " --- |" * len(cases))
        for name in dict.fromkeys(row["aggregator"] for row in rows if row["expert"] == kind):
            values = [
                cells.get((kind, score, name, d, "1" if name == "full" else M)) for d, M in cases
            ]
            shown = (f"{statistics.fmean(v):.3g}" if v else "" for v in values)
            print(f"| {name} | " + " | ".join(shown) + " |")


def _key(row: Row) -> tuple[object, ...]:
    return row["d"], row["expert"], row["M"], row["aggregator"]


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def npae_rate(n: int, M: int, device: str) -> str:
    """The share of the machine's matrix-product rate that NPAE reaches."""
    data, X, _ = prior_problem(n, 0, device)
    theta, shards = Parameters.of(rbf(device), NOISE), random_shards(data, M, 0)
    ensemble = Ensemble.condition(ExactExpert(), theta, shards)
    combined = NPAE().combine(ensemble)
    taken = timed(lambda: combined.predict(ensemble, X), device)
    N, each = len(X), n / M
    # k(P_i, P_j)a_j for i < j; L⁻¹k and L⁻ᵀ of that for every expert.
    flops = N * (n * n * (1 - 1 / M) + 2 * n * each)
    A = torch.randn(4096, 4096, dtype=torch.float64, device=device)
    peak = 2 * 4096**3 / timed(lambda: A @ A, device)
    return (
        f"NPAE, n = {n:,}, M = {M}, N = {N:,}: {taken:.2f} s, {flops / taken / 1e9:.0f} GFLOP/s of "
        f"{peak / 1e9:.0f} in a plain product: {flops / taken / peak:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=10_000, help="rows of the task in d = 2")
    parser.add_argument("--experts", type=int, nargs="+", default=MANY, help="M, in d = 2")
    parser.add_argument("--quick", action="store_true", help="2,000 rows, M = 4, 20, 40")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/aggregation.csv"))
    parser.add_argument("--tables", type=Path, metavar="CSV", help="print an earlier run's means")
    arguments = parser.parse_args()
    if arguments.tables:
        print_tables(arguments.tables)
        return
    n, Ms = (2000, (4, 20, 40)) if arguments.quick else (arguments.rows, tuple(arguments.experts))
    heads = (f"{column:>10s}" for column in COLUMNS)
    print(f"{'d':>3} {'expert':>7} {'M':>4} {'aggregator':18s}" + " ".join(heads))
    rows: list[Row] = []
    for seed in range(arguments.seeds):
        for kind in ("exact", "sparse"):
            rows += study(n, 2, Ms, kind, seed, arguments.device)
            for d in () if arguments.quick else (4, 6, 10):
                rows += study(4000, d, (20,), kind, seed, arguments.device)
    write_csv(rows, arguments.output, arguments.device)
    print(npae_rate(n, 20, arguments.device))
    results = verdicts(rows)
    for good, what in results:
        print(("yes  " if good else "NO   ") + what)
    print(f"table: {arguments.output}")
    sys.exit(not all(good for good, _ in results))


if __name__ == "__main__":
    main()
