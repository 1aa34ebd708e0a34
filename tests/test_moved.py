"""Modules that moved are found by their old names, with a warning that names the new ones."""

import importlib
import inspect
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone

from distgp import DistributedGPRegressor, load
from distgp._util.moved import MOVED
from distgp.regressor import OLD_ORDER


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


def test_parameters_by_position_are_those_of_the_old_order():
    with pytest.warns(FutureWarning, match="give n_inducing=, n_neighbors=, aggregation= by name"):
        old = DistributedGPRegressor("exact", 2, 50, 64, "poe")
    new = DistributedGPRegressor("exact", 2, n_inducing=50, n_neighbors=64, aggregation="poe")
    assert old.get_params() == new.get_params() and repr(old) == repr(new)
    signature = inspect.signature(DistributedGPRegressor).parameters
    defaults = [signature[name].default for name in OLD_ORDER]
    with pytest.warns(FutureWarning):
        assert DistributedGPRegressor("auto", "auto", *defaults).get_params() == {
            name: parameter.default for name, parameter in signature.items()
        }


def test_what_is_given_twice_or_too_often_is_refused():
    with pytest.raises(TypeError, match="positional argument"):
        DistributedGPRegressor("exact", 2, 50, n_inducing=50)
    with pytest.raises(TypeError, match="positional argument"):
        DistributedGPRegressor("exact", 2, *range(40))


def test_deprecated_parameters_are_cloned_and_saved_in_silence(tmp_path):
    gp = DistributedGPRegressor("exact", 1, learning_rate=0.1, n_iter=2)
    assert clone(gp).set_params(learning_rate=0.2).get_params()["learning_rate"] == 0.2
    with pytest.warns(FutureWarning, match="learning_rate=0.1 is said with the method"):
        gp.fit(np.arange(9.0)[:, None], np.sin(np.arange(9.0)))
    gp.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.learning_rate == 0.1 and again.predict([[0.5]]) == gp.predict([[0.5]])


def test_parameters_stand_in_the_order_of_their_documentation():
    names = list(inspect.signature(DistributedGPRegressor).parameters)
    said = inspect.getdoc(DistributedGPRegressor).partition("Attributes\n---")[0]
    shown = [line.partition(" : ")[0] for line in said.splitlines() if " : " in line[:40]]
    assert shown == names and len(names) == 32
    groups = [line for line in said.splitlines() if line.strip().startswith("**")]
    assert len(groups) == 7


def test_only_what_was_set_is_shown():
    gp = DistributedGPRegressor("sparse", n_iter=3, verbose="auto", mean="linear")
    assert repr(gp) == "DistributedGPRegressor(expert='sparse', mean='linear', n_iter=3)"
