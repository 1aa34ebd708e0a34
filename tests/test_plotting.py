"""Plots: what is on the Axes, not how it looks."""

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
import pandas as pd
import pytest
from helpers import make_data
from matplotlib import pyplot as plt

from distgp import DistributedGPRegressor, SparseGridGP, plotting
from distgp.compare import Result, compare, reference


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def line():
    X, y = make_data(120, d=1)
    return DistributedGPRegressor(n_experts=2, n_iter=15).fit(X, y), X, y


@pytest.fixture(scope="module")
def plane():
    X, y = make_data(150)
    X = pd.DataFrame(X, columns=["east", "north"])
    return DistributedGPRegressor(n_iter=15).fit(X, y), X, y


def test_prediction_in_one_dimension(line):
    model, X, y = line
    ax = plotting.plot_prediction(model, X, y)
    lines = {item.get_label(): item for item in ax.lines}
    assert len(lines["observations"].get_xdata()) == 120
    x, drawn = lines["mean"].get_data()
    np.testing.assert_allclose(drawn, model.predict(np.asarray(x)[:, None]))
    assert len(ax.collections) == 1 and "90 % of y" in ax.get_legend_handles_labels()[1]
    given = plt.subplots()[1]
    assert (
        plotting.plot_prediction(model, grid=np.linspace(0, 1, 5), latent=True, ax=given) is given
    )


def test_slices_and_partial_dependence(plane):
    model, X, _ = plane
    axes = plotting.plot_slices(model, X)
    assert [ax.get_xlabel() for ax in axes] == ["east", "north"]
    x, drawn = axes[0].lines[0].get_data()
    points = np.column_stack([x, np.full(len(x), np.median(X["north"]))])
    np.testing.assert_allclose(drawn, model.predict(pd.DataFrame(points, columns=X.columns)))
    (ax,) = plotting.plot_partial_dependence(model, X, features=[0], sample=20)
    assert np.ptp(ax.lines[0].get_ydata()) > 1.5  # the function's own range in east is 2
    with pytest.raises(ValueError, match="one input, this one has 2: use plot_slices"):
        plotting.plot_prediction(model, X)
    with pytest.raises(ValueError, match="expected 2 Axes, got 1"):
        plotting.plot_slices(model, X, axes=[ax])


def test_partial_dependence_is_the_mean_over_the_sample(plane):
    model, X, _ = plane
    (ax,) = plotting.plot_partial_dependence(model, X, features=[1], sample=len(X))
    x, drawn = ax.lines[0].get_data()
    assert len(x) == 40 and ax.get_xlabel() == "north"
    np.testing.assert_allclose(x[[0, -1]], np.quantile(X["north"], [0.01, 0.99]))
    moved = [model.predict(X.assign(north=value)) for value in x]
    np.testing.assert_allclose(drawn, np.mean(moved, axis=1), rtol=1e-9)
    band = ax.collections[0].get_paths()[0].get_extents()
    low, high = np.quantile(moved, [0.05, 0.95], axis=1)
    np.testing.assert_allclose([band.y0, band.y1], [low.min(), high.max()], rtol=1e-9)


def test_every_estimator_is_drawn():
    X, y = make_data(200)
    model = SparseGridGP(level=3, n_iter=5).fit(X, y)
    assert len(plotting.plot_partial_dependence(model, X, sample=10)) == 2
    assert len(plotting.plot_slices(model, X)) == 2
    assert plotting.plot_calibration(model, X, y).get_xlabel() == "nominal coverage"


def test_partial_dependence_of_several_targets_is_refused():
    X, y = make_data(40)
    model = DistributedGPRegressor(training=None).fit(X, np.column_stack([y, y]))
    with pytest.raises(ValueError, match="one target, this one has 2: fit one model per target"):
        plotting.plot_partial_dependence(model, X, sample=5)


def test_training_traces(line):
    model = line[0]
    left, right = plotting.plot_training(model.training_)
    objectives = left.lines[0].get_ydata()
    assert (np.diff(objectives) <= 0).all() and len(objectives) > 3
    names = right.get_legend_handles_labels()[1]
    assert {"lengthscale", "variance", "noise"} == set(names)


def test_comparison_and_calibration(line, tmp_path):
    model, X, y = line
    results = compare(model, X, y, reference(model, X, y), ["poe", "two-level", "pooled"])
    assert [r.error is None for r in results] == [True, True, True, False]
    ax = plotting.plot_comparison(results, "rmse")
    assert sorted(label.get_text() for label in ax.get_yticklabels()) == [
        "full exact GP", "poe", "two-level",
    ]  # fmt: skip
    for name in ("c.pdf", "again.pdf"):
        plotting.save_figure(plotting.comparison_figure(results), tmp_path / name)
    assert (tmp_path / "c.pdf").read_bytes()[:4] == b"%PDF"
    assert (tmp_path / "c.pdf").read_bytes() == (tmp_path / "again.pdf").read_bytes()
    ax = plotting.plot_calibration(model, X, y)
    plotting.plot_calibration(model, X, y, aggregation="poe", label="poe", ax=ax)
    assert ax.get_legend_handles_labels()[1] == ["honest", "model", "poe"]
    observed = ax.lines[1].get_ydata()
    assert (np.diff(observed) >= 0).all() and abs(observed[24] - 0.5) < 0.15


def test_baselines_are_drawn_otherwise_than_aggregators():
    results = [
        Result("full exact GP", rmse=1.0, nlpd=0.0),
        Result("poe", rmse=2.0, nlpd=1.0, w2=0.5),
        Result("ridge regression", rmse=3.0, nlpd=2.0, baseline=True),
    ]
    figure = plotting.comparison_figure(results)
    bars = dict(
        zip(["ridge regression", "poe", "full exact GP"], figure.axes[0].patches, strict=True)
    )
    assert {name for name, bar in bars.items() if bar.get_hatch()} == {"ridge regression"}
    assert len({bar.get_facecolor() for bar in bars.values()}) == 3
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["aggregator", "full GP", "baseline"]
    assert len(figure.axes[2].patches) == 1  # baselines are at no distance from the full GP
    assert not plotting.comparison_figure(results[:2]).legends


def test_wide_ranges_are_drawn_on_a_log_axis():
    results = [Result("a", rmse=1e-12), Result("b", rmse=1.0)]
    ax = plotting.plot_comparison(results)
    assert ax.get_xscale() == "log" and min(bar.get_width() for bar in ax.patches) == 1e-3
