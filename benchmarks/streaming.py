"""How much memory does conditioning on a very long shard take, and how long?

A sparse expert with m = 128 on 10 million rows, d = 8: once from a stream of pieces that are made
as they are read, once from a shard that lies in memory whole (its own size is stated beside it).
Memory is the growth of the process's peak over its size before, each case in its own process.
Exits with 1 where it is above 1 GiB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator

import torch
from _measure import peak_memory, problem

import distgp
from distgp.data import Shard
from distgp.experts import Parameters, SparseExpert

GIB = 2**30


def pieces(n: int, d: int, size: int = 200_000) -> Iterator[Shard]:
    for start in range(0, n, size):
        yield problem(min(size, n - start), d, seed=start)


def whole(n: int, d: int) -> Shard:
    """The same rows in memory, filled piece by piece."""
    X, y = torch.empty(n, d, dtype=torch.float64), torch.empty(n, dtype=torch.float64)
    start = 0
    for piece in pieces(n, d):
        X[start : start + piece.n], y[start : start + piece.n] = piece.X, piece.y
        start += piece.n
    return Shard.of(X, y)


def run(n: int, d: int, m: int, streamed: bool) -> None:
    Z = problem(m, d, seed=1).X
    theta = Parameters.of(1.2 * distgp.RBF([1.5] * d), 0.05, Z)
    expert = SparseExpert()
    expert.condition(theta, problem(1000, d)).predict(Z)  # loads what torch loads lazily
    before = peak_memory()
    shard = pieces(n, d) if streamed else whole(n, d)
    held = 0 if isinstance(shard, Iterator) else shard.X.nbytes + shard.y.nbytes + shard.rows.nbytes
    start = time.perf_counter()
    posterior = expert.condition(theta, shard)
    seconds = time.perf_counter() - start
    assert torch.isfinite(posterior.weights).all()
    growth = peak_memory() - before
    name = "stream" if streamed else "in memory"
    print(
        f"{name:10s} {n:12,d} {d:3d} {m:5d} {seconds:8.1f} {n / seconds / 1e6:9.2f} "
        f"{held / GIB:9.2f} {growth / GIB:9.2f}",
        flush=True,
    )
    raise SystemExit(growth > GIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    arguments = parser.parse_args()
    print(
        f"{'shard':10s} {'rows':>12s} {'d':>3s} {'m':>5s} {'seconds':>8s} {'Mrows/s':>9s} "
        f"{'data GiB':>9s} {'peak GiB':>9s}",
        flush=True,
    )
    context = multiprocessing.get_context("spawn")
    for n, streamed in (
        (arguments.rows // 10, True),
        (arguments.rows, True),
        (arguments.rows, False),
    ):
        process = context.Process(target=run, args=(n, 8, 128, streamed))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
