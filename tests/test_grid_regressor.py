"""The estimator on sparse grids, through its public face."""

import re
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import distgp
from distgp import SparseGridGP
from distgp.sparsegrid import VarianceWarning


def make_data(n, seed=0, d=2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) + 0.1 * rng.normal(size=n)


@parametrize_with_checks(
    [SparseGridGP(level=2, n_iter=5), SparseGridGP(level=2, n_iter=5, combination="full")]
)
@pytest.mark.filterwarnings("ignore::distgp.sparsegrid.VarianceWarning")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("combination", ["opticom", "ct", "full"])
def test_defaults_fit_a_smooth_function(combination):
    X, y = make_data(1500)
    X_new, y_new = make_data(1000, seed=1)
    gp = SparseGridGP(combination=combination).fit(X, y)
    mean, std = gp.predict(X_new, return_std=True)
    assert np.sqrt(np.mean((mean - y_new) ** 2)) < 0.115
    assert 0.85 < (np.abs(mean - y_new) < 1.645 * std).mean() < 0.95
    assert gp.n_floored_ == 0 and gp.nlpd(X_new, y_new) < -0.7
    assert gp.level_ > 2 and gp.n_floored_ == 0 and gp.training_.stopped == "tolerance"
    b = len(gp.coefficients_)
    assert gp.grids_.shape == (b, 2) and gp.bounds_.shape == (b,)
    assert gp.ct_coefficients_.sum() == 1.0


def test_auto_takes_higher_levels_for_rougher_functions():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(2000, 1))
    levels = [
        SparseGridGP().fit(X, np.sin(w * X[:, 0]) + 0.1 * rng.normal(size=2000)).level_
        for w in (3.0, 60.0)
    ]
    assert levels[0] + 2 <= levels[1] < 10


def test_predictions_follow_the_units_of_the_data():
    X, y = make_data(400)
    X_new, _ = make_data(20, seed=1)
    gp = SparseGridGP(level=3, n_iter=10).fit(X, y)
    moved = SparseGridGP(level=3, n_iter=10).fit(X * [1e3, 1e-4] + [5, -7], 50 + 1e4 * y)
    mean, std = gp.predict(X_new, return_std=True)
    mean2, std2 = moved.predict(X_new * [1e3, 1e-4] + [5, -7], return_std=True)
    np.testing.assert_allclose(mean2, 50 + 1e4 * mean, rtol=1e-5)
    np.testing.assert_allclose(std2, 1e4 * std, rtol=1e-5)


def test_covariance_and_floor():
    X, y = make_data(3000)
    rough = SparseGridGP(
        level=6, kernel=distgp.Matern32(0.3), noise=1e-3, training=None, normalize=False
    ).fit(X, y)
    X_new, _ = make_data(200, seed=1)
    with pytest.warns(VarianceWarning, match=r"at \d+ of 200 points"):
        _, std = rough.predict(X_new, return_std=True, latent=True)
    floored = rough.n_floored_
    assert 0 < floored < 200
    lowest = 1e-3 / (1e-3 + 3000)
    assert std.min() == pytest.approx(np.sqrt(lowest), rel=1e-9)
    with pytest.warns(VarianceWarning):
        _, covariance = rough.predict(X_new, return_cov=True, latent=True)
    assert rough.n_floored_ == floored
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    np.testing.assert_array_equal(covariance, covariance.T)
    with pytest.warns(VarianceWarning):
        observed = rough.predict(X_new, return_cov=True)[1]
    np.testing.assert_allclose(np.diag(observed), np.diag(covariance) + 1e-3, rtol=1e-9)


def test_box_boundary_and_named_training_grid():
    X, y = make_data(300)
    gp = SparseGridGP(level=3, box=[(-3, 3), (-4, 4)], boundary=True, training=(3, 2), n_iter=5)
    gp.fit(X, y)
    model = gp.model_.targets[0]
    points = model.scaling.original(model.posterior.basis.grid.points(model.box))
    np.testing.assert_allclose([points.min(0), points.max(0)], [[-3, -4], [3, 4]])
    assert len(points) == gp.describe(300, 2).union
    inner = SparseGridGP(level=3, training=None).fit(X, y).model_.targets[0]
    inner_points = inner.scaling.original(inner.posterior.basis.grid.points(inner.box))
    assert (inner_points > X.min(0)).all() and (inner_points < X.max(0)).all()


