"""Plots: what is on the Axes, not how it looks."""

import subprocess
import sys

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers import make_data
from matplotlib import pyplot as plt

from distgp import DistributedGPRegressor, SparseGridGP, plotting
from distgp.diagnostics.compare import Result, compare, reference
from distgp.diagnostics.novelty import NoveltyWarning
from distgp.experts import Parameters
from distgp.kernels import RBF, Linear, Periodic
from distgp.selection.trials import Choice, Trial
from distgp.training import Round, TrainingResult


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


@pytest.fixture(scope="module")
def two_targets():
    X, y = make_data(60, d=3)
    Y = np.column_stack([y, 5.0 * X[:, 2]])
    return DistributedGPRegressor(n_iter=15).fit(X, Y), X, Y


def untrained(X, y, kernel=None, **options):
    kernel = RBF([2.0] * np.shape(X)[1]) if kernel is None else kernel
    return DistributedGPRegressor(kernel=kernel, training=None, **options).fit(X, y)


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def drawn(ax, label):
    (line,) = (line for line in ax.lines if line.get_label() == label)
    return np.array(line.get_data())


def test_matplotlib_is_loaded_on_demand():
    code = """
import sys, distgp
assert "matplotlib" not in sys.modules
assert distgp.plotting.plot_residuals.__name__ == "plot_residuals"
assert "matplotlib" in sys.modules
assert all(hasattr(distgp.plotting, name) for name in distgp.plotting.__all__)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_prediction_in_one_dimension(line):
    model, X, y = line
    ax = plotting.plot_prediction(model, X, y)
    lines = {item.get_label(): item for item in ax.lines}
    assert len(lines["observations"].get_xdata()) == 120
    x, mean = lines["mean"].get_data()
    np.testing.assert_allclose(mean, model.predict(np.asarray(x)[:, None]))
    assert len(ax.collections) == 1 and "90 % of y" in ax.get_legend_handles_labels()[1]
    flat = plotting.plot_prediction(model, X[:, 0].tolist(), y)
    np.testing.assert_array_equal(drawn(flat, "mean"), drawn(ax, "mean"))
    with pytest.raises(ValueError, match="give X or a grid"):
        plotting.plot_prediction(model)
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


@pytest.mark.parametrize(
    ("count", "rows"),
    [(1, [1]), (4, [4]), (5, [3, 2]), (8, [4, 4]), (9, [3, 3, 3]), (11, [4, 4, 3])],
)
def test_panels_wrap_into_rows_of_at_most_four(count, rows):
    X, y = make_data(30, d=count)
    model = untrained(X, y)
    axes = plotting.plot_slices(model, X)
    assert axes[0].figure.axes == axes and len(axes) == count
    placed = [ax.get_subplotspec().rowspan.start for ax in axes]
    assert [placed.count(row) for row in range(len(rows))] == rows
    labelled = [ax for ax in axes if ax.get_ylabel()]
    assert [ax.get_subplotspec().colspan.start for ax in labelled] == [0] * len(rows)
    (legend,) = axes[0].figure.legends
    assert texts(legend) == ["90 % of y", "mean"]
    assert legend.get_title().get_text() == "other columns at their medians"


def test_columns_are_chosen_by_name_or_number(plane):
    model, X, _ = plane
    for features in (["north"], [1], "north", -1, np.array([1])):
        for draw in (plotting.plot_slices, plotting.plot_partial_dependence):
            (ax,) = draw(model, X, features)
            assert ax.get_xlabel() == "north"
    with pytest.raises(
        ValueError, match=r"unknown column 'up': expected one of 'east', 'north', or a"
    ):
        plotting.plot_slices(model, X, ["up"])
    with pytest.raises(ValueError, match=r"unknown column 2: .* or a number from 0 to 1$"):
        plotting.plot_partial_dependence(model, X, [2])
    with pytest.raises(ValueError, match="features names no column: give one at least"):
        plotting.plot_slices(model, X, [])


def test_columns_of_a_table_are_found_by_name(plane):
    model, X, y = plane
    other = X[["north", "east"]].assign(more="text")
    for draw in (plotting.plot_slices, plotting.plot_partial_dependence):
        for ax, again in zip(draw(model, X), draw(model, other), strict=True):
            np.testing.assert_array_equal(again.lines[0].get_data(), ax.lines[0].get_data())
    for rows in (other, X.to_numpy(), pa.Table.from_pandas(other)):
        axes = plotting.plot_residuals(model, rows, y)
        assert [ax.get_xlabel() for ax in axes] == ["prediction", "east", "north"]
        np.testing.assert_allclose(np.sort(drawn(axes[1], "rows")[0]), np.sort(X["east"]))
    with pytest.raises(ValueError, match=r"X has no column 'north': give the columns that"):
        plotting.plot_slices(model, X[["east"]])
    with pytest.raises(ValueError, match=r"X has 1 features, but .* is expecting 2 features"):
        plotting.plot_slices(model, X[["east"]].to_numpy())
    with pytest.raises(ValueError, match=r"expected X with rows of 2 columns, got shape \(150,\)"):
        plotting.plot_slices(model, X["east"])


def test_long_names_are_cut_in_the_middle():
    X, y = make_data(30)
    X = pd.DataFrame(X, columns=["the_temperature_of_the_air_1", "the_temperature_of_the_air_2"])
    labels = [ax.get_xlabel() for ax in plotting.plot_slices(untrained(X, y), X)]
    assert labels == ["the_tempera…_the_air_1", "the_tempera…_the_air_2"]
    assert {len(label) for label in labels} == {22}


def test_points_that_are_made_up_are_no_news(plane):
    model, X, y = plane
    far = X * 10.0
    assert len(plotting.plot_slices(model, far)) == 2  # warnings are errors
    assert len(plotting.plot_partial_dependence(model, far, sample=5)) == 2
    with pytest.warns(NoveltyWarning):
        plotting.plot_residuals(model, far, y)


def test_one_of_several_targets_is_drawn(two_targets):
    model, X, Y = two_targets
    for target in (0, 1):
        (ax,) = plotting.plot_partial_dependence(model, X, [2], sample=len(X), target=target)
        x, values = ax.lines[0].get_data()
        moved = np.column_stack([X[:, :2], np.full(len(X), x[7])])
        np.testing.assert_allclose(values[7], model.predict(moved)[:, target].mean())
        (ax,) = plotting.plot_slices(model, X, [2], at=[0.0, 1.0, 9.0], target=target)
        x, values = ax.lines[0].get_data()
        np.testing.assert_allclose(values[3], model.predict([[0.0, 1.0, x[3]]])[0, target])
        assert ax.get_ylabel() == f"prediction of y{target}"
        ax = plotting.plot_residuals(model, X, Y, [2], target=target)[0]
        residuals = Y[:, target] - model.predict(X)[:, target]
        np.testing.assert_allclose(np.sort(drawn(ax, "rows")[1]), np.sort(residuals))
        assert ax.get_ylabel() == f"residual of y{target}"
    with pytest.raises(ValueError, match="number of a target, from 0 to 1, got 2"):
        plotting.plot_slices(model, X, target=2)
    with pytest.raises(ValueError, match="expected `at` to have 3 values, got 2"):
        plotting.plot_slices(model, X, at=[0.0, 1.0])


def test_residuals_against_predictions_and_columns(plane):
    model, X, y = plane
    axes = plotting.plot_residuals(model, X, y)
    mean, std = model.predict(X, return_std=True)
    for ax, x in zip(axes, [mean, X["east"], X["north"]], strict=True):
        order = np.argsort(x, kind="stable")
        found = drawn(ax, "rows")
        np.testing.assert_allclose(found[:, np.argsort(found[0])], [x[order], (y - mean)[order]])
        groups = drawn(ax, "means of groups")
        by_hand = [np.mean((y - mean)[part]) for part in np.array_split(order, 10)]
        np.testing.assert_allclose(groups[1], by_hand, rtol=1e-9)
    assert axes[0].get_ylabel() == "residual" and not axes[1].get_ylabel()
    scaled = plotting.plot_residuals(model, X, y, ["north"], standardize=True)
    assert len(scaled) == 2 and scaled[0].get_ylabel() == "standardised residual"
    z = (y - mean) / std
    np.testing.assert_allclose(np.sort(drawn(scaled[1], "rows")[1]), np.sort(z))
    inside = f"±2, with {100 * np.mean(np.abs(z) <= 2):.1f} % of the rows (expected: 95.4 %)"
    assert texts(scaled[0].figure.legends[0])[0] == inside
    given = plt.subplots(1, 2)[1]
    assert plotting.plot_residuals(model, X, y, [0], axes=given) == list(given)
    assert texts(given[0].get_legend()) == ["rows", "means of groups"]
    assert not given[0].figure.legends and given[1].get_legend() is None


def test_few_values_make_few_groups_of_residuals():
    X, y = make_data(50)
    X[:, 1] = np.arange(50) % 3
    model = untrained(X, y)
    ax = plotting.plot_residuals(model, X, y, [1])[1]
    x, means = drawn(ax, "means of groups")
    residuals = y - model.predict(X)
    np.testing.assert_array_equal(x, [0.0, 1.0, 2.0])
    np.testing.assert_allclose(means, [residuals[X[:, 1] == value].mean() for value in x])


def test_relevance_is_sorted_and_named():
    X, y = make_data(60, d=4)
    X = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    model = untrained(X, y, RBF([8.0, 1.0, 4.0, 2.0]))
    ax = plotting.plot_relevance(model)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["b", "d", "c", "a"] and ax.yaxis_inverted()
    np.testing.assert_allclose(
        [bar.get_width() for bar in ax.patches], [8 / 15, 4 / 15, 2 / 15, 1 / 15]
    )
    given = plt.subplots()[1]
    assert plotting.plot_relevance(model, most=3, ax=given) is given
    assert len(given.patches) == 3
    assert given.get_xlabel() == "relevance\nleft out: 1 column of less relevance"
    with pytest.raises(ValueError, match="most must be a positive integer, got 0"):
        plotting.plot_relevance(model, most=0)


def test_relevance_of_several_targets(two_targets):
    model = two_targets[0]
    ax = plotting.plot_relevance(model)
    assert texts(ax.get_legend()) == ["y0", "y1"]
    order = np.argsort(-model.feature_relevance_.mean(0))
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"x{j}" for j in order]
    for bars, shares in zip(ax.containers, model.feature_relevance_, strict=True):
        np.testing.assert_allclose([bar.get_width() for bar in bars], shares[order])


def test_choice_marks_the_candidate_that_was_taken():
    trials = [Trial("b", 2.0, 1.5, 0.8, 2.0), Trial("a", 3.0, 1.0, 0.9, 1.0)]
    trials.append(Trial("c", *[float("nan")] * 4, error="too large"))
    mean = Trial("training mean", 9.0, 4.0, 0.9, 0.0, baseline=True)
    choice = Choice.of("random", 100, trials, [mean], 20)
    ax = plotting.plot_choice(choice)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b", "c", "training mean"]
    points = [line.get_data() for line in ax.lines if line.get_marker() in ("D", "o", "s")]
    assert [(float(x[0]), int(y[0])) for x, y in points] == [(1.0, 0), (1.5, 1), (4.0, 3)]
    assert [line.get_marker() for line in ax.lines][:3] == ["D", "o", "s"]
    assert texts(ax.get_legend()) == ["taken", "candidate", "baseline"]
    assert "could not be fitted" in [text.get_text() for text in ax.texts]
    assert ax.get_xlabel() == "NLPD of 20 rows held out (lower is better)"
    rmse = plotting.plot_choice(choice, "rmse")
    assert [float(line.get_xdata()[0]) for line in rmse.lines[:3]] == [3.0, 2.0, 9.0]
    with pytest.raises(ValueError, match=r"metric must be one of 'nlpd', .*, got 'w2'"):
        plotting.plot_choice(choice, "w2")


def test_choice_of_a_model(plane):
    model = plane[0]
    with pytest.raises(ValueError, match=r"without a choice between candidates.*200 rows or more"):
        plotting.plot_choice(model)
    many, values = make_data(220)
    model = DistributedGPRegressor(n_iter=5).fit(many, values)
    ax = plotting.plot_choice(model)
    names = [trial.name for trial in model.choice_.trials]
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    np.testing.assert_allclose(ax.lines[0].get_xdata(), [model.choice_.best.nlpd])


def test_what_is_not_fitted_is_refused(plane):
    _, X, y = plane
    new = DistributedGPRegressor()
    calls = [
        lambda model: plotting.plot_prediction(model, X),
        lambda model: plotting.plot_slices(model, X),
        lambda model: plotting.plot_partial_dependence(model, X),
        lambda model: plotting.plot_residuals(model, X, y),
        plotting.plot_relevance,
        plotting.plot_choice,
        plotting.plot_training,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is not fitted yet"):
            call(new)
        with pytest.raises(
            TypeError, match=r"expected a fitted DistributedGPRegressor .* got Figure"
        ):
            call(plt.figure())


def test_training_traces(line):
    model = line[0]
    objective, lengths, deviations = plotting.plot_training(model)
    rounds = [round_ for round_ in model.training_.history if round_.accepted]
    objectives = objective.lines[0].get_ydata()
    assert (np.diff(objectives) <= 0).all() and len(objectives) > 3
    np.testing.assert_array_equal(objectives, [round_.objective for round_ in rounds])
    assert texts(lengths.get_legend()) == ["x0"]
    assert set(texts(deviations.get_legend())) == {"signal sd", "noise sd"}
    last = model.summary().targets[0]
    np.testing.assert_allclose(drawn(deviations, "noise sd")[1, -1], last.noise.value)
    (signal,) = (q.value for q in last.quantities if q.name == "signal sd")
    np.testing.assert_allclose(drawn(deviations, "signal sd")[1, -1], signal)
    np.testing.assert_array_equal(
        drawn(lengths, "x0")[1], [r.hyperparameters["kernel.kernel.lengthscale"][0] for r in rounds]
    )
    given = plt.subplots(1, 3)[1]
    assert plotting.plot_training(model.training_, given) == list(given)
    noise = [np.sqrt(round_.hyperparameters["noise"][0]) for round_ in rounds]
    np.testing.assert_allclose(drawn(given[2], "noise sd")[1], noise)


def test_training_of_a_table_and_of_several_targets(plane, two_targets):
    lengths = plotting.plot_training(plane[0])[1]
    assert set(texts(lengths.get_legend())) == {"east", "north"}
    model = two_targets[0]
    for target, result in enumerate(model.training_):
        ax = plotting.plot_training(model, target=target)[0]
        assert (
            ax.lines[0].get_ydata()[-1] == [r for r in result.history if r.accepted][-1].objective
        )


def history(kernel, values, count=3, **options):
    """Rounds with the hyperparameters of a kernel, by path."""
    rounds = [Round(i, 9.0 - i, 0.0, values, 0.0, 0, True) for i in range(1, count + 1)]
    return TrainingResult(Parameters.of(kernel, 0.1), tuple(rounds), "iterations", **options)


def test_of_many_lengthscales_the_shortest_are_named():
    lengths = np.random.default_rng(0).permutation(14) + 1.0
    result = history(
        RBF(lengths.tolist()), {"kernel.lengthscale": lengths.tolist(), "noise": [0.1]}
    )
    ax = plotting.plot_training(result)[1]
    order = np.argsort(lengths)
    assert texts(ax.get_legend()) == [f"x{j}" for j in order[:10][::-1]] + ["4 more"]
    grey = [line for line in ax.lines if line.get_color() == "0.8"]
    assert {line.get_ydata()[-1] for line in grey} == {11.0, 12.0, 13.0, 14.0}
    colours = {line.get_color() for line in ax.lines}
    assert len(colours) == 11
    assert ax.get_legend().get_bbox_to_anchor().x0 > ax.get_window_extent().x1  # beside the panel


def test_names_of_hyperparameters_tell_kernels_apart():
    kernel = 2.0 * RBF([1.0, 3.0]) + 0.5 * Periodic(1.0, 2.0, active_dims=[1]) + Linear()
    values = {f"kernel.{name}": v.reshape(-1).tolist() for name, v in kernel.parameters().items()}
    X, y = make_data(40)
    model = untrained(pd.DataFrame(X, columns=["east", "north"]), y, kernel)
    result = history(kernel, values | {"noise": [0.1]})
    _, lengths, deviations = plotting.plot_training(result)
    assert set(texts(lengths.get_legend())) == {"x0", "x1, RBF", "x1, Periodic", "period x1"}
    names = {"noise sd", "signal sd, RBF", "signal sd, Periodic", "slope sd"}
    assert set(texts(deviations.get_legend())) == names
    np.testing.assert_allclose(drawn(deviations, "signal sd, RBF")[1], np.sqrt(2.0))
    with pytest.raises(ValueError, match="training=None, so there are no rounds to draw: leave"):
        plotting.plot_training(model)
    shared = RBF([1.0, 2.0], shared=(0, 1, 1))
    result = history(shared, {"kernel.lengthscale": [1.0, 2.0], "noise": [0.1]})
    assert set(texts(plotting.plot_training(result)[1].get_legend())) == {"x0", "x1"}
    linear = history(Linear(), {"kernel.variance": [1.0], "noise": [0.1]})
    ax = plotting.plot_training(linear)[1]
    assert [text.get_text() for text in ax.texts] == ["none in this kernel"]


def test_earlier_stages_of_training_are_apart():
    values = {"kernel.lengthscale": [1.0], "noise": [0.1]}
    result = history(RBF(1.0), values, count=5, last_stage=2)
    ax, lengths, _ = plotting.plot_training(result)
    assert texts(ax.get_legend()) == ["last stage", "earlier stages"]
    np.testing.assert_array_equal(drawn(ax, "last stage"), [[4, 5], [5, 4]])
    np.testing.assert_array_equal(drawn(ax, "earlier stages"), [[1, 2, 3], [8, 7, 6]])
    assert texts(lengths.get_legend()) == ["all columns"]
    one = plotting.plot_training(history(RBF(1.0), values, last_stage=3))[0]
    assert one.get_legend() is None
    with pytest.raises(ValueError, match="training took no step"):
        plotting.plot_training(history(RBF(1.0), values, count=0))


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


def test_of_many_columns_the_most_relevant_are_drawn_and_texts_as_bars():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(80, 20)), columns=[f"c{j}" for j in range(20)])
    table["sky"] = rng.choice(["clear", "rain", "snow"], 80)
    y = 3.0 * table["c7"] + (table["sky"] == "rain")
    fixed = {"expert": "exact", "n_experts": 1}
    kernel = "matern52(1, columns=[c7, sky]) + matern52(9)"
    gp = DistributedGPRegressor(kernel=kernel, training=None, **fixed).fit(table, y)
    for draw in (plotting.plot_slices, plotting.plot_partial_dependence):
        drawn = draw(gp, table)
        names = [ax.get_xlabel() for ax in drawn]
        assert len(drawn) == 12 and {"c7", "sky"} <= set(names)
        sky = drawn[names.index("sky")]
        assert [text.get_text() for text in sky.get_xticklabels()] == ["clear", "rain", "snow"]
        assert len(sky.patches) == 3
        at_rain = table.assign(sky="rain")
    (ax,) = plotting.plot_partial_dependence(gp, table, "sky", sample=len(table))
    np.testing.assert_allclose(ax.lines[0].get_ydata()[1], gp.predict(at_rain).mean())
    first, sky = plotting.plot_residuals(gp, table, y, features="sky")
    assert len(first.get_xticklabels()) and sky.get_xticklabels()[2].get_text() == "snow"


def test_mistakes_are_told(line, plane):
    model, X, y = plane
    one, x, z = line
    unknown = np.where(np.arange(len(y)) == 3, np.nan, y)
    axes = plotting.plot_relevance(model)
    for error, said, call in (
        (
            ValueError,
            r"y must have the shape .*\(5,\)",
            lambda: plotting.plot_prediction(one, x, z[:5]),
        ),
        (ValueError, "y must be numbers", lambda: plotting.plot_prediction(one, x, ["a"] * len(x))),
        (ValueError, "grid must be numbers", lambda: plotting.plot_prediction(one, grid=["a"])),
        (ValueError, "at must be numbers", lambda: plotting.plot_slices(model, X, at="mean")),
        (ValueError, "X must be numbers", lambda: plotting.plot_slices(model, [["a", "b"]])),
        (ValueError, "expected X with rows", lambda: plotting.plot_slices(model, X[:0])),
        (
            ValueError,
            "sample must be",
            lambda: plotting.plot_partial_dependence(model, X, sample=-1),
        ),
        (ValueError, "1 of .* no target", lambda: plotting.plot_residuals(model, X, unknown)),
        (ValueError, "1 of .* no target", lambda: plotting.plot_calibration(model, X, unknown)),
        (TypeError, "expected a fitted", lambda: plotting.plot_calibration(type(model), X, y)),
        (ValueError, "most must be", lambda: plotting.plot_relevance(model, X)),
        (TypeError, "expected the results", lambda: plotting.plot_comparison(model)),
        (TypeError, "expected the results", lambda: plotting.comparison_figure(model)),
        (ValueError, "metric must be one of", lambda: plotting.plot_comparison([], "mse")),
        (TypeError, "its attribute `figure`", lambda: plotting.save_figure(axes, "a.png")),
    ):
        with pytest.raises(error, match=said):
            call()


def test_lengthscales_in_km_are_not_said_to_be_in_deviations_of_a_column():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"lon": rng.uniform(5, 15, 40), "lat": rng.uniform(46, 55, 40)})
    for kernel, unit in (("matern32(200 km, columns=[lon, lat])", False), ("matern32", True)):
        gp = DistributedGPRegressor(expert="exact", n_experts=1, kernel=kernel, n_iter=3)
        axes = plotting.plot_training(gp.fit(X, np.sin(X["lon"])))
        assert ("sd of the column" in axes[1].get_ylabel()) == unit
