"""A part of the families on a GPU: far rows, other units, odd states, changed files say what a CPU says."""

import os
import warnings

import numpy as np
import pytest
import torch
from hostile import calls
from hostile.test_state import STATES
from hostile.trial import alike, ending, times, tiny

import distgp

KIND = "on a GPU"
EXPERTS = [*distgp.EXPERTS]
NAMES = [name for name in calls.methods(distgp.DistributedGPRegressor) if name not in calls.CHANGES]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def pair(folder, expert, move=lambda X: X, scale=1.0):
    """The same model on a CPU and on a GPU: its hyperparameters are given, so that no step differs."""
    made = []
    for device in ("cpu", "cuda"):
        case = calls.case_of(lambda: tiny(training=None), folder / device, scale=scale)
        case.X, case.points = move(case.X), move(case.points)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gp = tiny(expert=expert, training=None, device=device)
            case.gp = gp.fit(case.X, case.y)
        made.append(case)
    return made


def compare(one, other, rng, what, within=None):
    """Some calls of both: the same to 1e-6 of the largest number, or refused by both."""
    for _ in range(times(10, 100)):
        name, seed = str(rng.choice(NAMES)), int(rng.integers(2**31))
        here, said = calls.call(one, name, np.random.default_rng(seed))
        there, _ = calls.call(other, name, np.random.default_rng(seed))
        a, refused = ending(None, lambda run=here: calls.numbers(run(), one.points))
        with within() if within else warnings.catch_warnings():
            b, error = ending(KIND, lambda run=there: calls.numbers(run(), other.points))
        # Draws are of other random numbers there.
        if alike(refused, error, f"{said}, {what}") and name != "sample_y":
            for p, q in zip(a, b, strict=True):
                spread = max(float(np.abs(p).max()), 1e-300)
                assert np.abs(p - q).max() / spread < 1e-6, (said, what)


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("shift", [0.0, 2.0**20, 2.0**36])
def test_rows_elsewhere(expert, shift, tmp_path):
    compare(*pair(tmp_path, expert, lambda X: X + shift), np.random.default_rng(0), f"{shift:g}")


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("scale", [1e-100, 1e6, 1e100])
def test_targets_in_other_units(expert, scale, tmp_path):
    compare(*pair(tmp_path, expert, scale=scale), np.random.default_rng(1), f"{scale:g}")


@pytest.mark.parametrize("expert", EXPERTS)
def test_odd_states_of_the_process(expert, tmp_path):
    one, other = pair(tmp_path, expert)
    for name, state in STATES.items():
        compare(one, other, np.random.default_rng(2), name, state)


@pytest.mark.parametrize("expert", EXPERTS)
def test_a_file_that_is_emptied_after_loading(expert, tmp_path):
    one, other = pair(tmp_path, expert)
    path = tmp_path / "m.safetensors"
    other.gp.save(path)
    one.gp.save(tmp_path / "here.safetensors")
    one.gp, other.gp = distgp.load(tmp_path / "here.safetensors", "cpu"), distgp.load(path)
    assert other.gp.model_.targets[0].parameters.noise.device.type == "cuda"
    os.truncate(path, 0)
    compare(one, other, np.random.default_rng(3), "loaded")
