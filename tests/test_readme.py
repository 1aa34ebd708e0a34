"""The README's example runs as it stands."""

import csv
import re
from pathlib import Path

import pytest

from experiments.datasets import TASKS

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
def test_python_examples_run(code, capsys):
    exec(compile(code, str(README), "exec"), {})
    assert capsys.readouterr().out


def test_the_table_is_that_of_the_benchmark():
    """`python benchmarks/jobs.py --page` writes it."""
    table = README.parent / "benchmarks" / "results" / "jobs-cpu.csv"
    with table.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["task"] in TASKS and not r["note"]]
    assert len(rows) == 12
    for row in rows:
        (line,) = re.findall(rf"^\| {row['model']} \|.*$", README.read_text(), re.MULTILINE)
        assert f"| {float(row['rmse']):.3g} / {float(row['nlpd']):.3g} |" in line
