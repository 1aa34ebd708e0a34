"""The README's example runs as it stands."""

import csv
import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
def test_python_examples_run(code, capsys):
    exec(compile(code, str(README), "exec"), {})
    assert capsys.readouterr().out


def test_figures_of_nearest_rows_are_those_of_the_table():
    table = README.parent / "benchmarks" / "results" / "nearest-trained-cuda.csv"
    with table.open(newline="") as file:
        rows = [
            r for r in csv.DictReader(file) if r["n"] == "100000" and r["lengthscale"] == "0.25"
        ]
    error = {r["model"]: float(r["error"]) for r in rows}
    text = " ".join(README.read_text().split())
    assert f"its error is {error['nearest']:.2f} noise standard deviations" in text
    assert f"the sparse default's {error['sparse default']:.1f}, " in text
    assert f"SVGP's {error['SVGP, 10 × the time']:.1f} with ten times the time" in text
