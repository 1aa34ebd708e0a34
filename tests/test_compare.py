"""All aggregators on the same experts, beside the full GP."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from helpers import make_data

from distgp import AGGREGATORS, DistributedGPRegressor, metrics
from distgp import compare as module
from distgp.compare import Result, compare, noise_variance, on_split, reference, write_csv


@pytest.fixture(scope="module")
def fitted():
    X, y = make_data(120, d=1)
    y = 50 + 10 * y
    return DistributedGPRegressor(n_experts=2, n_iter=15).fit(X, y), X, y


def test_one_result_per_aggregator_and_one_for_the_reference(fitted):
    model, X, y = fitted
    results = compare(model, X, y, reference(model, X, y))
    assert [r.name for r in results] == ["full exact GP", *AGGREGATORS]
    failed = {r.name: r.error for r in results if r.error is not None}
    assert (
        list(failed) == ["pooled", "nearest"] and "pooled needs sparse experts" in failed["pooled"]
    )
    pooled = results[[r.name for r in results].index("pooled")]
    assert replace(pooled, error=None) == Result("pooled")
    assert results[0].w2 is None and all(r.w2 > 0 for r in results[1:] if r.error is None)


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
    assert [r.name for r in results] == list(AGGREGATORS)
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
    assert list(lines[0]) == ["name", "seconds", "rmse", "nlpd", "coverage", "w2", "error"]
    assert lines[0]["nlpd"] == "-1.0" and lines[0]["w2"] == "" and lines[1]["error"] == "no, never"
