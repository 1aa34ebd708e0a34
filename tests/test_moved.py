"""Modules that moved are found by their old names, with a warning that names the new ones."""

import importlib
import subprocess
import sys

import pytest

from distgp._util.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_old_names_work_and_say_what_replaced_them(old):
    sys.modules.pop(old, None)
    with pytest.warns(FutureWarning, match=f"{old} is now {MOVED[old]}: import from there"):
        module = importlib.import_module(old)
    new = importlib.import_module(MOVED[old])
    public = [name for name in vars(new) if not name.startswith("_")]
    assert len(public) > 3
    assert all(getattr(module, name) is getattr(new, name) for name in public)
    assert new.__name__ == MOVED[old] and new.__spec__.name == MOVED[old]


def test_a_script_written_for_the_old_names_runs():
    script = """
import distgp
from distgp.choice import hold_out
from distgp.metrics import rmse
from distgp.summary import summary
print(len(hold_out(10, "random")[1]), rmse([1.0], [2.0]), distgp.metrics.rmse is rmse)
"""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["2", "1.0", "True"]
