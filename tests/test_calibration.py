"""Intervals: quantiles of normal and of transformed predictions, and conformal calibration."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import distgp
from distgp import DistributedGPRegressor
from distgp.data.rows import Rows, Schema
from distgp.diagnostics.calibration import (
    Calibration,
    CalibrationWarning,
    as_names,
    conformal_quantile,
)
from distgp.plan import resolve
from distgp.predicting import calibrated
from distgp.selection import RepeatsWarning

FIXED = {"expert": "sparse", "n_inducing": 30, "n_iter": 15, "random_state": 0}


def data(n, seed=0, heavy=False):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    noise = rng.standard_t(2, n) if heavy else rng.normal(size=n)
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * noise


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.floats(0.05, 0.95))
def test_the_quantile_covers_as_split_conformal_promises(scores, coverage):
    """Of the n + 1 exchangeable scores at least the share c lies at or below it (Vovk et al.)."""
    ordered = np.sort(np.array(scores))
    found = conformal_quantile(ordered, coverage)
    if np.isfinite(found):
        assert np.sum(ordered <= found) >= coverage * (len(ordered) + 1) - 1e-6
    else:
        assert np.ceil((len(ordered) + 1) * coverage - 1e-9) > len(ordered)


def test_coverage_over_many_draws_is_that_promised():
    rng, hits = np.random.default_rng(0), []
    for _ in range(4000):
        draw = rng.standard_cauchy(20)
        scores = Calibration.of(draw[:-1], np.zeros(19), np.ones(19))
        hits.append(abs(draw[-1]) <= scores.multiples(0.8, 1)[0])
    assert 0.79 < np.mean(hits) < 0.83  # exactly ⌈20 · 0.8⌉ / 20 = 0.8 in expectation


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 4)), min_size=1, max_size=40))
def test_the_quantile_by_weights_is_that_of_copies_but_for_the_row_to_come(pairs):
    pairs = sorted(pairs)
    scores, weight = np.array([p[0] for p in pairs]), np.array([float(p[1]) for p in pairs])
    for coverage in (0.1, 0.5, 0.9):
        found = conformal_quantile(scores, coverage, weight)
        wanted = coverage * (weight.sum() + weight.mean())
        enough = [s for s in scores if weight[scores <= s].sum() >= wanted - 1e-6]
        assert found == min(enough, default=np.inf)
        same = np.full(len(scores), 7.0)  # equal weights change nothing
        assert conformal_quantile(scores, coverage, same) == conformal_quantile(scores, coverage)


@pytest.mark.parametrize("kind", ["conformal", "mondrian"])
def test_intervals_cover_a_share_of_the_weight(kind, tmp_path):
    """Rows with much noise weigh more: counted alike, they would be covered too rarely."""
    rng = np.random.default_rng(0)
    X, wild = rng.uniform(-2, 2, (6000, 1)), np.arange(6000) % 2 == 1
    y = np.sin(X[:, 0]) + np.where(wild, 1.0, 0.1) * rng.normal(size=6000)
    weight, half = np.where(wild, 4.0, 1.0), slice(0, 3000)
    groups = None if kind == "conformal" else np.full(6000, "one")
    given = {} if groups is None else {"groups": groups[half]}
    gp = DistributedGPRegressor(calibrate=kind, **FIXED).fit(
        X[half], y[half], weight[half], **given
    )
    gp.save(tmp_path / "m.safetensors")
    for model in (gp, distgp.load(tmp_path / "m.safetensors")):
        lower, upper = model.predict_interval(X[3000:], 0.9, **given)
        inside = (lower <= y[3000:]) & (y[3000:] <= upper)
        assert abs(np.average(inside, weights=weight[3000:]) - 0.9) < 0.02
    flat = Calibration(gp.model_.targets[0].calibration.scores)
    assert flat.multiples(0.9, 1)[0] < gp.model_.targets[0].calibration.multiples(0.9, 1)[0]


def test_intervals_by_another_aggregation_are_refused_where_they_are_calibrated():
    X, y = data(300)
    given = FIXED | {"n_experts": 3}
    gp = DistributedGPRegressor(calibrate="conformal", **given).fit(X, y)
    message = "calibrated for its own aggregation, 'pooled', and say nothing of another: leave"
    for ask in (gp.predict_interval, gp.predict_with_interval):
        with pytest.raises(ValueError, match=message):
            ask(X, aggregation="poe")
        ask(X, aggregation="poe", latent=True)
        np.testing.assert_array_equal(ask(X, aggregation="pooled"), ask(X))
    with pytest.raises(ValueError, match=message):
        gp.predict_quantiles(X, [0.1], aggregation="rbcm")
    gp.predict(X, aggregation="poe")
    DistributedGPRegressor(**given).fit(X, y).predict_interval(X, aggregation="poe")


def test_targets_held_out_for_calibration_are_checked_before_a_logarithm():
    X, z = data(100)
    y = np.exp(z)
    for row in range(20):  # one of them at least is held out
        wrong = np.where(np.arange(100) == row, -1.0, y)
        gp = DistributedGPRegressor(target_transform="log", calibrate="conformal", **FIXED)
        with pytest.raises(ValueError, match="needs positive targets, got 1 of 100"):
            gp.fit(X, wrong)


def test_intervals_of_normal_predictions():
    X, y = data(150)
    gp = DistributedGPRegressor(**FIXED).fit(X, y)
    mean, std = gp.predict(X, return_std=True)
    lower, upper = gp.predict_interval(X, 0.8)
    np.testing.assert_allclose(lower, mean + norm.ppf(0.1) * std)
    np.testing.assert_allclose(upper, mean + norm.ppf(0.9) * std)
    np.testing.assert_allclose(gp.predict_quantiles(X, 0.5), mean)
    np.testing.assert_allclose(gp.predict_quantiles(X, [0.1, 0.9]), np.stack([lower, upper], -1))
    mean, std = gp.predict(X, return_std=True, latent=True)
    found = gp.predict_interval(X, 0.8, latent=True)
    np.testing.assert_allclose(found[1] - found[0], 2 * norm.ppf(0.9) * std)


def test_conformal_intervals_cover_where_normal_ones_do_not(tmp_path):
    X, y = data(3000, heavy=True)
    X_new, y_new = data(4000, seed=1, heavy=True)
    gp = DistributedGPRegressor(calibrate="conformal", **FIXED).fit(X, y)
    plain = DistributedGPRegressor(**FIXED).fit(X, y)

    def cover(model, c):
        lower, upper = model.predict_interval(X_new, c)
        return np.mean((lower <= y_new) & (y_new <= upper))

    assert abs(cover(gp, 0.5) - 0.5) < 0.04 < abs(cover(plain, 0.5) - 0.5)
    assert abs(cover(gp, 0.9) - 0.9) < 0.03
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(
        again.predict_interval(X_new, 0.7), gp.predict_interval(X_new, 0.7)
    )
    assert again.calibrate == "conformal"


def test_intervals_cover_new_rows_where_every_row_comes_three_times():
    three, covers = np.repeat(np.arange(300), 3), []
    given = {"expert": "exact", "n_experts": 1, "training": None, "noise": 1e-3}
    gp = DistributedGPRegressor(calibrate="conformal", **given)
    for seed in range(6):
        X, y = data(300, seed)
        X_new, y_new = data(1000, seed + 100)
        with pytest.warns(RepeatsWarning, match="66.7 % of the 900 rows"):
            gp.fit(X[three], y[three])
        lower, upper = gp.predict_interval(X_new, 0.9)
        covers.append(np.mean((lower <= y_new) & (y_new <= upper)))
    assert 0.85 < np.mean(covers) < 0.95


def test_calibration_rows_are_not_fitted():
    X, y = data(500)
    gp = DistributedGPRegressor(calibrate="conformal", **FIXED).fit(X, y)
    assert gp.experts_.row_count() == 400
    assert len(gp.model_.targets[0].calibration.scores) == 100


def test_errors_of_calibration_rows_keep_their_signs_and_order():
    X, y = data(120)
    y = np.stack([y, 100 * X[:, 0]], 1)
    gp = DistributedGPRegressor(**FIXED).fit(X, y)
    plan = resolve(gp.get_params(), Schema(2), 120)
    model, errors = calibrated(plan, gp.model_, Rows(X, y, Schema(2)))
    mean, std = gp.predict(X, return_std=True)
    np.testing.assert_allclose(errors, (y - mean) / std, rtol=1e-9)
    for target, column in zip(model.targets, errors.T, strict=True):
        np.testing.assert_array_equal(target.calibration.scores, np.sort(np.abs(column)))


def scores_of(gp, X, y):
    mean, std = gp.predict(X, return_std=True)
    return np.sort(np.abs(y - mean) / std)


def test_calibration_holds_out_the_rows_that_validation_says():
    X, y = data(300)
    when = np.random.default_rng(3).permutation(300)
    for time, last in ((None, slice(240, 300)), (when, np.flatnonzero(when >= 240))):
        gp = DistributedGPRegressor(calibrate="conformal", validation="last", **FIXED)
        gp.fit(X, y, time=time)
        found = gp.model_.targets[0].calibration.scores
        np.testing.assert_allclose(found, scores_of(gp, X[last], y[last]))
    groups = np.arange(300) % 5
    gp = DistributedGPRegressor(calibrate="conformal", validation="groups", **FIXED)
    gp.fit(X, y, groups=groups)
    found = gp.model_.targets[0].calibration.scores
    each = [scores_of(gp, X[groups == one], y[groups == one]) for one in range(5)]
    assert [np.allclose(found, one) for one in each].count(True) == 1


def test_groups_have_intervals_of_their_own():
    rng = np.random.default_rng(0)
    X, groups = rng.uniform(-2, 2, (3000, 1)), np.array(["calm", "wild"])[np.arange(3000) % 2]
    y = np.sin(X[:, 0]) + np.where(groups == "wild", 1.0, 0.1) * rng.normal(size=3000)
    gp = DistributedGPRegressor(calibrate="mondrian", **FIXED).fit(
        X[:2000], y[:2000], groups=groups[:2000]
    )
    lower, upper = gp.predict_interval(X[2000:], 0.9, groups=groups[2000:])
    inside = (lower <= y[2000:]) & (y[2000:] <= upper)
    for name in ("calm", "wild"):
        assert abs(inside[groups[2000:] == name].mean() - 0.9) < 0.05
    with pytest.warns(CalibrationWarning, match="none are given"):
        whole = gp.predict_interval(X[2000:], 0.9)
    assert np.mean((whole[0] <= y[2000:]) & (y[2000:] <= whole[1])) > 0.85
    unknown = gp.predict_interval(X[2000:], 0.9, groups=["new"] * 1000)
    np.testing.assert_array_equal(unknown, whole)


def test_transformed_intervals_are_mapped_back_exactly(tmp_path):
    X, z = data(600)
    gp = DistributedGPRegressor(target_transform="log", **FIXED).fit(X, np.exp(z))
    plain = DistributedGPRegressor(**FIXED).fit(X, z)
    mean, std = plain.predict(X, return_std=True)
    np.testing.assert_allclose(gp.predict_interval(X, 0.9), np.exp(plain.predict_interval(X, 0.9)))
    np.testing.assert_allclose(gp.predict(X), np.exp(mean + std**2 / 2))
    np.testing.assert_allclose(gp.predict_quantiles(X, 0.5), np.exp(mean))
    found = gp.predict(X, return_std=True)[1]
    np.testing.assert_allclose(found, np.exp(mean + std**2 / 2) * np.sqrt(np.expm1(std**2)))
    # The density of y is that of log y over y.
    np.testing.assert_allclose(gp.nlpd(X, np.exp(z)), plain.nlpd(X, z) + z.mean())
    draws = gp.sample_y(X[:5], 4000)
    np.testing.assert_allclose(draws.mean(1), gp.predict(X[:5]), rtol=0.05)
    gp.save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(distgp.load(tmp_path / "m.safetensors").predict(X), gp.predict(X))


def test_several_targets_have_transforms_and_scores_of_their_own():
    X, z = data(500)
    y = np.stack([np.exp(z), 100 + z], 1)
    gp = DistributedGPRegressor(target_transform="yeo-johnson", calibrate="conformal", **FIXED).fit(
        X, y
    )
    lower, upper = gp.predict_interval(X, 0.9)
    assert lower.shape == (500, 2) and (lower < upper).all()
    inside = (lower <= y) & (y <= upper)
    assert (np.abs(inside.mean(0) - 0.9) < 0.1).all()
    assert gp.predict_quantiles(X, [0.1, 0.2, 0.3]).shape == (500, 2, 3)


@pytest.mark.parametrize(
    ("options", "call", "message"),
    [
        ({"calibrate": "mondrian"}, {}, "needs the group of each row"),
        (
            {"calibrate": "yes"},
            {},
            "calibrate must be one of None, 'conformal', 'mondrian', got 'yes'",
        ),
        (
            {"target_transform": "sqrt"},
            {},
            "target_transform must be one of None, 'auto', 'log', 'yeo-johnson'",
        ),
        ({"target_transform": "log"}, {}, "needs positive targets"),
        (
            {"target_transform": "yeo-johnson"},
            {"noise_variance": np.ones(60)},
            "give one of the two",
        ),
    ],
)
def test_mistakes_are_told(options, call, message):
    X, y = data(60)
    with pytest.raises(ValueError, match=message):
        DistributedGPRegressor(**FIXED, **options).fit(X, y, **call)


def test_mistakes_in_asking_for_intervals_are_told():
    X, y = data(60)
    gp = DistributedGPRegressor(**FIXED).fit(X, y)
    for coverage in (0, 1, 1.5, "90 %"):
        with pytest.raises(ValueError, match="coverage must be a probability between 0 and 1"):
            gp.predict_interval(X, coverage)
    with pytest.raises(ValueError, match="calibrate='mondrian', and this one was not"):
        gp.predict_interval(X, groups=["a"] * 60)
    with pytest.raises(ValueError, match="calibrate needs 50 rows at least"):
        DistributedGPRegressor(calibrate="conformal", **FIXED).fit(X[:30], y[:30])


def test_times_with_a_zone_say_which_rows_are_held_out():
    X, y = data(300)
    order = np.random.default_rng(0).permutation(300)
    when = pd.Series(pd.date_range("2024-01-01", periods=300, freq="h", tz="Europe/Berlin"))[order]
    gp = DistributedGPRegressor(validation="last", calibrate="conformal", n_iter=3)
    gp.fit(X, y, np.ones(300) + (np.arange(300) % 2), time=when)
    assert gp.choice_ is not None and len(gp.model_.targets[0].calibration.scores) == 60


def test_a_group_is_one_whatever_the_type_of_its_number():
    for values in ([1, 0], [1.0, 0.0], [True, False], ["1", "0"]):
        assert as_names(values).tolist() == ["1", "0"]
    assert as_names([1.5, 2.0]).tolist() == ["1.5", "2"]


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0, None],
        [1.0, 2.5, 7.0],
        ["a", "b", None],
        np.array(["2024-01-01", "2024-01-02", "NaT"], "M8[D]"),
        np.array(["2024-01-01", "2024-01-02", "NaT"], "M8[ns]"),
        [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2), None],
        [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2024, 1, 2), None],
        [pd.Timestamp("2024-01-01", tz="UTC"), pd.Timestamp("2024-01-02"), pd.NaT],
        pd.array([1, 2, None], dtype="Int64"),
    ],
    ids=str,
)
def test_a_group_is_named_by_its_value_whatever_the_others_are(values):
    names = as_names(values)
    for i in range(3):
        assert as_names(values[i : i + 1])[0] == as_names(list(values)[i : i + 1])[0] == names[i]
    if not isinstance(names[0], float) and names[0].startswith("2024"):
        assert names.tolist() == ["2024-01-01T00:00:00.000000", "2024-01-02T00:00:00.000000", "nan"]


def test_one_missing_group_changes_no_others():
    X, y = data(600)
    groups = np.arange(600) % 2 * 1.0
    gp = DistributedGPRegressor(calibrate="mondrian", **FIXED)
    gp.fit(X, y * (1 + 9 * groups), groups=groups)
    whole = gp.predict_interval(X[:9], groups=groups[:9])
    groups[8] = np.nan
    found = gp.predict_interval(X[:9], groups=groups[:9])
    np.testing.assert_array_equal(np.stack(found)[:, :8], np.stack(whole)[:, :8])


@pytest.mark.parametrize("kind", ["mondrian", "groups"])
@pytest.mark.parametrize("shape", [(50,), (61,), (60, 1), ()])
def test_groups_are_one_for_each_row(kind, shape):
    X, y = data(60)
    options = {"calibrate": kind} if kind == "mondrian" else {"validation": kind}
    with pytest.raises(ValueError, match="groups must have one value for each of the 60 rows, got"):
        DistributedGPRegressor(**FIXED, **options).fit(X, y, groups=np.zeros(shape))


@pytest.mark.parametrize("shape", [(5,), (7,), (6, 1), ()])
def test_groups_of_rows_to_predict_are_one_for_each(shape):
    X, y = data(60)
    gp = DistributedGPRegressor(calibrate="mondrian", **FIXED).fit(X, y, groups=np.arange(60) % 2)
    for call in (
        gp.predict_interval,
        lambda X, groups: gp.predict_quantiles(X, 0.9, groups=groups),
    ):
        with pytest.raises(ValueError, match=r"expected one group for each of 6 rows, got shape"):
            call(X[:6], groups=np.zeros(shape))


def test_noise_variances_are_refused_wherever_the_target_is_transformed():
    X, y = data(60)
    y, noise = np.exp(y), np.ones(60)
    gp = DistributedGPRegressor(target_transform="log", **FIXED).fit(X, y)
    for call in (
        lambda: gp.predict(X, return_std=True, noise_variance=noise),
        lambda: gp.predict_interval(X, noise_variance=noise),
        lambda: gp.predict_quantiles(X, 0.9, noise_variance=noise),
        lambda: gp.nlpd(X, y, noise_variance=noise),
        lambda: gp.partial_fit(X, y, noise_variance=noise),
    ):
        with pytest.raises(ValueError, match="target_transform leaves them: give one of the two"):
            call()


def test_groups_mean_nothing_for_the_function_itself():
    X, y = data(60)
    groups = np.arange(60) % 2
    gp = DistributedGPRegressor(calibrate="mondrian", **FIXED).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="with latent=True they are of f"):
        gp.predict_interval(X, latent=True, groups=groups)


@pytest.mark.parametrize("shape", [0.5, 2.0])
def test_skewed_targets_have_a_mean_under_yeo_johnson(shape):
    X, _ = data(300)
    y = np.random.default_rng(2).gamma(shape, 1, 300) * np.exp(X[:, 0])
    gp = DistributedGPRegressor(target_transform="yeo-johnson", **FIXED).fit(X, y)
    mean, std = gp.predict(X, return_std=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()
    assert (
        np.isfinite(gp.predict_interval(X, 0.999)).all()
        and np.isfinite(gp.sample_y(X[:5], 50)).all()
    )


def test_messages_tell_what_is_the_matter():
    X, y = data(60)
    gp = DistributedGPRegressor(target_transform="log", **FIXED).fit(X, np.exp(y))
    with pytest.raises(ValueError, match="target_transform='log' needs positive targets, got"):
        gp.nlpd(X, -np.exp(y))
    with pytest.raises(ValueError, match="y contains NaN: leave those rows out"):
        DistributedGPRegressor(**FIXED).fit(X, [None, *y[1:]])
    X, y = data(600)
    gp = DistributedGPRegressor(validation="groups", calibrate="conformal", n_iter=2)
    with pytest.raises(
        ValueError, match="where calibrate holds out groups first, three are needed"
    ):
        gp.fit(X, y, groups=np.arange(600) % 2)
