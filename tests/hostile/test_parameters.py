"""Every type for every parameter: accepted, or refused by one clear error."""

import datetime
import decimal
import fractions
import math
import os
import re

import numpy as np
import pandas as pd
import pytest
import torch
from hostile.trial import data, outcome, times, tiny, unclear

import distgp
from distgp.aggregation import GRBCM, Opt, TwoLevel
from distgp.data.partition import ColumnPartition

VALUES = [
    None, True, False, 0, 1, -1, 2, 10**30, 10**400, 1.5, -0.0, 1e-300, 1e300, math.nan, math.inf, 1j,
    "", "auto", "foo", "x" * 200, "é\n\t", b"", b"exact", [], [1], ["noise"], [None], (), (1, 2), {},
    {"noise": 1}, {"noise": (1, 2)}, {"lengthscale": (2, 1)}, {1: 2}, {"noise": None}, set(), frozenset(),
    object(), object, len, lambda: 0, slice(1), range(3), np.array(1), np.array([1.0, 2.0]),
    np.zeros((2, 2)), np.zeros((0, 2)), np.full((3, 2), np.nan), np.array(["a"]), np.float32(1),
    np.int64(2), np.bool_(True), np.str_("exact"), np.datetime64("2020"), torch.tensor(1.0),
    torch.zeros(2), torch.float64, torch.device("cpu"), decimal.Decimal(1), fractions.Fraction(1, 2),
    datetime.date(2020, 1, 1), pd.NA, pd.Series([1, 2]), pd.DataFrame(), distgp.RBF(1.0), ValueError("x"),
]  # fmt: skip
ESTIMATORS = {
    "regressor": tiny,
    "grid": lambda **given: distgp.SparseGridGP(**{"level": 2, "n_iter": 2} | given),
}
CASES = [
    (kind, name, value)
    for kind, make in ESTIMATORS.items()
    for name in make().get_params(deep=False)
    for value in range(len(VALUES))
]
CHOSEN = np.sort(np.random.default_rng(0).permutation(len(CASES))[: times(120, len(CASES))])
PARTS = np.array_split(CHOSEN, times(2, 20))


@pytest.mark.parametrize("part", range(len(PARTS)))
def test_every_value_for_every_parameter(part):
    X, y = data()
    for i in PARTS[part]:
        kind, name, place = CASES[i]

        def call(kind=kind, name=name, value=VALUES[place]):
            gp = ESTIMATORS[kind](**{name: value}).fit(X, y)
            mean, std = gp.predict(X[:3], return_std=True)
            assert np.isfinite(mean).all() and np.isfinite(std).all()

        try:
            outcome("values of parameters", call)
        except AssertionError as error:
            raise AssertionError(f"{kind}({name}={VALUES[place]!r:.80}): {error}") from error


