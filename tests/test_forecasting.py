"""Backtests: folds of the past, figures by hand, peers by hand, and tables of three libraries."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor

import distgp
from distgp import DistributedGPRegressor, metrics
from distgp.data.encoding import learn
from distgp.forecasting import backtest

QUICK = {
    "expert": "exact",
    "n_experts": 1,
    "training": None,
    "dates": "expand",
    "kernel": "periodic(24 h, columns=when) + matern52(3 days, columns=when) + linear(columns=warm)",
}


def hourly(days=12, seed=0):
    """A daily rhythm with a slow change and noise, hour by hour."""
    rng = np.random.default_rng(seed)
    when = pd.date_range("2026-03-01", periods=24 * days, freq="h")
    warm = rng.normal(size=len(when))
    daily = np.sin(2 * np.pi * np.arange(len(when)) / 24)
    load = 50 + 10 * daily + np.cumsum(0.1 * rng.normal(size=len(when))) + warm
    return pd.DataFrame({"when": when, "warm": warm, "load": load})


def of(found, model, by="all", **where):
    """The figures of one model."""
    lines = [line for line in found.table(by).to_pylist() if line["model"] == model]
    return next(line for line in lines if all(line[k] == v for k, v in where.items()))


def test_folds_are_learnt_from_what_was_before_and_figures_are_those_by_hand():
    table, gp = hourly(), DistributedGPRegressor(**QUICK)
    mixed = table.sample(frac=1.0, random_state=0)
    found = backtest(gp, mixed, time="when", target="load", horizon="1 day", folds=3)
    assert not hasattr(gp, "model_")
    y, mean, std, quantiles = [], [], [], []
    q = [0.05, 0.25, 0.5, 0.75, 0.95]
    for number in (1, 2, 3):
        cut = len(table) - 24 * (4 - number)
        before, after = table[:cut], table[cut : cut + 24]
        model = DistributedGPRegressor(**QUICK).fit(before[["when", "warm"]], before["load"])
        one = model.predict(after[["when", "warm"]], return_std=True)
        y.append(after["load"])
        mean.append(one[0])
        std.append(one[1])
        quantiles.append(model.predict_quantiles(after[["when", "warm"]], q))
        fold = found.folds[number - 1]
        np.testing.assert_array_equal(fold.train, np.arange(cut))
        np.testing.assert_array_equal(fold.test, np.arange(cut, cut + 24))
        np.testing.assert_array_equal(fold.step, np.arange(1, 25))
        figures = of(found, "GP", "fold", fold=number)
        assert figures["rmse"] == pytest.approx(metrics.rmse(y[-1], mean[-1]), rel=1e-9)
    y, mean, std = np.concatenate(y), np.concatenate(mean), np.concatenate(std)
    quantiles, figures = np.concatenate(quantiles), of(found, "GP")
    assert figures["rows"] == 72
    assert figures["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-9)
    assert figures["nlpd"] == pytest.approx(-norm.logpdf(y, mean, std).mean(), rel=1e-9)
    above = y[:, None] - quantiles
    losses = np.maximum(np.array(q) * above, (np.array(q) - 1) * above).mean(0)
    assert [figures[f"pinball_{one:g}"] for one in q] == pytest.approx(losses.tolist(), rel=1e-9)
    assert figures["pinball"] == pytest.approx(losses.mean(), rel=1e-9)
    for low, high, name in ((0, 4, "cover_0.9"), (1, 3, "cover_0.5")):
        inside = (quantiles[:, low] <= y) & (y <= quantiles[:, high])
        assert figures[name] == pytest.approx(inside.mean())
    # A day ahead is told in six parts of four hours, each of three folds.
    lines = [line for line in found.table().to_pylist() if line["model"] == "GP"]
    assert [(line["first_step"], line["last_step"]) for line in lines] == [
        (1, 4), (5, 8), (9, 12), (13, 16), (17, 20), (21, 24)
    ]  # fmt: skip
    first = np.tile(np.arange(24) < 4, 3)
    assert lines[0]["rmse"] == pytest.approx(metrics.rmse(y[first], mean[first]), rel=1e-9)
    assert lines[0]["nlpd"] == pytest.approx(metrics.nlpd(y[first], mean[first], std[first] ** 2))
    assert [line["rows"] for line in lines] == [12] * 6


def test_a_window_moves_and_steps_are_those_of_the_series():
    table = hourly()
    options = {"time": "when", "target": "load", "folds": 2}
    gp = DistributedGPRegressor(**QUICK)
    found = backtest(gp, table, horizon=12, window="2 days", **options)
    n = len(table)
    for fold, start in zip(found.folds, (n - 24, n - 12), strict=True):
        np.testing.assert_array_equal(fold.train, np.arange(start - 48, start))
        np.testing.assert_array_equal(fold.test, np.arange(start, start + 12))
    same = backtest(
        gp, table, horizon=datetime.timedelta(hours=12), window=np.timedelta64(48, "h"), **options
    )
    assert same.table("all").to_pylist() == found.table("all").to_pylist()
    with_gaps = table.drop(index=[n - 3, n - 20])
    gaps = backtest(gp, with_gaps, horizon=12, **options)
    assert [len(fold.test) for fold in gaps.folds] == [11, 11]
    assert gaps.folds[1].step.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12]


def test_the_seasonal_naive_repeats_the_last_season_that_is_known():
    table = hourly(20).drop(index=[24 * 18 - 5])
    found = backtest(
        DistributedGPRegressor(**QUICK), table, time="when", target="load", horizon="2 days",
        folds=1, season="1 day",
    )  # fmt: skip
    fold = found.folds[0]
    known = dict(zip(table["when"][: len(fold.train)], table["load"], strict=False))
    wanted, lags = [], []
    for when in table["when"].iloc[fold.test]:
        lag = 1
        while when - lag * pd.Timedelta("1 day") not in known:
            lag += 1
        wanted.append(known[when - lag * pd.Timedelta("1 day")])
        lags.append(lag)
    assert set(lags) == {1, 2, 3}  # the second day repeats the same day, and a gap the day before
    naive = found.forecasts["seasonal naive"]
    np.testing.assert_allclose(naive.mean, wanted, rtol=1e-12)
    for lag in (1, 2, 3):
        back = {when + lag * pd.Timedelta("1 day"): value for when, value in known.items()}
        spread = np.sqrt(np.mean([(known[w] - back[w]) ** 2 for w in known if w in back]))
        rows = np.array(lags) == lag
        width = naive.quantiles[rows, -1] - naive.quantiles[rows, 0]
        np.testing.assert_allclose(width, 2 * norm.ppf(0.95) * spread, rtol=1e-9)
    assert "1 day (given)" in str(found)


@pytest.mark.parametrize(
    ("days", "freq", "said"),
    [
        (20, "h", "1 week (guessed)"),
        (10, "30min", "1 day (guessed)"),
        (60, "D", "1 week (guessed)"),
        (1500, "MS", "1 year (guessed)"),
        (500, "MS", "none (the last value is repeated"),
        (10, "h", "1 day (guessed)"),
    ],
)
def test_the_season_is_guessed_from_the_spacing_and_told(days, freq, said):
    when = pd.date_range("2020-01-01", periods=days, freq="D")
    when = pd.date_range(when[0], when[-1], freq=freq)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"when": when, "y": rng.normal(size=len(when))})
    gp = DistributedGPRegressor(expert="exact", n_experts=1, training=None, dates="expand")
    found = backtest(gp, table, time="when", target="y", horizon=3, folds=1)
    assert f"seasonal naive: {said}" in str(found)


def test_boosting_has_the_same_columns_the_calendar_and_the_spread_of_its_last_errors():
    table = hourly()
    found = backtest(
        DistributedGPRegressor(**QUICK), table, time="when", target="load", horizon=24, folds=1
    )
    inputs = pa.Table.from_pandas(table[["when", "warm"]])
    X = learn(inputs, None, dates="expand").matrix(inputs)
    days = X[:, 0]
    X = np.column_stack([X, days % 365.2425, (days - 4) % 7, days % 1])
    hour = table["when"].dt.hour / 24
    np.testing.assert_allclose(X[:, -2], table["when"].dt.day_of_week + hour, atol=1e-9)
    np.testing.assert_allclose(X[:, -1], hour, atol=1e-9)
    y, n = table["load"].to_numpy(), len(table) - 24
    model, cut = HistGradientBoostingRegressor(random_state=0), n - round(0.2 * n)
    errors = y[cut:n] - model.fit(X[:cut], y[:cut]).predict(X[cut:n])
    mean = model.fit(X[:n], y[:n]).predict(X[n:])
    boosting = found.forecasts["gradient boosting"]
    np.testing.assert_array_equal(boosting.mean, mean)
    width = boosting.quantiles[:, -1] - boosting.quantiles[:, 0]
    assert width == pytest.approx(2 * norm.ppf(0.95) * np.sqrt(np.mean(errors**2)))


def test_tables_of_all_libraries_and_times_as_numbers():
    table = hourly()
    gp, options = DistributedGPRegressor(**QUICK), {"time": "when", "target": "load", "horizon": 24}
    found = backtest(gp, table, folds=2, **options).table().to_pylist()
    for other in (pl.from_pandas(table), pa.Table.from_pandas(table)):
        assert backtest(gp, other, folds=2, **options).table().to_pylist() == found
    zoned = table.assign(when=table["when"].dt.tz_localize("UTC"))
    assert backtest(gp, zoned, folds=2, **options).table().to_pylist() == found
    table["when"] = np.arange(len(table)) / 2
    gp = DistributedGPRegressor(expert="exact", training=None, kernel="periodic(12, columns=when)")
    plain = backtest(gp, table, folds=2, **options)
    assert "a step is 0.5" in str(plain) and "no season was given" in str(plain)
    daily = backtest(gp, table, folds=2, season=24, **options)
    assert of(daily, "seasonal naive")["rmse"] < of(plain, "seasonal naive")["rmse"]
    frame = daily.to_frame("fold")
    assert list(frame["fold"]) == [1, 1, 1, 2, 2, 2] and repr(daily) == str(daily)


def test_transforms_calibration_the_last_rows_and_rows_that_are_incomplete():
    table = hourly(16)
    table.loc[[3, len(table) - 2], "load"] = np.nan
    table.loc[len(table) - 4, "warm"] = np.nan
    options = {"time": "when", "target": "load", "horizon": 12, "folds": 1}
    with pytest.raises(ValueError, match="2 of 384 rows have no 'load' or no 'when'"):
        backtest(DistributedGPRegressor(**QUICK), table, **options)
    more = {"missing": "drop", "target_transform": "log", "calibrate": "conformal"}
    gp = DistributedGPRegressor(**QUICK, **more, validation="last")
    found = backtest(gp, table, **options)
    assert of(found, "GP")["rows"] == of(found, "gradient boosting")["rows"] == 10
    before, after = table[:-12].dropna(), table[-12:].dropna()
    model = gp.fit(before[["when", "warm"]], before["load"], time="when")
    nlpd = model.nlpd(after[["when", "warm"]], after["load"])
    assert of(found, "GP")["nlpd"] == pytest.approx(nlpd, rel=1e-9)


def test_mistakes_are_told():
    table, gp = hourly(), DistributedGPRegressor(**QUICK)
    fine = {"time": "when", "target": "load", "horizon": 24, "folds": 2}
    for change, said in [
        ({"time": "whom"}, "time='whom' is no column"),
        ({"target": "lead"}, "target='lead' is no column"),
        ({"target": "when"}, "name two columns"),
        ({"horizon": 0}, "number of steps from 1, or a duration such as '1 week'"),
        ({"horizon": "3 moons"}, "got '3 moons'"),
        ({"horizon": 1.5}, "got 1.5"),
        ({"season": "-1 day"}, "season must be"),
        ({"folds": 0}, "folds must be a positive integer"),
        ({"folds": 12}, "fold 1 of 12 has 0 rows to learn from"),
        ({"window": 5}, "has 5 rows to learn from"),
        ({"quantiles": [0.1, 1.0]}, "quantiles must be a probability"),
    ]:
        with pytest.raises(ValueError, match=said):
            backtest(gp, table, **(fine | change))
    with pytest.raises(ValueError, match="whose unit is not known"):
        backtest(gp, table.assign(when=np.arange(len(table))), **(fine | {"horizon": "1 day"}))
    with pytest.raises(ValueError, match=r"pandas\.to_datetime"):
        backtest(gp, table.assign(when=table["when"].astype(str)), **fine)
    with pytest.raises(ValueError, match="expected a table of pandas, polars or pyarrow"):
        backtest(gp, table.to_numpy(), **fine)
    with pytest.raises(ValueError, match="validation is 'last' or 'random'"):
        backtest(DistributedGPRegressor(validation="groups"), table, **fine)
    with pytest.raises(ValueError, match=r"fold 1 of 2, .* column 'when' holds dates"):
        backtest(DistributedGPRegressor(expert="exact"), table, **fine)
    with pytest.raises(
        ValueError, match=r"'when' is no column; .* it is the index, of which reset_index"
    ):
        backtest(gp, table.set_index("when"), **fine)
    with pytest.raises(ValueError, match="no row has both 'load' and 'when'"):
        backtest(gp, table[:0], **fine)
    with pytest.raises(ValueError, match=r"1 of .* or an infinite one: leave them out"):
        backtest(gp, table.assign(load=table["load"].where(table.index != 5, np.inf)), **fine)
    for wrong in (DistributedGPRegressor, table, "gp"):
        with pytest.raises(TypeError, match=r"expected a DistributedGPRegressor, .* got "):
            backtest(wrong, table, **fine)
    found = backtest(gp, table, **fine)
    with pytest.raises(ValueError, match="by must be one of 'horizon', 'fold', 'all'"):
        found.table("step")
    assert distgp.forecasting.backtest is backtest


def test_names_and_probabilities_that_are_none_are_refused():
    table, gp = hourly(), DistributedGPRegressor(**QUICK)
    right = {"time": "when", "target": "load", "horizon": 24}
    for wrong in ({"time": table["when"]}, {"target": table["load"]}):
        with pytest.raises(
            ValueError, match=f"{next(iter(wrong))} must be the name of a column, got a Series"
        ):
            backtest(gp, table, **right | wrong)
    for wrong in ([[0.1], [0.2, 0.3]], [[0.1, 0.9]], ["0.1"]):
        with pytest.raises(ValueError, match="quantiles must be a probability between 0 and 1"):
            backtest(gp, table, **right, quantiles=wrong)
    with pytest.raises(ValueError, match="folds must be a positive integer, got ") as found:
        backtest(gp, table, **right, folds=["x"] * 1000)
    assert len(str(found.value)) < 1100
