"""Shared by the benchmarks: timing side by side, memory, and the objective with its gradient."""

from __future__ import annotations

import csv
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

import distgp


def medians(calls: Mapping[str, Callable[[], object]], repeats: int = 9) -> dict[str, float]:
    """Median seconds of each call, taken in turns so that a noisy machine disturbs all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory() -> int:
    """The process's largest resident size so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def write_csv(rows: Sequence[Mapping[str, object]], path: Path, device: str) -> None:
    """A tidy table, with the versions behind it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    versions = {"distgp": distgp.__version__, "torch": torch.__version__, "device": device}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*names, *versions])
        writer.writeheader()
        writer.writerows({**row, **versions} for row in rows)


def objective_with_gradient(
    expert: distgp.Expert, theta: distgp.Parameters, shard: distgp.Shard
) -> torch.Tensor:
    """What a training step does on one shard."""
    view = {name: v.detach().requires_grad_() for name, v in theta.unconstrained().items()}
    value = expert.objective(theta.with_unconstrained(view), shard)
    value.sum().backward()
    return value


def problem(n: int, d: int, seed: int = 0) -> distgp.Shard:
    """A smooth function of d inputs in [-1, 1], with noise 0.1."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64) * 2 - 1
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return distgp.Shard.of(X, torch.sin(3 * X.sum(-1) / d**0.5) + 0.1 * noise)