METHODS = {
    "predict": lambda gp, X, v: gp.predict(v),
    "aggregation": lambda gp, X, v: gp.predict(X, aggregation=v),
    "noise_variance": lambda gp, X, v: gp.predict(X, return_std=True, noise_variance=v),
    "coverage": lambda gp, X, v: gp.predict_interval(X, v),
    "groups": lambda gp, X, v: gp.predict_interval(X, groups=v),
    "quantiles": lambda gp, X, v: gp.predict_quantiles(X, v),
    "sample_y": lambda gp, X, v: gp.sample_y(X, v) if not isinstance(v, int) or v < 9 else None,
    "random_state": lambda gp, X, v: gp.sample_y(X, 1, v),
    "score": lambda gp, X, v: gp.score(X, v),
    "nlpd": lambda gp, X, v: gp.nlpd(X, v),
    "novelty": lambda gp, X, v: gp.novelty(v),
    "partial_fit": lambda gp, X, v: gp.partial_fit(X, v),
    "drop_experts": lambda gp, X, v: gp.drop_experts(v),
    "fit X": lambda gp, X, v: tiny().fit(v, np.zeros(3)),
    "fit y": lambda gp, X, v: tiny().fit(X, v),
    "sample_weight": lambda gp, X, v: tiny().fit(X, X[:, 0], v),
    "ColumnPartition": lambda gp, X, v: tiny(partition=ColumnPartition(v)).fit(X, X[:, 0]),
    "TwoLevel": lambda gp, X, v: gp.predict(X, aggregation=TwoLevel(n_central=v)),
    "Opt": lambda gp, X, v: gp.predict(X, aggregation=Opt(ridge=v)),
    "GRBCM": lambda gp, X, v: tiny(aggregation=GRBCM(), n_experts=v).fit(X, X[:, 0]),
    "load": lambda gp, X, v: distgp.load(v) if not isinstance(v, int) else None,
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_every_value_for_every_argument(name):
    X, y = data()
    rng = np.random.default_rng(sum(map(ord, name)))
    for place in rng.permutation(len(VALUES))[: times(6, len(VALUES))]:
        value = VALUES[place]
        gp = tiny().fit(X, y)
        try:
            outcome("values of arguments", lambda: METHODS[name](gp, X[:3], value))  # noqa: B023
        except AssertionError as error:
            raise AssertionError(f"{name}({value!r:.80}): {error}") from error


def test_errors_name_what_was_expected_what_came_and_the_remedy():
    X, y = data()
    expected = {
        "device must be a name such as 'cpu' or 'cuda', got 1.5": {"device": 1.5},
        "dtype must be one of 'float64', 'float32', got []": {"dtype": []},
        "learning_rate must be a positive number, at most 1e6, or None, got 1" + "0" * 30: {
            "learning_rate": 10**30
        },
        "normalize must be one of True, False, got 'foo'": {"normalize": "foo"},
        "must name one of the 2 input columns by its place, 0 to 1, got 9": {
            "partition": ColumnPartition(9)
        },
        "noise must be a positive, finite variance, got 1" + "0" * 400: {"noise": 10**400},
    }
    for text, parameters in expected.items():
        with pytest.raises(ValueError, match=re.escape(text)):
            tiny(**parameters).fit(X, y)
    with pytest.raises(ValueError, match="level must be a positive integer or 'auto', got 0"):
        distgp.SparseGridGP(level=0).fit(X, y)


def test_long_doubles_are_numbers():
    X, y = data()
    one, other = (tiny().fit(X, y.astype(kind)) for kind in (np.float64, np.longdouble))
    np.testing.assert_array_equal(one.predict(X), other.predict(X))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float64", 1e36), ("float64", 1e155), ("float64", -1e300), ("float32", 1e19)],
)
@pytest.mark.parametrize("expert", [*distgp.EXPERTS])
def test_fill_values_are_refused_not_predicted_as_nan(dtype, value, expert):
    X, y = data()
    gp = tiny(expert=expert, dtype=dtype).fit(X, y)
    grid = distgp.SparseGridGP(level=2, training=None).fit(X, y)
    far = np.array([[0.0, value], [0.0, 0.0]])
    for call in (grid.predict, grid.predict_with_interval):
        with pytest.raises(ValueError, match=r"an input is .* too far from the training rows"):
            call(far)
    for call in (gp.predict, gp.predict_interval, gp.sample_y, gp.novelty):
        with pytest.raises(ValueError, match=r"an input is .* too far from the training rows"):
            call(far)
    with pytest.raises(ValueError, match="an input is"):
        gp.partial_fit(far, [0.0, 1.0])


def test_large_numbers_that_are_not_standardised_are_left_alone():
    """Nanoseconds, say, with a lengthscale in these."""
    X, y = data()
    one, other = (
        tiny(kernel=f"matern52({unit})", normalize=False, training=None).fit(unit * X, y)
        for unit in (1.0, 2.0**120)
    )
    np.testing.assert_allclose(one.predict(X), other.predict(2.0**120 * X), rtol=1e-9)


