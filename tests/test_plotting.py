"""Plots: what is on the Axes, not how it looks."""

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
import pytest
from matplotlib import pyplot as plt

from distgp import DistributedGPRegressor, plotting
from distgp.comparison import Result, compare, reference


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def line():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(120, 1))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=120)
    return DistributedGPRegressor(n_experts=2, n_iter=15).fit(X, y), X, y


@pytest.fixture(scope="module")
def plane():
    import pandas as pd

    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(-2, 2, size=(150, 2)), columns=["east", "north"])
    y = np.sin(3 * X["east"]) + 0.1 * rng.normal(size=150)
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
    import pandas as pd

    np.testing.assert_allclose(drawn, model.predict(pd.DataFrame(points, columns=X.columns)))
    (ax,) = plotting.plot_partial_dependence(model, X, features=[0], sample=20)
    assert np.ptp(ax.lines[0].get_ydata()) > 1.5  # the function's own range in east is 2
    with pytest.raises(ValueError, match="one input, this one has 2: use plot_slices"):
        plotting.plot_prediction(model, X)
    with pytest.raises(ValueError, match="expected 2 Axes, got 1"):
        plotting.plot_slices(model, X, axes=[ax])


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


def test_wide_ranges_are_drawn_on_a_log_axis():
    results = [Result("a", rmse=1e-12), Result("b", rmse=1.0)]
    ax = plotting.plot_comparison(results)
    assert ax.get_xscale() == "log" and min(bar.get_width() for bar in ax.patches) == 1e-3
