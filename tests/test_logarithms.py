"""Skewed targets: the logarithm that target_transform="auto" measures, and bounds below zero."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import distgp
from distgp import DistributedGPRegressor
from distgp.diagnostics import metrics
from distgp.diagnostics.calibration import NegativeBoundWarning
from distgp.likelihoods.transforms import Log, asks_for_log
from distgp.selection import logarithms
from distgp.selection.trials import scored


def skewed(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, np.exp(1.5 * np.sin(6 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=n))


def plain(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, 10 + np.sin(6 * X[:, 0]) + 0.3 * rng.normal(size=n)


WAYS = {
    "all left to us": {},
    "exact": {"expert": "exact", "n_experts": 1},
    "sparse": {"expert": "sparse", "n_inducing": 30},
    "calibrated": {"expert": "exact", "n_experts": 1, "calibrate": "conformal"},
    "kernel": {"expert": "exact", "n_experts": 1, "kernel": "auto"},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_logarithm_of_a_skewed_target_is_taken_where_it_is_better(way, tmp_path):
    X, y = skewed(400)
    gp = DistributedGPRegressor(target_transform="auto", n_iter=15, **WAYS[way]).fit(X, y)
    assert gp.settled_["target_transform"] == "log"
    assert gp.model_.targets[0].transform == Log() and "log" in gp.choice_.best.name
    X_new, y_new = skewed(300, seed=1)
    if way == "all left to us":  # measured on all rows, in folds
        assert gp.choice_.best.nlpd == pytest.approx(gp.nlpd(X, y), abs=0.1)
    lower, _ = gp.predict_interval(X_new)
    assert (lower > 0).all()
    gp.save(tmp_path / "model.safetensors")
    again = distgp.load(tmp_path / "model.safetensors")
    assert again.target_transform == "auto" and again.settled_ == gp.settled_
    np.testing.assert_array_equal(again.predict(X_new), gp.predict(X_new))
    again.partial_fit(X_new, y_new)
    assert again.model_.targets[0].transform == Log()


@pytest.mark.parametrize("rows", [plain(300), skewed(150)], ids=["not skewed", "few rows"])
def test_other_targets_are_left_as_they_are(rows):
    given = {"expert": "exact", "n_experts": 1, "n_iter": 10}
    gp = DistributedGPRegressor(target_transform="auto", **given).fit(*rows)
    assert gp.settled_ == {"target_transform": None} and gp.choice_ is None
    other = DistributedGPRegressor(**given).fit(*rows)
    np.testing.assert_array_equal(gp.predict(rows[0][:9]), other.predict(rows[0][:9]))


def test_a_skewed_target_whose_logarithm_is_no_better_stays():
    # Skewed by the inputs, with noise of one size: the logarithm would make the noise uneven.
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 1))
    y = 2.5 + 60 * X[:, 0] ** 8 + 0.4 * rng.normal(size=400)
    assert asks_for_log(y[:, None])
    gp = DistributedGPRegressor(
        target_transform="auto", expert="exact", n_experts=1, n_iter=30
    ).fit(X, y)
    assert gp.settled_ == {"target_transform": None}
    assert gp.model_.targets[0].transform is None
    assert {trial.name for trial in gp.choice_.trials if not trial.baseline} == {
        "as given",
        "as given, log",
    }


def test_a_second_fit_keeps_the_choice():
    X, y = skewed(300)
    gp = DistributedGPRegressor(
        target_transform="auto", expert="exact", n_experts=1, n_iter=10, warm_start=True
    ).fit(X, y)
    table = gp.choice_
    assert gp.fit(X, y).choice_.trials == table.trials and gp.model_.targets[0].transform == Log()
    gp.set_params(target_transform=None).fit(X, y)
    assert gp.model_.targets[0].transform is None


@pytest.mark.parametrize(
    ("y", "wanted"),
    [
        (np.exp(np.random.default_rng(0).normal(size=(500, 1))), True),
        (np.exp(np.random.default_rng(0).normal(size=(500, 1))) - 0.1, False),
        (10 + np.random.default_rng(0).normal(size=(500, 1)), False),
        (20 - np.exp(0.5 * np.random.default_rng(0).normal(size=(500, 1))), False),
        (np.random.default_rng(0).lognormal(size=(500, 2)) - [0, 0.1], False),
    ],
    ids=["log-normal", "not all positive", "normal", "skewed to the left", "one of two"],
)
def test_only_positive_skewed_targets_ask_for_the_logarithm(y, wanted):
    assert asks_for_log(y) is wanted


def test_figures_are_those_of_the_target_itself():
    rng = np.random.default_rng(0)
    y = rng.lognormal(size=(50, 2))
    mean, variance = rng.normal(size=(50, 2)), rng.uniform(0.5, 2.0, size=(50, 2))
    trial = scored("log", np.log(y), mean, np.sqrt(variance), 1.0)
    each = -0.5 * (np.square(np.log(y) - mean) / variance + np.log(variance))
    found, densities = logarithms.of_target(trial, each.sum(1), y, (mean, variance), (Log(), Log()))
    from scipy.stats import lognorm

    wanted = lognorm(np.sqrt(variance), scale=np.exp(mean))
    assert found.nlpd == pytest.approx(-wanted.logpdf(y).mean())
    assert found.rmse == pytest.approx(metrics.rmse(y, wanted.mean()))
    assert found.cover == trial.cover
    constant = -0.5 * np.log(2 * np.pi) * 2
    np.testing.assert_allclose(densities + constant, wanted.logpdf(y).sum(1))


def test_noise_variances_of_rows_and_files_leave_the_target_as_it_is(tmp_path):
    X, y = skewed(220)
    gp = DistributedGPRegressor("exact", 1, target_transform="auto", training=None)
    assert gp.fit(X, y, noise_variance=np.full(220, 0.1)).settled_ == {"target_transform": None}
    pd.DataFrame({"a": X[:, 0], "y": y}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="'auto' looks at all targets"):
        gp.fit_parquet(str(tmp_path / "rows.parquet"), "y")


def test_bounds_below_zero_of_a_target_that_never_was_are_told(tmp_path):
    X, y = skewed(120)
    gp = DistributedGPRegressor("exact", 1, training=None, noise=1.0).fit(X, y)
    for model in (gp, _saved(gp, tmp_path)):
        for predict in (model.predict_interval, model.predict_with_interval):
            with pytest.warns(NegativeBoundWarning, match="fit with target_transform='log'"):
                predict(X)
    gp.predict_quantiles(X, 0.05)
    gp.predict(X, return_std=True)


def _saved(gp, tmp_path):
    gp.save(tmp_path / "model.safetensors")
    return distgp.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "shift", [0.5, 100.0], ids=["some targets are negative", "bounds above zero"]
)
def test_other_bounds_are_no_news(shift):
    X, y = skewed(120)
    shift = -shift if shift < 1 else shift
    given = {"training": None, "noise": 1.0}
    DistributedGPRegressor("exact", 1, **given).fit(X, y + shift).predict_interval(X)
    DistributedGPRegressor("exact", 1, target_transform="log", **given).fit(X, y).predict_interval(
        X
    )
    DistributedGPRegressor("exact", 1, **given).fit(X[:40], y[:40]).predict_interval(X)  # too few


def test_negative_rows_that_are_added_end_the_hint():
    X, y = skewed(120)
    gp = DistributedGPRegressor("exact", 1, training=None, noise=1.0).fit(X, y)
    gp.partial_fit(X[:2] + 0.01, [1.0, -1.0])
    gp.predict_interval(X)


def test_rows_in_files_are_looked_at_too(tmp_path):
    X, y = skewed(120)
    for sign in (1.0, -1.0):
        path = tmp_path / f"{sign}.parquet"
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.append(y[:-1], sign)}).to_parquet(path)
        gp = DistributedGPRegressor("sparse", training=None, noise=1.0, n_inducing=20)
        gp.fit_parquet(str(path), "y")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            gp.predict_interval(X)
        kinds = [one.category for one in told]
        assert kinds == ([NegativeBoundWarning] if sign > 0 else [])


def test_files_of_earlier_versions_say_nothing(tmp_path):
    X, y = skewed(120)
    gp = DistributedGPRegressor("exact", 1, training=None, noise=1.0).fit(X, y)
    (target,) = gp.model_.targets
    old = replace(target, scaling=replace(target.scaling, never_negative=False))
    gp.model_ = replace(gp.model_, targets=(old,))
    gp.predict_interval(X)
