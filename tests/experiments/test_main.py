"""The command `python -m experiments`, in processes of its own where that matters."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.runner import CELL, read_rows

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "experiments"]


def test_a_killed_command_goes_on(tmp_path):
    command = [*COMMAND, "posterior", "--seeds", "40", "--output", tmp_path]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    table, deadline = tmp_path / "posterior.csv", time.monotonic() + 300
    while not table.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    with table.open() as file:  # whole, though it was being written all the time
        before = list(csv.DictReader(file))
    done = {row[CELL] for row in before}
    assert 0 < len(done) < 40 and not (tmp_path / "posterior.md").exists()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    after = read_rows(table)
    assert len({row[CELL] for row in after}) == 40 and (tmp_path / "posterior.md").exists()
    kept = {row["cell"]: row["w2"] for row in before if row["w2"]}
    again = {row["cell"]: str(row["w2"]) for row in after if row["w2"] is not None}
    assert kept.items() <= again.items()


def test_the_command_explains_mistakes(tmp_path):
    done = subprocess.run([*COMMAND, "nothing"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "there are opticom" in done.stderr

    def said(*arguments):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2, done.output
        return done.stderr

    assert "not found in" in said(
        "uci", "--quick", "--data-dir", str(tmp_path), "-o", str(tmp_path)
    )
    assert "not found in" in said(
        "all", "--quick", "--data-dir", str(tmp_path), "-o", str(tmp_path)
    )
    assert "not available here" in said("posterior", "--device", "cuda:99", "-o", str(tmp_path))
