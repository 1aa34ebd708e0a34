"""Every example runs, on few rows, and says what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAYS = {
    "first_regression": "the loaded model predicts the same: True",
    "compare_aggregators": "two-level predicts",
    "own_kernel_and_priors": "found: ",
    "larger_than_memory_parquet": "inputs: hour, site",
    "ray_cluster": "the same as in one process: True",
    "sparse_grid": "level 5: ",
}


def test_every_example_is_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == SAYS.keys()


@pytest.mark.parametrize("name", SAYS)
def test_runs_and_says(name):
    if name == "ray_cluster":
        pytest.importorskip("ray")
    command = [sys.executable, "-W", "error", f"examples/{name}.py", "150"]
    alone = os.environ | {"RAY_ADDRESS": "local"}  # no cluster that happens to run on this machine
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
