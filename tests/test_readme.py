"""The README's table is that of the benchmark; tests/docs runs its code."""

import csv
import re
from pathlib import Path

from experiments.datasets import TASKS

README = Path(__file__).parent.parent / "README.md"


def test_the_table_is_that_of_the_benchmark():
    """`python benchmarks/jobs.py --page` writes it."""
    table = README.parent / "benchmarks" / "results" / "jobs-cpu.csv"
    with table.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["task"] in TASKS and not r["note"]]
    assert len(rows) == 12
    for row in rows:
        (line,) = re.findall(rf"^\| {row['model']} \|.*$", README.read_text(), re.MULTILINE)
        assert f"| {float(row['rmse']):.3g} / {float(row['nlpd']):.3g} |" in line
