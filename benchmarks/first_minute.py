"""How long does a new user wait? Wall clocks of whole processes, imports included.

    python benchmarks/first_minute.py            prints the table
    python benchmarks/first_minute.py --csv      writes benchmarks/results/first_minute.csv too
    python benchmarks/first_minute.py --page     writes the CSV's table into docs/speed.md

Each figure is the median of five processes, with the CPU time beside it, which depends less on what
else the machine does. Modules are compiled in a first process that does not count, as they are when a
package is installed. README's lines are its first block of Python, as it stands.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import measured_with, read_csv, table_in_page, write_csv

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speed.md"
BASE = "import torch, sklearn.base"
REGRESSOR = "from distgp import DistributedGPRegressor"
COMPILED = tempfile.TemporaryDirectory()
"""A folder for compiled modules, which the environment may forbid beside the sources."""


def readme_lines() -> str:
    """The first block of Python in README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def cases() -> dict[str, tuple[str, ...]]:
    """The processes that are timed, by their names."""
    return {
        BASE: ("-c", BASE),
        "import distgp": ("-c", "import distgp"),
        REGRESSOR: ("-c", REGRESSOR),
        "distgp --version": ("-m", "distgp", "--version"),
        "distgp --help": ("-m", "distgp", "--help"),
        "distgp fit --help": ("-m", "distgp", "fit", "--help"),
        "README's lines": ("-c", readme_lines()),
    }


def seconds(*arguments: str, processes: int) -> tuple[float, float]:
    """The median wall clock and CPU time of this many processes of Python."""
    walls, works = [], []
    compiled = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": COMPILED.name}
    command = [sys.executable, *arguments]
    subprocess.run(command, capture_output=True, check=True, env=compiled)
    for _ in range(processes):
        begin, before = time.perf_counter(), os.times()
        subprocess.run(command, capture_output=True, check=True, env=compiled)
        after = os.times()
        walls.append(time.perf_counter() - begin)
        used = after.children_user + after.children_system
        works.append(used - before.children_user - before.children_system)
    return statistics.median(walls), statistics.median(works)


RESULTS = Path(__file__).parent / "results" / "first_minute.csv"


def page() -> None:
    """Write the results into the page."""
    rows = read_csv(RESULTS)
    lines = [measured_with(rows), "", "| process | seconds |", "| --- | --- |"]
    for row in (row for row in rows if row["case"] in cases()):
        name = row["case"] if row["case"].startswith("README") else f"`{row['case']}`"
        lines.append(f"| {name} | {row['seconds']} |")
    table_in_page(PAGE, "first minute", lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--csv", action="store_true")
    given = parser.parse_args()
    if given.page:
        return page()
    rows: list[dict[str, object]] = []
    found: dict[str, tuple[float, float]] = {}
    for name, arguments in cases().items():
        wall, work = found[name] = seconds(*arguments, processes=given.processes)
        rows.append({"case": name, "seconds": round(wall, 2), "cpu_seconds": round(work, 2)})
        print(f"{name:50s} {wall:6.2f} s, of CPU time {work:6.2f} s", flush=True)
    wall, work = (a - b for a, b in zip(found[REGRESSOR], found[BASE], strict=True))
    print(
        f"{'the regressor above PyTorch and sklearn.base':50s} {wall:6.2f} s, of CPU time {work:6.2f} s"
    )
    if given.csv:
        write_csv(rows, RESULTS, "cpu")
    return None


if __name__ == "__main__":
    main()
