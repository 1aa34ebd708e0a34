"""What does a cluster cost, and what does it carry?

The demo's data on both engines, in turns: seconds a round of pooled training (two threads in one
process against two Ray workers of one thread each), and the bytes that each round sends and brings.
Then the whole way against M, and the costs a row and a round from which docs/engines.md works out a
large cluster.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from _measure import medians, write_csv

import distgp
from distgp import demo
from distgp.engines import Engine, LocalEngine
from distgp.engines.ray import RayEngine
from distgp.sources import place, with_target
from distgp.workers import Workers


def workers_on(engine: Engine, n: int, M: int) -> Workers:
    X, y = demo.make_data(n, seed=0)
    labels = distgp.RandomPartition().assign(X, M, 0)
    rows = torch.arange(n)
    shards = distgp.split(distgp.Shard(torch.as_tensor(X), torch.zeros(n).double(), rows), labels)
    return with_target(place(engine, shards, torch.as_tensor(y)[:, None]), 0)


def theta(m: int) -> distgp.Parameters:
    Z = torch.rand(m, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return distgp.Parameters.of(3.0 * distgp.RBF([0.06, 0.14]), 0.09, Z)


def rounds(workers: Workers, m: int, count: int) -> distgp.TrainingResult:
    algorithm = distgp.PooledBound(n_iter=count)
    return distgp.train(
        algorithm, distgp.SparseExpert(), theta(m), workers, fixed=["inducing"], tolerance=0.0
    )


def overhead(local: Engine, cluster: Engine, sizes: list[int], m: int, count: int) -> list[dict]:
    print(f"{'rows':>10s}{'local, ms a round':>20s}{'ray':>10s}{'ratio':>8s}{'bytes a round':>16s}")
    found = []
    for n in sizes:
        here, there = workers_on(local, n, 16), workers_on(cluster, n, 16)
        cluster.traffic.sent.clear()
        cluster.traffic.received.clear()
        seconds = medians(
            {
                "local": lambda w=here: rounds(w, m, count),
                "ray": lambda w=there: rounds(w, m, count),
            },
            3,
        )
        carried = sum(cluster.traffic.total().values()) / (4 * count)
        ms = {name: 1e3 * value / count for name, value in seconds.items()}
        ratio = ms["ray"] / ms["local"]
        print(f"{n:10,d}{ms['local']:20.1f}{ms['ray']:10.1f}{ratio:8.2f}{carried:16,.0f}")
        found.append({"table": "overhead", "n": n, "M": 16, "m": m, "local_ms": ms["local"],
                      "ray_ms": ms["ray"], "ratio": ratio, "bytes_per_round": carried})  # fmt: skip
    return found


def against_experts(cluster: Engine, n: int, counts: list[int]) -> list[dict]:
    X, y = demo.make_data(n, seed=0)
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
    X, y = demo.make_data(n, seed=0)
    shard = distgp.Shard.of(X, y)
    torch.set_num_threads(1)
    print(f"\n{'m':>6s}{'condition, us a row and core':>32s}{'gradient, us a row and core':>32s}")
    for m in sizes:
        here = Workers.of([shard])
        seconds = medians(
            {
                "condition": lambda m=m: distgp.SparseExpert().condition(theta(m), shard),
                "train": lambda m=m, w=here: rounds(w, m, 2),
            },
            3,
        )
        per_row = {name: 1e6 * value / n for name, value in seconds.items()}
        print(f"{m:6d}{per_row['condition']:32.2f}{per_row['train']:32.2f}")
        found.append({"table": "costs", "n": n, "m": m, "condition_us": per_row["condition"],
                      "gradient_us": per_row["train"]})  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, for a look")
    quick = parser.parse_args().quick
    local = LocalEngine()
    with RayEngine(workers=2) as cluster:
        sizes = [2_000] if quick else [5_000, 10_000, 20_000, 50_000, 120_000]
        found = overhead(local, cluster, sizes, 256, 4 if quick else 6)
        found += against_experts(
            cluster, 5_000 if quick else 60_000, [2, 8] if quick else [2, 8, 64, 256, 1000]
        )
    found += costs([64] if quick else [128, 256, 512])
    if not quick:
        write_csv(found, Path(__file__).parent / "results" / "engines.csv", "cpu")


if __name__ == "__main__":
    main()
