"""How near is each hot path to what the machine can do?

For every path the multiplications and additions, and the bytes of the largest matrices read and
written, that no way of computing it avoids. Their least time follows from what this machine does in the
same run: the rate of a large matrix product, the rate at which exp of a large array is taken in the
cache, and the rate at which memory is copied. The ratio is the path's time over the largest of the three.

    python benchmarks/limits.py                  writes benchmarks/results/limits.csv
    python benchmarks/limits.py --device cuda    writes benchmarks/results/limits-cuda.csv
    python benchmarks/limits.py --page           writes the tables into docs/speed.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from _measure import problem, processor, read_csv, table_in_page, write_csv
from torch import Tensor

import distgp
from distgp.aggregation import Ensemble
from distgp.data import Shard, stack
from distgp.experts import ExactExpert, Expert, NearestExpert, Parameters, SparseExpert
from distgp.experts.sums import inducing_factor, row_sums
from distgp.training import NearestRows
from distgp.training.nearest import Neighbourhoods, evaluate
from distgp.training.objective import Layout, Objective
from experiments.study import seconds

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"


@dataclass(frozen=True)
class HotPath:
    """One hot path.

    Parameters
    ----------
    name : str
        What the table calls it.
    run : callable
        Runs it once.
    flops : float
        Multiplications and additions of its matrix products, factors and solves.
    exps : float
        Values of the kernel, each of which takes an exponential.
    words : float
        Numbers of large matrices that are read or written.
    """

    name: str
    run: Callable[[], object]
    flops: float
    exps: float
    words: float


def step(expert: Expert, theta: Parameters, shards: list[Shard]) -> Callable[[], object]:
    """One evaluation in training: objective and gradient."""
    layout, rows = Layout.of(theta), stack(shards)
    objective, point = Objective.of(expert, layout), layout.pack(theta)
    weight = torch.zeros(len(shards), dtype=torch.float64, device=point.device)
    return lambda: objective.evaluate(rows, point, weight)


def paths(device: str) -> Iterator[HotPath]:
    large = device == "cuda"
    d, m, k = 8, 128, 128
    kernel = (1.2 * distgp.Matern52([0.8] * d)).to(device)
    theta = Parameters.of(kernel, 0.05)
    n = 16_000 if large else 4_000
    X = problem(n, d).to(device).X
    yield HotPath(f"kernel matrix, n = {n:,}", lambda: kernel(X), 2 * d * n**2, n**2, n**2)

    n = 8_000 if large else 2_000
    one = problem(n, d).to(device)
    exact = step(ExactExpert(), theta, [one])
    yield HotPath(f"exact likelihood and gradient, n = {n:,}", exact, n**3, n**2, 8 * n**2)

    M, s = (200, 1000) if large else (20, 500)
    many = problem(M * s, d).to(device)
    shards = [Shard.of(x, y) for x, y in zip(many.X.split(s), many.y.split(s), strict=True)]
    fact = step(ExactExpert(), theta, shards)
    yield HotPath(
        f"FACT step, {M} exact experts of {s:,} rows", fact, M * s**3, M * s**2, 8 * M * s**2
    )

    n = 1_000_000 if large else 20_000
    rows = problem(n, d).to(device)
    sparse = Parameters.of(kernel, 0.05, rows.X[:m].clone())
    bound = step(SparseExpert(), sparse, [rows])
    flops = n * m**2 * (1 + 1 + 2) + 4 * n * m * d
    yield HotPath(
        f"collapsed bound and gradient, n = {n:,}, m = {m}", bound, flops, n * m, 6 * n * m
    )

    with torch.no_grad():
        Lu = inducing_factor(sparse)

    def sums() -> object:
        with torch.no_grad():
            return row_sums(sparse, Lu, rows)

    yield HotPath(f"sums over rows, n = {n:,}, m = {m}", sums, 2 * n * m**2, n * m, 2 * n * m)

    yield nearest_training(theta, rows, device)
    N = 20_000 if large else 2_500
    points = problem(N, d, seed=1).to(device).X
    yield from predictions(theta, sparse, shards, rows, points, m, k)


def nearest_training(
    theta: Parameters, rows: Shard, device: str, k: int = NearestRows().n_neighbors
) -> HotPath:
    """Targets with their neighbours, as training by nearest rows evaluates them."""
    T = 2_000
    g = torch.Generator().manual_seed(0)
    index = torch.randint(rows.n, (T, k + 1), generator=g).to(device)
    X, y = rows.X[index], rows.y[index]
    real = torch.ones(T, k + 1, dtype=torch.bool, device=device)
    targets = Shard.of(X[:, -1], y[:, -1])
    sets = Neighbourhoods(X, y, real, None, targets)
    layout = Layout.of(theta)
    objective, point = Objective.of(NearestExpert(), layout), layout.pack(theta)
    q = k + 1
    return HotPath(
        f"{T:,} targets with {k} nearest rows, likelihood and gradient",
        lambda: evaluate(objective, point, sets),
        T * (q**3 / 3 + 3 * q**2 + 4 * rows.d * q**2),
        T * q**2,
        6 * T * q**2,
    )


def predictions(
    theta: Parameters,
    sparse: Parameters,
    shards: list[Shard],
    rows: Shard,
    points: Tensor,
    m: int,
    k: int,
) -> Iterator[HotPath]:
    """Mean and variance at N points, by each kind of aggregator."""
    N, M, s, d = len(points), len(shards), shards[0].n, rows.d
    exact = Ensemble.condition(ExactExpert(), theta, shards)
    values = M * s * N
    for name in ("poe", "opt", "two-level"):
        combined = distgp.AGGREGATORS[name]().combine(exact)
        yield HotPath(
            f"{name}, {M} exact experts of {s:,} rows, {N:,} points",
            lambda combined=combined: combined.predict(exact, points),
            values * s + 2 * d * values,
            values,
            2 * values,
        )
    parts = [Shard.of(x, y) for x, y in zip(rows.X.chunk(8), rows.y.chunk(8), strict=True)]
    shared = Ensemble.condition(SparseExpert(), sparse, parts)
    pooled = distgp.AGGREGATORS["pooled"]().combine(shared)
    yield HotPath(
        f"pooled, m = {m}, {N:,} points",
        lambda: pooled.predict(shared, points),
        2 * N * m**2,
        N * m,
        2 * N * m,
    )
    local = Ensemble.condition(NearestExpert(n_neighbors=k), theta, [rows])
    near = distgp.AGGREGATORS["nearest"]().combine(local)
    yield HotPath(
        f"nearest, k = {k}, {N:,} points",
        lambda: near.predict(local, points),
        N * (k**3 / 3 + 2 * k**2 + 2 * d * k**2),
        N * k**2,
        2 * N * k**2,
    )


def rates(device: str) -> dict[str, float]:
    """What the machine does in a second: multiplications and additions, exponentials, numbers copied."""
    size = 8192 if device == "cuda" else 2000
    A = torch.rand(size, size, dtype=torch.float64, device=device)
    small = torch.rand(2**17 if device == "cpu" else 2**24, dtype=torch.float64, device=device)
    out, copy, turns = torch.empty_like(small), torch.empty_like(A), 20 if device == "cpu" else 1
    times = seconds(
        {
            "product": lambda: A @ A,
            "exp": lambda: [torch.exp(small, out=out) for _ in range(turns)],
            "copy": lambda: copy.copy_(A),
        },
        device,
        repeats=9,
    )
    return {
        "flops": 2 * size**3 / times["product"],
        "exps": turns * len(small) / times["exp"],
        "words": 2 * size**2 / times["copy"],
    }


def measured(device: str) -> list[dict[str, object]]:
    rows = []
    for path in paths(device):
        speed = rates(device)
        taken = seconds({"path": path.run}, device, repeats=5)["path"]
        floors = {name: getattr(path, name) / rate for name, rate in speed.items()}
        limit = max(floors, key=lambda name: floors[name])
        rows.append(
            {
                "path": path.name,
                "ms": f"{1e3 * taken:.3g}",
                "floor_ms": f"{1e3 * floors[limit]:.3g}",
                "ratio": f"{taken / floors[limit]:.2f}",
                "bound_by": {"flops": "products", "exps": "exp", "words": "memory"}[limit],
                "gflop": f"{path.flops / 1e9:.3g}",
                "exp_millions": f"{path.exps / 1e6:.3g}",
                "mib": f"{8 * path.words / 2**20:.3g}",
                "gflops_per_s": f"{speed['flops'] / 1e9:.0f}",
            }
        )
        print(rows[-1], flush=True)
    return rows


def file_of(device: str) -> Path:
    return RESULTS / ("limits.csv" if device == "cpu" else f"limits-{device}.csv")


def page() -> None:
    """Write the nearest and the farthest path of both devices into the page."""
    lines = []
    for rows in (read_csv(file_of(device)) for device in ("cpu", "cuda")):
        rate = f"{int(rows[0]['gflops_per_s']):,} GFLOP/s in a large matrix product"
        said = f"distgp {rows[0]['distgp']}, {rows[0]['machine']}, {rate}"
        rows.sort(key=lambda row: float(row["ratio"]))
        least, most = (f"{float(row['ratio']):.1f} times" for row in (rows[0], rows[-1]))
        best, worst = rows[0]["path"], rows[-1]["path"]
        lines.append(f"- {said}: the best step takes {least} that limit ({best}), ")
        lines[-1] += f"the worst {most} ({worst})."
    table_in_page(PAGE, "limits", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="How near is each hot path to the limit?")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--page", action="store_true", help="write the tables and measure nothing")
    arguments = parser.parse_args()
    if arguments.page:
        page()
        return
    if arguments.device == "cuda":
        machine = torch.cuda.get_device_name()
    else:
        machine = f"{processor()}, {torch.get_num_threads()} threads"
    rows = [{**row, "machine": machine} for row in measured(arguments.device)]
    write_csv(rows, file_of(arguments.device), arguments.device)


if __name__ == "__main__":
    main()
