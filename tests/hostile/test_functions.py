"""Functions beside the estimators: maps and backtests, with every value for every argument, in every state.

They are found by their modules, so that new ones are tried on the day they land. Where one has an argument
of a new name, `test_values_are_known_for_every_argument` says that a right value for it is to be added.
"""

import copy
import inspect
import warnings

import numpy as np
import pandas as pd
import pytest
from hostile.test_parameters import VALUES
from hostile.test_rows import VALUES as OF_ROWS
from hostile.test_state import STATES, same, state
from hostile.trial import data, ending, outcome, times, tiny

from distgp import forecasting, maps

pytest.importorskip("xarray", reason="maps need xarray: pip install 'distgp[maps]'")

N = 24
OF_MODULES = {"maps": maps, "forecasting": forecasting}
FUNCTIONS = {
    f"{place}.{name}": function
    for place, module in OF_MODULES.items()
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if not name.startswith("_") and function.__module__ == module.__name__
}
AXES = {"a": np.linspace(-1, 1, 4), "b": np.linspace(-1, 1, 3)}
RIGHT = {
    "axes": lambda case: AXES,
    "mask": lambda case: np.ones((4, 3), bool),
    "gp": lambda case: case["gp"],
    "grid": lambda case: maps.grid(AXES),
    "latent": lambda case: True,
    "coverage": lambda case: 0.9,
    "chunk": lambda case: 5,
    "n": lambda case: 2,
    "random_state": lambda case: 3,
    "X": lambda case: case["X"],
    "y": lambda case: case["y"],
    "blocks": lambda case: np.arange(N) % 3,
    "sample_weight": lambda case: np.full(N, 2.0),
    "noise_variance": lambda case: np.full(N, 0.1),
    "table": lambda case: case["X"].assign(when=np.arange(N), y=case["y"]),
    "time": lambda case: "when",
    "target": lambda case: "y",
    "horizon": lambda case: 3,
    "folds": lambda case: 2,
    "window": lambda case: 15,
    "season": lambda case: 2,
    "quantiles": lambda case: (0.1, 0.9),
}
"""A right value for every argument, by its name."""


@pytest.fixture(scope="module")
def case():
    X, y = data(N)
    X = pd.DataFrame(X, columns=["a", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"gp": tiny().fit(X, y), "X": X, "y": y}


def takes(function):
    """The arguments of a function, but for those that are passed on."""
    found = inspect.signature(function).parameters.values()
    return [p for p in found if p.kind != p.VAR_KEYWORD]


def needed(function, case):
    """Right values for the arguments that a function cannot do without."""
    return {p.name: RIGHT[p.name](case) for p in takes(function) if p.default is p.empty}


def numbers(found):
    """All numbers of an answer."""
    if hasattr(found, "to_frame"):  # of a backtest
        found = found.table("all").to_pandas().select_dtypes("number").to_numpy()
    if hasattr(found, "data_vars"):
        return [values.to_numpy() for values in found.data_vars.values()]
    parts = found if isinstance(found, tuple) else (getattr(found, "inside", found),)
    return [np.asarray(part) for part in parts]


def test_values_are_known_for_every_argument():
    assert {"maps.grid", "maps.simulate", "forecasting.backtest"} <= FUNCTIONS.keys()
    for name, function in FUNCTIONS.items():
        lacking = {p.name for p in takes(function)} - RIGHT.keys()
        assert not lacking, f"add right values for {lacking} of {name} to RIGHT"


ARGUMENTS = [(name, p.name) for name, function in FUNCTIONS.items() for p in takes(function)]


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_every_value_for_every_argument(name, argument, case):
    function, rng = FUNCTIONS[name], np.random.default_rng(sum(map(ord, name + argument)))
    values = [*VALUES, *OF_ROWS.values()]
    for place in rng.permutation(len(values))[: times(4, len(values))]:
        value = values[place]
        if argument == "latent" and not truth(value):
            continue  # a flag is taken by its truth, and its library says that it has none
        if argument in ("n", "chunk", "folds") and isinstance(value, int) and value > 9:
            continue  # as many as are asked for
        given = needed(function, case) | {argument: value}
        try:
            found = outcome("values of arguments", lambda given=given: function(**given))
        except AssertionError as error:
            raise AssertionError(f"{name}({argument}={value!r:.80}): {error}") from error
        for one in () if found is None or argument == "blocks" else numbers(found):  # labels
            assert one.dtype.kind != "f" or not np.isinf(one).any(), (argument, value)


def truth(value):
    """Whether a value is true or false, and not both."""
    try:
        return bool(value) or True
    except (ValueError, TypeError, RuntimeError):
        return False


def drawn(function, case, rng):
    """Right arguments, some of the optional ones among them."""
    some = {p.name for p in takes(function) if p.default is p.empty or rng.random() < 0.4}
    return {name: RIGHT[name](case) for name in some}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_call_leaves_the_state_of_the_process_and_is_the_same_in_any(name, case):
    function, rng = FUNCTIONS[name], np.random.default_rng(4)
    for _ in range(times(2, 60)):
        given, kind = drawn(function, case, rng), str(rng.choice([*STATES]))
        expected, refused = ending(None, lambda given=given: numbers(function(**given)))
        with STATES[kind]():
            before = state()
            found, error = ending(
                "states of the process", lambda given=given: numbers(function(**given))
            )
            after = state()
        changed = [part for part in before if before[part] != after[part]]
        assert not changed, f"{name} with {kind} changed {changed}"
        assert (refused is None) == (error is None), (name, kind, refused, error)
        same(found, expected, f"{name}, {sorted(given)} with {kind}")


@pytest.mark.parametrize("scale", [1e-100, 1e-3, 1e6, 1e100][:: times(3, 1)])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "maps.grid"])
def test_targets_in_other_units_give_answers_in_these(name, scale, case):
    """Each number is cᵏ times that of the first units, k = 0, 1 or 2, but for logarithms of densities."""
    function, rng = FUNCTIONS[name], np.random.default_rng(5)
    own = copy.copy(case) | {"y": scale * case["y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own["gp"] = tiny().fit(own["X"], own["y"])
    for _ in range(times(1, 10)):
        seed = int(rng.integers(2**31))
        calls = [drawn(function, one, np.random.default_rng(seed)) for one in (case, own)]
        for given, factor in zip(calls, (1.0, scale**2), strict=True):
            given |= {k: factor * v for k, v in given.items() if k == "noise_variance"}
        (one, refused), (other, error) = (
            ending(kind, lambda given=given: numbers(function(**given)))
            for kind, given in zip((None, "units under transforms"), calls, strict=True)
        )
        assert (refused is None) == (error is None), (name, scale, refused, error)
        if name == "forecasting.backtest" or refused is not None:
            continue  # it has densities among its figures
        for a, b in zip(one, other, strict=True):
            if a.dtype.kind == "f":
                size = max(float(np.abs(a).max()), 1e-300)
                errors = [np.abs(b / scale / scale ** (k - 1) - a).max() / size for k in (0, 1, 2)]
                assert min(errors) < 1e-6, (name, scale, sorted(calls[0]), errors)
