"""Kernels as texts through the estimator: units of the data, columns by name, periods that stay."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import distgp
from distgp import DistributedGPRegressor, Matern52, Periodic

FIXED = {"expert": "sparse", "n_inducing": 60, "n_iter": 30}


def hourly(n=1200, seed=0):
    """Three weeks and more of a day's and a week's rhythm, hour by hour from 5,000 on."""
    hours = 5000.0 + np.arange(n)
    day, week = np.sin(2 * np.pi * hours / 24), np.cos(2 * np.pi * hours / 168)
    y = 100 + 30 * day + 20 * week * day + 2 * np.random.default_rng(seed).normal(size=n)
    return hours, y


def error(gp, X, y):
    return float(np.sqrt(np.mean((gp.predict(X) - y) ** 2)))


@pytest.mark.filterwarnings("ignore::distgp.diagnostics.novelty.NoveltyWarning")
@pytest.mark.filterwarnings(
    "ignore::distgp.diagnostics.findings.NothingLearntWarning"
)  # by the plain kernel
def test_periods_in_hours_forecast_where_standardised_ones_cannot():
    hours, y = hourly()
    X, n = hours[:, None], 900
    text = "periodic(24) * periodic(168) + matern52"
    gp = DistributedGPRegressor(kernel=text, **FIXED).fit(X[:n], y[:n])
    assert error(gp, X[n:], y[n:]) < 4.0
    plain = DistributedGPRegressor(kernel="matern52", **FIXED).fit(X[:n], y[:n])
    assert error(plain, X[n:], y[n:]) > 15.0
    scale = gp.model_.targets[0].scaling.x_scale[0]
    periods = [k.period.item() * scale for k in gp.kernel_.kernels[0].kernel.kernels]
    np.testing.assert_allclose(periods, [24.0, 168.0])  # a period given stays


@pytest.mark.filterwarnings("ignore::distgp.diagnostics.novelty.NoveltyWarning")
def test_periods_of_dates_have_units(tmp_path):
    hours, y = hourly()
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(hours, unit="h")
    table, n = pd.DataFrame({"when": when}), 900
    text = "periodic(24 h) * periodic(1 week) + matern52(columns=when)"
    gp = DistributedGPRegressor(kernel=text, dates="expand", **FIXED).fit(table[:n], y[:n])
    assert error(gp, table[n:], y[n:]) < 4.0
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    assert again.kernel == text
    np.testing.assert_array_equal(again.predict(table[n:]), gp.predict(table[n:]))


def test_an_object_in_the_datas_units_is_the_text():
    hours, y = hourly(400)
    given = {"training": None, "noise": 0.1, "expert": "exact", "n_experts": 1}
    text = DistributedGPRegressor(kernel="periodic(24) + matern52(50)", **given)
    made = 1.0 * Periodic(1.0, 24.0) + 1.0 * Matern52(50.0)
    units = DistributedGPRegressor(kernel=made, kernel_units="data", **given)
    X = hours[:, None]
    np.testing.assert_allclose(text.fit(X, y).predict(X), units.fit(X, y).predict(X))
    plain = DistributedGPRegressor(kernel=made, **given).fit(X, y)
    assert np.abs(plain.predict(X) - units.predict(X)).max() > 1.0


@pytest.mark.parametrize("fixed", [[], ["period"]])
def test_a_period_stays_where_training_starts_from_other_rows(fixed):
    """Trials, and earlier fits, have other rows with other scales: a period is another number there."""
    hours, y = hourly(400)
    X = hours[:, None]
    gp = DistributedGPRegressor(kernel="periodic(24) + matern52", fixed=fixed, n_iter=20).fit(X, y)
    assert gp.choice_ is not None
    again = DistributedGPRegressor(
        kernel="periodic(24) + matern52", fixed=fixed, warm_start=True, **FIXED
    )
    for model in (gp, again.fit(X[:200], y[:200]), again.fit(X, y)):
        (period,) = [q.value for q in model.summary().targets[0].quantities if q.name == "period"]
        assert period == pytest.approx(24.0, rel=1e-12)


def test_columns_by_name_in_texts_and_objects():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(-1, 1, (300, 3)), columns=["temp", "wind", "x y"])
    y = np.sin(3 * table["temp"]).to_numpy() + 0.05 * rng.normal(size=300)
    text = DistributedGPRegressor(kernel="matern52(columns=temp)", **FIXED).fit(table, y)
    made = DistributedGPRegressor(kernel=1.0 * Matern52(1.0, active_dims=["temp"]), **FIXED).fit(
        table, y
    )
    assert text.kernel_.kernel.active_dims == made.kernel_.kernel.active_dims == (0,)
    np.testing.assert_allclose(text.predict(table), made.predict(table), atol=0.02)
    both = "matern52(columns=[temp, 'x y']) + linear"
    assert DistributedGPRegressor(kernel=both, **FIXED).fit(table, y).kernel_.kernels[
        0
    ].kernel.active_dims == (0, 2)
    with pytest.raises(ValueError, match=r"tmp.*temp"):
        DistributedGPRegressor(kernel="matern52(columns=tmp)", **FIXED).fit(table, y)


def test_the_choice_knows_the_columns():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(-1, 1, (400, 2)), columns=["temp", "wind"])
    y = np.sin(3 * table["temp"]).to_numpy() + 0.05 * rng.normal(size=400)
    gp = DistributedGPRegressor(kernel="matern52(columns=temp) + linear").fit(table, y)
    assert gp.choice_ is not None and not any(trial.error for trial in gp.choice_.trials)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("periodic(24 h)", "24"),
        ("periodic", "period"),
        ("matern52 +", "expected"),
        ("matern25", "matern52"),
        ("__import__('os')", "kernel"),
    ],
)
def test_mistakes_are_told_in_one_line(text, message):
    X, y = hourly(100)
    with pytest.raises(ValueError, match=message) as told:
        DistributedGPRegressor(kernel=text, **FIXED).fit(X[:, None], y)
    assert "\n" not in str(told.value)
