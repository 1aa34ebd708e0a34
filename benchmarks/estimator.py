"""What do the automatic choices cost, and what do they reach?

First table: the rules of `distgp.plan`, where nothing is measured, from 500 rows to `--largest`: experts
taken, seconds to fit and per predicted row, RMSE in units of the noise (1 is the best possible), coverage
of 90 % intervals.
Second: exact experts of different sizes on the same rows, and sparse ones beside them: the costs behind
the rule.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _measure import write_csv

import distgp
from distgp import metrics
from distgp.aggregation import CentralWarning
from distgp.plan import expert_for

NOISE = 0.2
Problem = Callable[[int, int], tuple[np.ndarray, np.ndarray]]


def smooth(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Friedman's function, scaled, with a sixth column that says nothing."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 6))
    f = np.sin(np.pi * X[:, 0] * X[:, 1]) * 2 + 4 * (X[:, 2] - 0.5) ** 2 + 2 * X[:, 3] + X[:, 4]
    return X, f + NOISE * rng.normal(size=n)


def rough(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A draw of a GP (RBF, lengthscale 0.25 on [−1, 1]⁴, by 200 random waves): never enough rows."""
    waves = np.random.default_rng(3)
    W, phase = 4.0 * waves.normal(size=(4, 200)), waves.uniform(0, 2 * np.pi, 200)
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 4))
    return X, np.sqrt(2 / 200) * np.cos(X @ W + phase).sum(1) + NOISE * rng.normal(size=n)


def measure(problem: Problem, n: int, **options) -> dict[str, object]:
    (X, y), test = problem(n, 0), problem(5_000, 1)
    begin = time.perf_counter()
    model = distgp.DistributedGPRegressor(**options).fit(X, y)
    fit = time.perf_counter() - begin
    begin = time.perf_counter()
    mean, std = model.predict(test[0], return_std=True)
    predict = time.perf_counter() - begin
    return {
        "function": problem.__name__,
        "n": n,
        "expert": "exact" if model.n_inducing_ is None else "sparse",
        "M": model.n_experts_,
        "m": model.n_inducing_ or 0,
        "aggregation": model.aggregation_.name,
        "fit_s": fit,
        "predict_us_per_row": predict / len(mean) * 1e6,
        "rmse_over_noise": metrics.rmse(test[1], mean) / NOISE,
        "coverage": metrics.coverage(test[1], mean, std**2),
    }


def show(rows: list[dict[str, object]]) -> None:
    print("".join(f"{name:>20s}" for name in rows[0]))
    for row in rows:
        print(
            "".join(f"{v:20.4g}" if isinstance(v, float) else f"{v!s:>20s}" for v in row.values())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="few rows, for a look")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", CentralWarning)
    sizes = [500, 2_000, 10_000, 20_000, 50_000, 200_000, 1_000_000, 10_000_000]
    on = {"device": arguments.device}
    largest = 2_000 if arguments.quick else arguments.largest
    rules = {n: {"expert": expert_for(n)} | on for n in sizes if n <= largest}
    defaults = [measure(smooth, n, **options) for n, options in rules.items()]
    print("rules")
    show(defaults)
    n = 2_000 if arguments.quick else 8_000
    shards = [250, 500] if arguments.quick else [250, 500, 1000, 2000]
    by_size = []
    for problem in (smooth, rough):
        by_size += [measure(problem, n, expert="exact", n_experts=n // s, **on) for s in shards]
        by_size.append(measure(problem, n, expert="sparse", **on))
    print("\nexact experts of different sizes, and sparse ones")
    show(by_size)
    if not arguments.quick:
        rows = [{"table": "rules"} | row for row in defaults]
        rows += [{"table": "shard size"} | row for row in by_size]
        name = "estimator.csv" if arguments.device == "cpu" else f"estimator-{arguments.device}.csv"
        write_csv(rows, arguments.out / name, arguments.device)


if __name__ == "__main__":
    main()
