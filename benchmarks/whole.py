"""How far does the exact GP go on this machine, with all rows in one expert?

For each number of rows, in a process of its own: the seconds of one evaluation of the likelihood with its
gradient, and the least that it could take by the rates of a large matrix product (n³/3 multiplications and
additions to factorise, 2n³/3 to invert) and of the measured Cholesky; the seconds that the package itself
expects; the seconds to condition; the peak of the memory in units of a matrix of n² numbers; and the
seconds to predict 1,000 means with variances, and the least that they could take (n² for each point).

    python benchmarks/whole.py                   writes benchmarks/results/whole.csv
    python benchmarks/whole.py --device cuda     writes benchmarks/results/whole-cuda.csv
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from _measure import objective_with_gradient, peak_memory, problem, processor, write_csv

import distgp
from distgp.data import Shard
from distgp.experts import ExactExpert, Parameters, cost
from experiments.study import seconds

RESULTS = Path(__file__).parent / "results"
SIZES = {"cpu": (2_000, 3_000, 6_000, 10_000), "cuda": (4_000, 8_000, 16_000, 36_000)}
COLUMNS = 8
POINTS = 1_000


def rate_of_products(device: str) -> float:
    """The multiplications and additions of a large matrix product in a second."""
    size = 8192 if device == "cuda" else 2000
    A = torch.rand(size, size, dtype=torch.float64, device=device)
    return 2 * size**3 / seconds({"product": lambda: A @ A}, device)["product"]


def matrices_of(rows: Shard, theta: Parameters, device: str) -> float:
    """The peak of the memory of an evaluation, in matrices; the process must not have made one before."""
    objective_with_gradient(ExactExpert(), theta, problem(1_100, COLUMNS).to(device))
    unit = 8 * rows.n**2
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        objective_with_gradient(ExactExpert(), theta, rows)
        return (torch.cuda.max_memory_allocated() - before) / unit
    before = peak_memory()
    objective_with_gradient(ExactExpert(), theta, rows)
    return (peak_memory() - before) / unit


def measured(n: int, device: str) -> dict[str, object]:
    rows, like = problem(n, COLUMNS).to(device), torch.empty(0, dtype=torch.float64, device=device)
    theta = Parameters.of((1.2 * distgp.Matern52([0.8] * COLUMNS)).to(device), 0.05)
    matrices, expert = matrices_of(rows, theta, device), ExactExpert()
    expected, points = cost.cost_of_objective(n, COLUMNS, like), problem(POINTS, COLUMNS, seed=1)
    posterior, X, rate = (
        expert.condition(theta, rows),
        points.to(device).X,
        rate_of_products(device),
    )
    work = {
        "evaluation": lambda: objective_with_gradient(expert, theta, rows),
        "condition": lambda: expert.condition(theta, rows),
        "predict": lambda: posterior.predict(X),
    }
    taken = seconds(work, device, repeats=3)
    cholesky = cost.seconds_for_cholesky(n, like.device, like.dtype)
    floors = {"evaluation": n**3 / rate, "predict": n * n * POINTS / rate}
    return {
        "n": n,
        "evaluation_s": f"{taken['evaluation']:.3g}",
        "floor_s": f"{floors['evaluation']:.3g}",
        "ratio": f"{taken['evaluation'] / floors['evaluation']:.2f}",
        "three_choleskys_s": f"{3 * cholesky:.3g}",
        "expected_s": f"{expected.seconds:.3g}",
        "condition_s": f"{taken['condition']:.3g}",
        "peak_matrices": f"{matrices:.2f}",
        "predict_1000_s": f"{taken['predict']:.3g}",
        "predict_floor_s": f"{floors['predict']:.3g}",
        "gflops_per_s": f"{rate / 1e9:.0f}",
    }


def in_own_process(n: int, device: str) -> dict[str, object]:
    command = [sys.executable, __file__, "--device", device, "--one", str(n)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(found, end="", flush=True)
    return json.loads(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="How far does the exact GP go?")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--one", type=int, help="measure this number of rows, and write nothing")
    arguments = parser.parse_args()
    device = arguments.device
    if arguments.one:
        print(json.dumps(measured(arguments.one, device)))
        return
    machine = f"{processor()}, {torch.get_num_threads()} threads"
    machine = torch.cuda.get_device_name() if device == "cuda" else machine
    rows = [{**in_own_process(n, device), "machine": machine} for n in SIZES[device]]
    write_csv(rows, RESULTS / ("whole.csv" if device == "cpu" else f"whole-{device}.csv"), device)


if __name__ == "__main__":
    main()