@pytest.mark.parametrize("kernel", ["rbf", distgp.Matern32([1.0, 1.0])])
@pytest.mark.filterwarnings("ignore::distgp.sparsegrid.VarianceWarning")
def test_save_and_load(kernel, tmp_path):
    X, y = make_data(300)
    names = pd.DataFrame(X, columns=["a", "b"])
    gp = SparseGridGP(level=3, n_iter=5, kernel=kernel, box=(-2, 2), training=(2, 2)).fit(names, y)
    gp.save(tmp_path / "model.safetensors")
    again = distgp.load(tmp_path / "model.safetensors")
    assert isinstance(again, SparseGridGP) and list(again.feature_names_in_) == ["a", "b"]
    for ours, theirs in zip(
        gp.predict(names, return_std=True), again.predict(names, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert again.get_params()["level"] == 3 and clone(again).fit(names, y).level_ == 3
    joblib.dump(gp, tmp_path / "gp.joblib")
    np.testing.assert_array_equal(
        joblib.load(tmp_path / "gp.joblib").predict(names), gp.predict(names)
    )


def test_several_targets():
    X, y = make_data(300)
    both = np.column_stack([y, 5 - 2 * y])
    gp = SparseGridGP(level=3, n_iter=5).fit(X, both)
    mean, std = gp.predict(X, return_std=True)
    assert mean.shape == std.shape == (300, 2) and len(gp.coefficients_) == 2
    alone = SparseGridGP(level=3, n_iter=5).fit(X, both[:, 1]).predict(X)
    np.testing.assert_allclose(mean[:, 1], alone, rtol=1e-8)


def test_mistakes_are_explained():
    X, y = make_data(60)
    with pytest.raises(NotFittedError):
        SparseGridGP().predict(X)
    for changes, words in [
        ({"level": 0}, "level must be a positive integer or 'auto', got 0"),
        ({"n_iter": 0}, "n_iter must be a positive integer, got 0"),
        ({"training_rows": 0}, "training_rows must be a positive integer or None or 'auto', got 0"),
        ({"combination": "best"}, "combination must be one of 'opticom', 'ct', 'full', got 'best'"),
        ({"training": (2,)}, "the 2 levels of one grid"),
        ({"training": "fedavg"}, "the 2 levels of one grid"),
        ({"boundary": "no"}, "boundary must be one of True, False, got 'no'"),
        ({"box": (1, 0)}, "lower < upper"),
        ({"kernel": "nonsense"}, "kernel must be one of"),
        ({"noise": 0}, "noise must be a positive"),
        ({"max_memory": -1}, "max_memory must be"),
        ({"device": "cuda:99"}, "not available here"),
    ]:
        with pytest.raises(ValueError, match=words):
            SparseGridGP(**changes).fit(X, y)
    with pytest.raises(MemoryError, match="lower the level"):
        SparseGridGP(level=12).fit(np.random.default_rng(0).normal(size=(50, 8)), y[:50])
    with pytest.raises(MemoryError, match=r"0\.0001 GiB are allowed"):
        SparseGridGP(level=3, max_memory=0.0001).fit(X, y)
    with pytest.raises(MemoryError, match="GiB are allowed"):  # it is training that would not fit
        SparseGridGP(level=2, max_memory=0.1, training=(9, 9)).fit(X, y)
    with pytest.raises(ValueError, match="constant"):
        SparseGridGP().fit(X, np.ones(60))
    with pytest.raises(ValueError, match="not both"):
        SparseGridGP(level=2, training=None).fit(X, y).predict(X, return_std=True, return_cov=True)


def test_describe_before_any_work():
    text = str(SparseGridGP(level=5).describe(n=1_000_000, d=3))
    assert "31, the largest of 63 points" in text and "351 points" in text
    assert SparseGridGP(level=4, kernel=distgp.Matern32(1.0)).describe(100, 2).kronecker is False
    assert SparseGridGP(level=4).describe(100, 2).kronecker is True
    assert SparseGridGP().describe(100, 2).union <= 1024


def test_training_uses_the_grid_that_is_named():
    X, y = make_data(300)
    options = {"level": 3, "n_iter": 8, "random_state": 0}
    fits = {
        str(levels): SparseGridGP(training=levels, **options).fit(X, y)
        for levels in [(1, 3), (3, 1), np.array([3, 1]), "union"]
    }
    sizes = {name: gp.training_.parameters.inducing.shape for name, gp in fits.items()}
    assert sizes == {"(1, 3)": (7, 2), "(3, 1)": (7, 2), "[3 1]": (7, 2), "union": (17, 2)}
    assert fits["(3, 1)"].noise_ == fits["[3 1]"].noise_ != fits["(1, 3)"].noise_


@pytest.mark.parametrize(
    ("options", "n"),
    [
        ({"level": 5, "n_iter": 3}, 20_000),
        ({"level": 8, "training": None, "combination": "full"}, 500),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_the_memory_told_is_about_what_it_takes(options, n):
    script = f"""
import re, numpy as np
from distgp import SparseGridGP
rng = np.random.default_rng(0)
SparseGridGP(level=2, n_iter=2).fit(rng.normal(size=(50, 2)), rng.normal(size=50))
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
SparseGridGP(**{options!r}).fit(rng.normal(size=({n}, 2)), rng.normal(size={n}))
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    told = SparseGridGP(**options).describe(n, 2).memory
    assert told / 3 < int(done.stdout) < 1.5 * told


def test_messages_name_remedies_that_there_are():
    """Missing values, texts and dates in tables are the other regressor's."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(40, 2)), columns=["a", "b"])
    y = table["a"].to_numpy()
    gap = table.assign(a=table["a"].where(table.index != 3))
    when = np.full((40, 1), np.datetime64("2024-01-01", "s"))
    gp = SparseGridGP(level=2, training=None)
    fitted = SparseGridGP(level=2, training=None).fit(table, y)
    for call, remedy in (
        (lambda: gp.fit(gap, y), "leave those rows out or fill them in"),
        (lambda: gp.fit(table, gap["a"]), "leave those rows out, since targets are never imputed"),
        (lambda: gp.fit(table.assign(c="x"), y), "pandas.to_numeric"),
        (lambda: gp.fit(when, y), "make numbers in a unit of your choice"),
        (lambda: fitted.predict(gap), "fill them in, or leave those rows out"),
    ):
        with pytest.raises(ValueError, match=remedy) as found:
            call()
        assert not re.search("missing=|dates=|--missing|may hold text", str(found.value))
