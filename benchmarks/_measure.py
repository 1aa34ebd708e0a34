"""Shared by the benchmarks: the path to the studies, memory, tables, and an objective with its gradient."""

from __future__ import annotations

import csv
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

import distgp
from distgp.data import Shard
from distgp.experts import Expert, Parameters

# The studies lie beside this folder and are not installed: benchmarks import this module first.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def peak_memory() -> int:
    """The process's largest resident size so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def commit() -> str:
    """The commit that the code stands at, since many have the same version; empty where there is none."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions() -> dict[str, str]:
    """What every row of results says of the code that made it."""
    return {"distgp": distgp.__version__, "torch": torch.__version__, "commit": commit()}


def write_csv(rows: Sequence[Mapping[str, object]], path: Path, device: str) -> None:
    """Write a tidy table, with the versions and the processor that made it; rows of a file keep theirs."""
    made = versions() | {"processor": processor(), "device": device}
    names = list(dict.fromkeys(name for row in rows for name in row if name not in made))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*names, *made])
        writer.writeheader()
        writer.writerows(row if "distgp" in row else {**made, **row} for row in rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table that `write_csv` wrote."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def objective_with_gradient(expert: Expert, theta: Parameters, shard: Shard) -> torch.Tensor:
    """Compute what a training step needs of one shard."""
    view = {name: v.detach().requires_grad_() for name, v in theta.unconstrained().items()}
    value = expert.objective(theta.with_unconstrained(view), shard)
    value.sum().backward()
    return value


def problem(n: int, d: int, seed: int = 0) -> Shard:
    """A smooth function of d inputs in [-1, 1], with noise 0.1."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64) * 2 - 1
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return Shard.of(X, torch.sin(3 * X.sum(-1) / d**0.5) + 0.1 * noise)


def processor() -> str:
    """The name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def measured_with(
    rows: Sequence[dict[str, str]], named: Callable[[dict[str, str]], str] | None = None
) -> str:
    """A sentence about the version and the machine of rows, and of those that differ, by their names."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        names = found.setdefault(", ".join(filter(None, (row["distgp"], machine(row)))), {})
        names[named(row) if named else ""] = None
    first, *others = found
    but = [f"; {', '.join(found[said])} with {said}" for said in others]
    return f"Measured with distgp {first}{''.join(but)}."


def machine(row: dict[str, str]) -> str:
    """What a row of results was measured on; where its columns do not say the processor, that is said."""
    device, _, threads = row.get("device", "").partition(", ")
    if row.get("threads"):
        threads = f"{row['threads']} threads"
    columns = (row.get(name, "") for name in ("machine", "on", "gpu", "processor"))
    known = device if device not in ("", "cpu", "cuda") else "processor not recorded"
    name = next(filter(None, columns), known)
    if threads and threads not in name:
        name = f"{name}, {threads}"
    return name.replace(", 1 threads", ", 1 thread").replace("cpu, ", "CPU, ")


def table_in_page(page: Path, mark: str, lines: Sequence[str]) -> None:
    """Put lines into a page of the documentation, between the two comments with this mark."""
    text = page.read_text(encoding="utf-8")
    first, last = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    head, rest = text.split(first)
    tail = rest.split(last)[1]
    page.write_text(f"{head}{first}\n\n" + "\n".join(lines) + f"\n\n{last}{tail}", encoding="utf-8")
