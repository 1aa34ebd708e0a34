"""What does a cluster cost, and what does it carry?

The demo's data on both engines, in turns: seconds per round of pooled training (two threads in one
process against two Ray workers of one thread each), and the bytes that each round sends and brings.
Then fit and prediction against M, and the costs per row and round.

    python benchmarks/engines.py           writes benchmarks/results/engines.csv
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from _measure import write_csv

import distgp
from distgp.cli.demonstration import make_data
from distgp.data import Shard, place, placed
from distgp.engines import Engine, LocalEngine, Placement
from distgp.engines.ray import RayEngine
from distgp.experts import Parameters, SparseExpert
from distgp.training import PooledBound, TrainingResult, train
from experiments.draws import random_shards
from experiments.study import seconds

RESULTS = Path(__file__).parent / "results" / "engines.csv"


def placed_on(engine: Engine, n: int, M: int) -> Placement[Shard]:
    return place(engine, random_shards(Shard.of(*make_data(n, seed=0)), M, 0))


def theta(m: int) -> Parameters:
    Z = torch.rand(m, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Parameters.of(3.0 * distgp.RBF([0.06, 0.14]), 0.09, Z)


def rounds(placement: Placement[Shard], m: int, count: int) -> TrainingResult:
    algorithm = PooledBound(n_iter=count)
    return train(algorithm, SparseExpert(), theta(m), placement, fixed=["inducing"], tolerance=0.0)


def overhead(local: Engine, cluster: Engine, sizes: list[int], m: int, count: int) -> list[dict]:
    print(
        f"{'rows':>10s}{'local, ms per round':>20s}{'ray':>10s}{'ratio':>8s}{'bytes per round':>16s}"
    )
    found = []
    for n in sizes:
        here, there = placed_on(local, n, 16), placed_on(cluster, n, 16)
        cluster.traffic.sent.clear()
        cluster.traffic.received.clear()
        calls = {
            "local": partial(rounds, here, m, count),
            "ray": partial(rounds, there, m, count),
        }
        taken = seconds(calls, repeats=3)
        carried = sum(cluster.traffic.total().values()) / (4 * count)
        ms = {name: 1e3 * value / count for name, value in taken.items()}
        ratio = ms["ray"] / ms["local"]
        print(f"{n:10,d}{ms['local']:20.1f}{ms['ray']:10.1f}{ratio:8.2f}{carried:16,.0f}")
        found.append({"table": "overhead", "n": n, "M": 16, "m": m, "local_ms": ms["local"],
                      "ray_ms": ms["ray"], "ratio": ratio, "bytes_per_round": carried})  # fmt: skip
    return found


def against_experts(cluster: Engine, n: int, counts: list[int]) -> list[dict]:
    X, y = make_data(n, seed=0)
    print(f"\n{'M':>6s}{'fit, s':>10s}{'predict, s':>12s}  bytes by kind")
    found = []
    for M in counts:
        cluster.traffic.sent.clear()
        cluster.traffic.received.clear()
        model = distgp.DistributedGPRegressor(
            expert="sparse", n_experts=M, n_inducing=128, kernel="rbf", n_iter=20, engine=cluster
        )
        begin = time.perf_counter()
        model.fit(X, y)
        fit = time.perf_counter() - begin
        begin = time.perf_counter()
        model.predict(X[:2000], return_std=True, aggregation="rbcm")
        predict = time.perf_counter() - begin
        kinds = cluster.traffic.total()
        print(f"{M:6d}{fit:10.2f}{predict:12.2f}  {kinds}")
        found.append({"table": "experts", "n": n, "M": M, "m": 128, "fit_s": fit,
                      "predict_s": predict, **{f"bytes_{k}": v for k, v in kinds.items()}})  # fmt: skip
    return found


def costs(sizes: list[int]) -> list[dict]:
    n, found = 20_000, []
    shard = Shard.of(*make_data(n, seed=0))
    torch.set_num_threads(1)
    print(
        f"\n{'m':>6s}{'condition, us per row and core':>32s}{'gradient, us per row and core':>32s}"
    )
    for m in sizes:
        calls = {
            "condition": partial(SparseExpert().condition, theta(m), shard),
            "train": partial(rounds, placed([shard]), m, 2),
        }
        per_row = {name: 1e6 * value / n for name, value in seconds(calls, repeats=3).items()}
        print(f"{m:6d}{per_row['condition']:32.2f}{per_row['train']:32.2f}")
        found.append({"table": "costs", "n": n, "m": m, "condition_us": per_row["condition"],
                      "gradient_us": per_row["train"]})  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What a cluster costs, and what it carries")
    parser.add_argument("--quick", action="store_true", help="few rows, for a look")
    options = parser.parse_args()
    quick = options.quick
    local = LocalEngine()
    with RayEngine(workers=2) as cluster:
        sizes = [2_000] if quick else [5_000, 10_000, 20_000, 50_000, 120_000]
        found = overhead(local, cluster, sizes, 256, 4 if quick else 6)
        found += against_experts(
            cluster, 5_000 if quick else 60_000, [2, 8] if quick else [2, 8, 64, 256, 1000]
        )
    found += costs([64] if quick else [128, 256, 512])
    if not quick:
        write_csv(found, RESULTS, "cpu")


if __name__ == "__main__":
    main()
