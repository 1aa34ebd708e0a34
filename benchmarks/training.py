"""How well does each training method find the hyperparameters, and at what price?

The paper's training study: n = 10,000 rows on [−1, 1]² from the prior of an RBF kernel with lengthscales
0.3 and 1.3, σ_f = 0.2, σ = 0.1; start (2.0, 0.3, σ = 1, σ_f = √1.5); sparse experts with m = 128 inducing
inputs, which are trained too; M = 2 … 100; 200 rounds, Adam with rate 0.1, ρ = 500, μ = 0.01, half of the
experts per round for FedProx; nothing is normalised. Beside them two methods of ours: FACT with L-BFGS, and
L-BFGS on the pooled bound.

Estimates are compared with the truth (in Cramér–Rao standard errors of log θ, from all rows) and with the
optimum of the exact full likelihood. "rounds" is the first round from which all four stay within 5 % of it.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from pathlib import Path

import torch
from _measure import read_csv, write_csv
from torch import Tensor

from distgp import linalg
from distgp.experts import ExactExpert, SparseExpert, inducing
from distgp.training import Admm, Algorithm, Fact, FedAvg, FedProx, PooledBound, train
from experiments.draws import random_shards
from experiments.training import START, TRUTH, draw, named, parameters

MANY = (2, 4, 8, 10, 20, 40, 80, 100)
Row = dict[str, object]


def standard_errors(X: Tensor, device: str) -> dict[str, float]:
    """Cramér–Rao bounds of log θ at the truth: F_ij = ½ tr(K̃⁻¹ ∂_iK̃ K̃⁻¹ ∂_jK̃)."""
    theta = parameters(TRUTH, None, device)
    K = theta.kernel(X)
    L = linalg.cholesky(linalg.add_diagonal(K, theta.noise))
    gaps = [((X[:, None, j] - X[None, :, j]) / TRUTH[f"l{j + 1}"]).square_() for j in range(2)]
    eye = torch.eye(len(X), dtype=K.dtype, device=K.device)
    slopes = [K * gaps[0], K * gaps[1], 2 * theta.noise * eye, 2 * K]
    parts = [linalg.cholesky_solve(L, slope) for slope in slopes]
    F = torch.tensor([[0.5 * float((a * b.mT).sum()) for b in parts] for a in parts])
    return dict(zip(TRUTH, torch.linalg.inv(F).diagonal().sqrt().tolist(), strict=True))


def methods(rounds: int) -> dict[str, Algorithm]:
    return {
        "FACT, Adam": Fact("adam", n_iter=rounds),
        "FedAvg": FedAvg(local_steps=1, n_iter=rounds),
        "FedAvg, 5 local steps": FedAvg(local_steps=5, n_iter=rounds),
        "FedProx": FedProx(local_steps=1, n_iter=rounds),
        "ADMM": Admm(local_steps=1, learning_rate=0.1, n_iter=rounds),
        "ADMM, 5 local steps": Admm(local_steps=5, learning_rate=0.1, n_iter=rounds),
        "FACT, L-BFGS": Fact(n_iter=rounds),
        "pooled, L-BFGS": PooledBound(n_iter=rounds),
    }


def within(estimate: dict[str, float], optimum: dict[str, float], share: float = 0.05) -> bool:
    return all(abs(estimate[name] / optimum[name] - 1) <= share for name in TRUTH)


def rounds_needed(path: list[dict[str, float]], optimum: dict[str, float]) -> int | None:
    """The first round from which the estimates stay within 5 % of the optimum."""
    outside = [i for i, estimate in enumerate(path) if not within(estimate, optimum)]
    first = outside[-1] + 1 if outside else 0
    return first + 1 if first < len(path) else None


def study(n: int, Ms: tuple[int, ...], rounds: int, seed: int, device: str, only: str) -> list[Row]:
    data = draw(n, seed, device)
    errors = standard_errors(data.X, device)
    begin = time.perf_counter()
    full = train(Fact(n_iter=100), ExactExpert(), parameters(START, None, device), [data])
    optimum = named(full.history[-1].hyperparameters)
    print(f"seed {seed}: Cramér–Rao standard errors {show(errors)}")
    print(
        f"seed {seed}: optimum of the exact likelihood {show(optimum)}, "
        f"{len(full.history)} evaluations, {time.perf_counter() - begin:.1f} s"
    )
    Z = inducing.random_subset(data.X, 128, seed)
    rows: list[Row] = []
    for M in Ms:
        shards = random_shards(data, M, seed)
        for name, algorithm in methods(rounds).items():
            if not name.startswith(only):
                continue
            begin = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = train(algorithm, SparseExpert(), parameters(START, Z, device), shards)
            path = [named(round_.hyperparameters) for round_ in result.history]
            row: Row = {"seed": seed, "n": n, "M": M, "method": name}
            row |= path[-1]
            row |= {f"{p}_off": abs(math.log(path[-1][p] / TRUTH[p])) / errors[p] for p in TRUTH}
            row |= {f"{p}_gap": path[-1][p] / optimum[p] - 1 for p in TRUTH}
            row |= {
                "within": within(path[-1], optimum),
                "rounds_needed": rounds_needed(path, optimum),
                "rounds": len(path),
                "stopped": result.stopped,
                "seconds": time.perf_counter() - begin,
                "megabytes": sum(r.bytes for r in result.history) / 1e6,
            }
            rows.append(row)
            print(line(row), flush=True)
    return rows


def show(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def line(row: Row) -> str:
    estimates = " ".join(f"{row[p]:8.4f}" for p in TRUTH)
    off = max(float(str(row[f"{p}_off"])) for p in TRUTH)
    gap = max(abs(float(str(row[f"{p}_gap"]))) for p in TRUTH)
    needed = "-" if row["rounds_needed"] is None else row["rounds_needed"]
    return (
        f"{row['seed']:>4} {row['M']:>4} {row['method']:22s} {estimates} {off:8.2f} {gap:8.1%} "
        f"{needed!s:>7} {row['rounds']:>7} {row['seconds']:8.2f} {row['megabytes']:9.2f}"
    )


def print_tables(path: Path) -> None:
    """Medians over seeds of a table written before, as Markdown."""
    rows = read_csv(path)
    Ms = list(dict.fromkeys(row["M"] for row in rows))
    seeds = len({row["seed"] for row in rows})

    def gap(row: dict[str, str]) -> float:
        return max(abs(float(row[f"{p}_gap"])) for p in TRUTH)

    titles = {
        f"largest gap to the optimum, median of {seeds} seeds": lambda r: f"{gap(r):.1%}",
        "rounds until it stopped": lambda r: r["rounds"],
        "seconds": lambda r: f"{float(r['seconds']):.1f}",
        "MB exchanged": lambda r: f"{float(r['megabytes']):.1f}",
    }
    for title, cell in titles.items():
        print(f"\n| {title} | " + " | ".join(f"M = {M}" for M in Ms) + " |")
        print("| --- |" + " --- |" * len(Ms))
        for name in dict.fromkeys(row["method"] for row in rows):
            cells = []
            for M in Ms:
                same = [row for row in rows if row["method"] == name and row["M"] == M]
                cells.append(cell(sorted(same, key=gap)[len(same) // 2]))
            print(f"| {name} | " + " | ".join(cells) + " |")


def verdict(rows: list[Row]) -> bool:
    """The goal: at M = 100 within 5 % of the optimum and two standard errors, before FedAvg."""
    most = max(int(str(row["M"])) for row in rows)
    good = True
    for seed in sorted({int(str(row["seed"])) for row in rows}):
        at = {row["method"]: row for row in rows if row["M"] == most and row["seed"] == seed}
        ours = at["pooled, L-BFGS"]
        off = max(float(str(ours[f"{p}_off"])) for p in TRUTH)
        others = [at[name]["rounds_needed"] for name in ("FedAvg", "FedAvg, 5 local steps")]
        needed = ours["rounds_needed"]
        sooner = needed is not None and all(
            other is None or int(str(needed)) < int(str(other)) for other in others
        )
        good &= bool(ours["within"]) and off <= 2 and sooner
        print(
            f"M = {most}, seed {seed}: pooled L-BFGS within 5 %: {ours['within']}; {off:.2f} standard "
            f"errors from the truth; rounds {needed}, FedAvg {others[0]}, with 5 steps {others[1]}"
        )
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--experts", type=int, nargs="+", default=MANY)
    parser.add_argument("--only", default="", metavar="PREFIX", help="methods that begin with this")
    parser.add_argument("--quick", action="store_true", help="2,000 rows, M = 4 and 20")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/training.csv"))
    parser.add_argument("--tables", type=Path, metavar="CSV", help="print an earlier run's medians")
    arguments = parser.parse_args()
    if arguments.tables:
        print_tables(arguments.tables)
        return
    n, Ms = arguments.rows, tuple(arguments.experts)
    if arguments.quick:
        n, Ms = 2000, (4, 20)
    print(f"truth {show(TRUTH)}; start {show(START)}")
    print(
        f"{'seed':>4} {'M':>4} {'method':22s} "
        + " ".join(f"{p:>8s}" for p in TRUTH)
        + f" {'max SE':>8s} {'max gap':>8s} {'to 5 %':>7s} {'rounds':>7s} {'seconds':>8s} {'MB':>9s}"
    )
    rows: list[Row] = []
    for seed in range(arguments.seeds):
        rows += study(n, Ms, arguments.rounds, seed, arguments.device, arguments.only)
        write_csv(rows, arguments.output, arguments.device)
    good = bool(arguments.only) or verdict(rows)
    print(f"table: {arguments.output}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
