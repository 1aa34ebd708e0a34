"""All aggregators on the same experts, beside the full GP."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from helpers import make_data

from distgp import AGGREGATORS, DistributedGPRegressor, metrics
from distgp import compare as module
from distgp.diagnostics.compare import (
    Result,
    baselines,
    compare,
    left_out,
    noise_variance,
    on_split,
    reference,
    serving,
    write_csv,
)
from distgp.selection import hold_out, trials

BASELINES = ["training mean", "ridge regression", "gradient boosting"]


@pytest.fixture(scope="module")
def fitted():
    X, y = make_data(120, d=1)
    y = 50 + 10 * y
    return DistributedGPRegressor(n_experts=2, n_iter=15).fit(X, y), X, y


def test_one_result_per_aggregator_and_one_for_the_reference(fitted):
    model, X, y = fitted
    results = compare(model, X, y, reference(model, X, y), AGGREGATORS)
    assert [r.name for r in results] == ["full exact GP", *AGGREGATORS]
    failed = {r.name: r.error for r in results if r.error is not None}
    assert (
        list(failed) == ["pooled", "nearest"]
        and "pooled cannot combine exact experts" in failed["pooled"]
    )
    pooled = results[[r.name for r in results].index("pooled")]
    assert replace(pooled, error=None) == Result("pooled")
    assert results[0].w2 is None and all(r.w2 > 0 for r in results[1:] if r.error is None)


def test_aggregators_for_other_experts_are_left_out_unless_they_are_asked_for(fitted):
    model, X, y = fitted
    assert left_out(model) == ["pooled", "nearest"]
    assert serving(model) + left_out(model) == sorted(
        AGGREGATORS, key=lambda name: name in left_out(model)
    )
    results = compare(model, X, y)
    assert [r.name for r in results] == serving(model) and not any(r.error for r in results)


def test_figures_are_those_of_the_models_own_predictions(fitted):
    model, X, y = fitted
    (result,) = compare(model, X, y, aggregators=["rbcm"])
    mean, std = model.predict(X, return_std=True, aggregation="rbcm")
    assert result.rmse == pytest.approx(metrics.rmse(y, mean))
    assert result.nlpd == pytest.approx(metrics.nlpd(y, mean, std**2))
    assert result.coverage == pytest.approx(metrics.coverage(y, mean, std**2))
    assert result.w2 is None and result.seconds > 0


def test_noise_is_in_the_targets_units(fitted):
    model, X, _ = fitted
    latent = model.predict(X, return_std=True, latent=True)[1]
    observed = model.predict(X, return_std=True)[1]
    np.testing.assert_allclose(observed**2 - latent**2, noise_variance(model), rtol=1e-6)


def test_the_reference_has_the_same_hyperparameters_and_one_expert(fitted):
    model, X, y = fitted
    name, full = reference(model, X, y)
    assert name == "full exact GP" and full.n_experts_ == 1
    assert str(full.kernel_) == str(model.kernel_) and full.noise_ == model.noise_


def test_many_rows_have_a_sparse_reference_with_the_same_inducing_inputs(monkeypatch):
    monkeypatch.setattr(module, "FULL_EXACT_ROWS", 100)
    X, y = make_data(150, d=1)
    model = DistributedGPRegressor(expert="sparse", n_experts=3, n_inducing=12, n_iter=5).fit(X, y)
    name, full = reference(model, X, y)
    assert name == "full sparse GP"
    np.testing.assert_allclose(full.inducing_, model.inducing_)
    (_, pooled) = compare(model, X, y, (name, full), ["pooled"])
    assert pooled.w2 < 1e-6


def test_own_hyperparameters_have_no_reference():
    X, y = make_data(80, d=1)
    model = DistributedGPRegressor(n_experts=2, training="independent", n_iter=3)
    results = on_split(model, X, y, test=0.25, seed=0)
    assert [r.name for r in results if not r.baseline] == serving(model)
    assert [r.name for r in results if r.baseline] == BASELINES
    with pytest.raises(ValueError, match="different hyperparameters have no full GP"):
        reference(model, X, y)


def test_a_share_that_is_none_is_refused():
    X, y = make_data(20)
    for share in (0.0, 1.0, 20.0):
        with pytest.raises(ValueError, match=f"between 0 and 1, got {share}"):
            on_split(DistributedGPRegressor(), X, y, share, seed=0)


def test_the_table_has_one_line_per_result(tmp_path):
    results = [Result("a", 0.5, 1.0, -1.0, 0.9, None), Result("b", error="no, never")]
    write_csv(results, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == [
        "name", "seconds", "rmse", "nlpd", "coverage", "w2", "error", "baseline",
    ]  # fmt: skip
    assert lines[0]["nlpd"] == "-1.0" and lines[0]["w2"] == "" and lines[1]["error"] == "no, never"


def test_baselines_are_measured_on_the_same_rows():
    X, y = make_data(200, d=2)
    train, test = hold_out(200, "random", share=0.25, seed=3)
    found = baselines(X[train], y[train], X[test], y[test], seed=3)
    assert [r.name for r in found] == BASELINES and all(r.baseline for r in found)
    assert all(r.w2 is None and r.error is None and r.seconds > 0 for r in found)
    assert found[0].rmse == pytest.approx(metrics.rmse(y[test], np.full(50, y[train].mean())))
    assert found[2].rmse < found[0].rmse
    model = DistributedGPRegressor(n_iter=2)
    results = on_split(model, X, y, test=0.25, seed=3)
    by_name = {r.name: r for r in results}
    assert [by_name[name].rmse for name in BASELINES] == [r.rmse for r in found]
    assert by_name["full exact GP"].rmse < found[0].rmse
    assert not np.isin(
        X[test, 0], model.model_.targets[0].scaling.original(_rows(model))[:, 0]
    ).any()


def _rows(model):
    return model.experts_.placement.gather().items[0].shard.X[0]


def test_a_baseline_that_cannot_be_fitted_says_why(monkeypatch):
    def refuse(*_):
        raise ValueError("too few\nrows")

    monkeypatch.setattr(trials, "with_spread", refuse)
    X, y = make_data(20, d=1)
    mean, ridge, boosting = baselines(X[:15], y[:15], X[15:], y[15:])
    assert mean.error is None and mean.rmse > 0
    assert ridge == Result("ridge regression", error="too few rows", baseline=True)
    assert boosting == Result("gradient boosting", error="too few rows", baseline=True)


def test_the_last_rows_are_held_out_in_the_order_of_time():
    X, y = make_data(80, d=1)
    time = np.random.default_rng(0).permutation(80)
    model = DistributedGPRegressor(training=None)
    dates = np.datetime64("2024-01-01") + time
    on_split(model, X, y, test=0.25, seed=0, validation="last", time=dates)
    kept = model.model_.targets[0].scaling.original(_rows(model))[:, 0]
    assert sorted(kept) == pytest.approx(sorted(X[time < 60, 0]))


def test_whole_groups_are_held_out():
    X, y = make_data(80, d=1)
    groups = np.repeat(list("abcd"), 20)
    model = DistributedGPRegressor(training=None)
    on_split(model, X, y, test=0.25, seed=0, validation="groups", groups=groups)
    kept = model.model_.targets[0].scaling.original(_rows(model))[:, 0]
    whole = [np.isclose(X[groups == g, 0][:, None], kept).any(1) for g in "abcd"]
    assert sorted(w.all() for w in whole) == [False, True, True, True]
    assert not any(w.any() for w in whole if not w.all())
    with pytest.raises(ValueError, match="needs the groups"):
        on_split(model, X, y, test=0.25, seed=0, validation="groups")
