"""The harness itself: a try that hangs is a finding, and what was tried is known at any moment."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hostile import trial


def test_a_try_that_does_not_end_is_broken_and_the_next_is_made(monkeypatch):
    monkeypatch.setattr(trial, "LIMIT", 0.2)
    monkeypatch.setattr(trial, "TALLY", trial.Counter())

    def hides():
        try:
            threading.Event().wait(60)
        except Exception:
            return 1

    before = signal.getsignal(signal.SIGALRM)
    for wait in (lambda: threading.Event().wait(60), lambda: time.sleep(60), hides):
        with pytest.raises(AssertionError, match=r"had not ended after 0\.2 seconds"):
            trial.outcome("waits", wait)
    assert trial.outcome("waits", lambda: 7) == 7
    assert trial.TALLY == {("waits", "broke"): 3, ("waits", "held: a result"): 1}
    assert (
        signal.getsignal(signal.SIGALRM) == before and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )


KILLED = """
import os, signal
from hostile import trial
trial.outcome("a kind", lambda: 1)
os.kill(os.getpid(), signal.SIGKILL)
"""
HANGS = """
import pytest, signal
from hostile.conftest import ends
from hostile import conftest, trial
conftest.LONGEST = 1.0
def test_hangs():
    trial.count("a kind", "held: a result")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    signal.sigwait([signal.SIGUSR1])
def test_is_tried_all_the_same():
    trial.count("another", "held: a result")
"""


def run(folder, *command):
    """Run Python in a folder where all is tried, and give back the tallies that it has left."""
    path = os.pathsep.join(map(str, sys.path))  # where pytest finds these tests
    environment = os.environ | {"PYTHONPATH": path, "DISTGP_HOSTILE": "full"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        timeout=trial.LIMIT,
        capture_output=True,
        text=True,
    )
    found = (folder / "build" / "hostile").glob("*.json")
    return done, sorted(one for file in found for one in json.loads(file.read_text()))


def test_a_run_that_is_killed_leaves_its_tally(tmp_path):
    done, tally = run(tmp_path, "-c", KILLED)
    assert done.returncode == -signal.SIGKILL and tally == [["a kind", "held: a result", 1]]


def test_a_test_that_hangs_in_a_library_is_ended_and_the_others_are_run(tmp_path):
    (tmp_path / "test_hanging.py").write_text(HANGS)
    given = ("-p", "no:cacheprovider", "-n", "1", "--dist", "worksteal", "test_hanging.py")
    done, tally = run(tmp_path, "-m", "pytest", *given)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "test_hangs" in done.stdout and "crashed" in done.stdout
    assert tally == [["a kind", "held: a result", 1], ["another", "held: a result", 1]]
    (where,) = (tmp_path / "build" / "hostile").glob("*.hang")
    assert "in test_hangs" in where.read_text()