@pytest.mark.parametrize("unit", [2.0**120, 2.0**-120, 2.0**330])
@pytest.mark.parametrize("expert", ["exact", "sparse"])
@pytest.mark.parametrize("named", [True, False])
def test_lengthscales_in_units_far_from_one_are_trained_as_others(unit, expert, named):
    """The numbers that training may reach lie around those that it starts from, not around 1."""
    X, y = data()
    kernels = [f"matern52({u!r})" if named else distgp.Matern52([u, u]) for u in (1.0, unit)]
    one, other = (tiny(kernel=k, expert=expert, normalize=False, n_iter=8) for k in kernels)
    found = one.fit(X, y).predict(X), other.fit(unit * X, y).predict(unit * X)
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")  # nothing can be learnt there, which it says
@pytest.mark.parametrize("bounds", [(1e30, 1e31), (1e-31, 1e-30)])
def test_bounds_far_from_where_training_starts_are_kept(bounds):
    X, y = data()
    gp = tiny(bounds={"lengthscale": bounds}, n_iter=8).fit(X, y)
    found = gp.training_.parameters.kernel.parameters()
    lengths = next(value for name, value in found.items() if name.endswith("lengthscale"))
    assert ((lengths >= bounds[0] * (1 - 1e-9)) & (lengths <= bounds[1] * (1 + 1e-9))).all()


def test_what_overflows_in_the_kernel_is_refused():
    X, y = data()
    gp = tiny(kernel="linear * linear * linear * linear", normalize=False).fit(X, y)
    for std in (True, False):
        with pytest.raises(ValueError, match="a prediction is too large to compute"):
            gp.predict([[1e90, 0.0]], return_std=std)


def test_targets_out_of_range_are_refused_in_new_rows_as_in_the_first():
    X, y = data()
    with pytest.raises(ValueError, match="cannot be standardised"):
        tiny().fit(X, y * 1e300)
    with pytest.raises(ValueError, match=r"a target is .* in other units"):
        tiny().fit(X, y).partial_fit(X, y * 1e300)


@pytest.mark.parametrize("value", [1e20, 1e36, -1e120])
def test_one_fill_value_among_the_training_rows_is_refused(value):
    X, y = data()
    for place in (0, 1):
        wrong = X.copy()
        wrong[5, place] = value
        with pytest.raises(ValueError, match=r"an input is .* stands for a missing value"):
            tiny().fit(wrong, y)
    y[5] = value
    with pytest.raises(ValueError, match=r"a target is .* stands for a missing value"):
        tiny().fit(X, y)


def test_large_and_uneven_columns_are_no_fill_values():
    X, y = data(60)
    x = X[:, 0]
    uneven = [
        1e100 * x,
        np.where(x > 0.8, 1e30, 0.0),
        1e17 + 1e3 * x,
        np.exp(100 * x),
        np.exp(-500 * x**2),
    ]
    tiny().fit(np.column_stack(uneven), y)


@pytest.mark.parametrize("transform", ["log", "yeo-johnson"])
def test_predictions_of_transformed_targets_are_finite_or_refused(transform):
    X, y = data()
    gp = tiny(target_transform=transform, kernel="linear").fit(X, np.exp(3 * y))
    calls = gp.predict, gp.predict_interval, gp.sample_y, gp.predict_with_interval
    for call in calls:
        with pytest.raises(ValueError, match="a prediction is too large to compute"):
            call([[1e14, 0.0], [0.0, 0.0]])
    assert np.isfinite(gp.predict(X, return_std=True)).all()
    with pytest.raises(ValueError, match=r"in other units"):
        tiny(target_transform="yeo-johnson").fit(X, y * 1e200)


def test_an_error_of_another_library_is_seen_wherever_it_lies(tmp_path):
    """Also in a folder named distgp, as that of a clone is, which holds all libraries it was tried with."""
    code = "def refuse():\n    raise ValueError('a clear text')\n"
    inside = os.path.join(os.path.dirname(distgp.__file__), "refusing.py")
    outside = tmp_path / "distgp" / ".venv" / "site-packages" / "other" / "refusing.py"
    for place, fine in ((inside, True), (str(outside), False)):
        space = {}
        exec(compile(code, place, "exec"), space)
        with pytest.raises(ValueError, match="a clear text") as found:
            space["refuse"]()
        assert (unclear(found.value) is None) == fine
