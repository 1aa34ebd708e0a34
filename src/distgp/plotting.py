"""Pictures of models: each function draws on the Axes that it is given, or on new ones, and returns it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from sklearn.inspection import partial_dependence

from distgp.compare import Result
from distgp.estimator import GPEstimator
from distgp.files import whole
from distgp.training import TrainingResult

BAND = 0.9
"""The probability that a band shows."""
LEAST_BAR = 1e-3
"""On a logarithmic axis the shortest bar stands for anything below this share of the longest."""
MOST_POINTS = 5_000
"""Observations that are drawn: more would hide each other, and the picture would take megabytes."""
LABELS = {
    "rmse": "RMSE",
    "nlpd": "NLPD",
    "seconds": "seconds",
    "coverage": "coverage of 90 % intervals",
    "w2": "2-Wasserstein distance to the full GP",
}


def plot_prediction(
    model: GPEstimator,
    X: Any = None,
    y: Any = None,
    grid: Any = None,
    latent: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw the mean and the 90 % band of a model with one input.

    Parameters
    ----------
    model : GPEstimator
        A fitted model.
    X, y : array-like, optional
        Observations to draw as points.
    grid : array-like, optional
        Where to predict; by default over the range of X and a little beyond.
    latent : bool, default=False
        Whether the band is that of the function, without noise.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If the model has more than one input, or neither X nor a grid is given.
    """
    if model.n_features_in_ != 1:
        raise ValueError(
            f"plot_prediction draws models with one input, this one has {model.n_features_in_}: use "
            "plot_slices or plot_partial_dependence"
        )
    ax = _axes(ax)
    if grid is None:
        if X is None:
            raise ValueError("give X or a grid, to know where to draw")
        low, high = np.min(X), np.max(X)
        margin = 0.05 * (high - low)
        grid = np.linspace(low - margin, high + margin, 400)
    grid = np.ravel(np.asarray(grid, dtype=np.float64))
    if X is not None and y is not None:
        _points(ax, np.ravel(np.asarray(X)), np.asarray(y))
    _band(ax, model, grid, grid[:, None], latent)
    ax.set(xlabel=_feature(model, 0))
    ax.legend()
    return ax


def plot_slices(
    model: GPEstimator,
    X: Any,
    features: Sequence[int] | None = None,
    at: Any = None,
    latent: bool = False,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Draw the mean and the 90 % band along one input at a time, with the other inputs held still.

    Parameters
    ----------
    model : GPEstimator
        A fitted model.
    X : array-like
        Rows that give each input's range.
    features : sequence of int, optional
        The inputs to draw; by default all.
    at : array-like, optional
        The values of the inputs that are held still; by default their medians in X.
    latent : bool, default=False
        Whether the band is that of the function, without noise.
    axes : sequence of Axes, optional
        Where to draw, one per input.

    Returns
    -------
    list of Axes
    """
    X = np.asarray(X, dtype=np.float64)
    chosen = list(range(X.shape[1])) if features is None else list(features)
    still = np.median(X, axis=0) if at is None else np.asarray(at, dtype=np.float64)
    axes = _row_of_axes(len(chosen), axes)
    for ax, feature in zip(axes, chosen, strict=True):
        grid = _range(X[:, feature], 200)
        points = np.tile(still, (len(grid), 1))
        points[:, feature] = grid
        _band(ax, model, grid, points, latent)
        ax.set(xlabel=_feature(model, feature))
    axes[0].set_ylabel("prediction, others at their medians" if at is None else "prediction")
    return axes


def plot_partial_dependence(
    model: GPEstimator,
    X: Any,
    features: Sequence[int] | None = None,
    sample: int = 200,
    random_state: int = 0,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Draw the mean prediction over a sample of rows as one input is varied, and how the rows differ.

    Parameters
    ----------
    model : GPEstimator
        A fitted model with one target.
    X : array-like
        Rows to sample from.
    features : sequence of int, optional
        The inputs to vary; by default all.
    sample : int, default=200
        The number of rows.
    random_state : int, default=0
        The seed of the sample.
    axes : sequence of Axes, optional
        Where to draw, one per input.

    Returns
    -------
    list of Axes

    Raises
    ------
    ValueError
        If the model has several targets.
    """
    X = np.asarray(X, dtype=np.float64)
    chosen = list(range(X.shape[1])) if features is None else list(features)
    rows = X[np.random.default_rng(random_state).permutation(len(X))[:sample]]
    axes = _row_of_axes(len(chosen), axes)
    for ax, feature in zip(axes, chosen, strict=True):
        grid = _range(X[:, feature], 40)
        with _unnamed():
            found = partial_dependence(
                model, rows, [feature], kind="both", custom_values={feature: grid}
            )
        if len(found["average"]) > 1:
            raise ValueError(
                f"plot_partial_dependence draws models with one target, this one has "
                f"{len(found['average'])}: fit one model per target"
            )
        low, high = np.quantile(found["individual"][0], [0.05, 0.95], axis=0)
        ax.fill_between(grid, low, high, color="C0", alpha=0.2, label="90 % of rows")
        ax.plot(grid, found["average"][0], color="C0", label="mean over rows")
        ax.set(xlabel=_feature(model, feature))
    axes[0].set_ylabel("partial dependence")
    axes[0].legend()
    return axes


def plot_training(result: TrainingResult, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Draw the objective and the hyperparameters, round by round, of accepted rounds.

    Parameters
    ----------
    result : TrainingResult
        The attribute `training_` of a fitted model.
    axes : sequence of Axes, optional
        Where to draw, two of them.

    Returns
    -------
    list of Axes

    Raises
    ------
    ValueError
        If no round was accepted.
    """
    rounds = [round_ for round_ in result.history if round_.accepted]
    if not rounds:
        raise ValueError("training took no step, so there is nothing to draw")
    numbers = [round_.number for round_ in rounds]
    axes = _row_of_axes(2, axes)
    axes[0].plot(numbers, [round_.objective for round_ in rounds], color="C0")
    axes[0].set(xlabel="round", ylabel="objective (lower is better)")
    for name in rounds[0].hyperparameters:
        values = np.array([round_.hyperparameters[name] for round_ in rounds])
        for i, column in enumerate(values.T):
            label = name.removeprefix("kernel.").removeprefix("kernel.")
            axes[1].plot(numbers, column, label=label if values.shape[1] == 1 else f"{label} {i}")
    axes[1].set(xlabel="round", ylabel="hyperparameter", yscale="log")
    axes[1].legend(fontsize="small", ncols=2)
    return axes


def plot_comparison(
    results: Sequence[Result], metric: str = "rmse", ax: Axes | None = None
) -> Axes:
    """Draw one bar per aggregator, the best at the top, without those that failed.

    The full GP has another colour, and baselines are grey and hatched.

    Parameters
    ----------
    results : sequence of Result
        What `distgp.compare.compare` returns.
    metric : str, default="rmse"
        A field of `Result`: "rmse", "nlpd", "w2", "seconds" or "coverage".
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If no result has this figure.
    """
    ax = _axes(ax)
    shown = {r.name: getattr(r, metric) for r in results if r.error is None}
    values = {name: value for name, value in shown.items() if value is not None}
    if not values:
        raise ValueError(f"none of these results has a {metric} to draw")
    order = sorted(values, key=lambda name: values[name], reverse=True)
    heights = [values[name] for name in order]
    wide = min(heights) > 0 and max(heights) / min(heights) > 20
    drawn = np.maximum(heights, LEAST_BAR * max(heights)) if wide else np.array(heights)
    base = {r.name for r in results if r.baseline}
    for bar, name in zip(ax.barh(order, drawn), order, strict=True):
        if name in base:
            bar.set(facecolor="0.8", edgecolor="0.4", hatch="///")
        else:
            bar.set(facecolor="C1" if name.startswith("full") else "C0")
    if wide:
        ax.set_xscale("log")
    for name, height, end in zip(order, heights, drawn, strict=True):
        ax.annotate(f" {height:.3g}", (max(end, 0.0), name), va="center", fontsize="small")
    ax.tick_params(axis="y", labelsize="small")
    ax.set_xlabel(LABELS.get(metric, metric))
    ax.margins(x=0.18)
    return ax


def comparison_figure(results: Sequence[Result]) -> Figure:
    """Draw RMSE, NLPD and distance to the full GP of all aggregators in one figure.

    A legend explains the colours where there are baselines, which have no distance to the full GP.

    Parameters
    ----------
    results : sequence of Result
        What `distgp.compare.compare` returns.

    Returns
    -------
    Figure
    """
    shown = [m for m in ("rmse", "nlpd", "w2") if any(getattr(r, m) is not None for r in results)]
    size = (4.2 * len(shown), max(4.0, 0.27 * sum(r.error is None for r in results)))
    figure, axes = plt.subplots(1, len(shown), figsize=size, layout="constrained")
    for ax, metric in zip(np.ravel(axes), shown, strict=True):
        plot_comparison(results, metric, ax)
    if any(r.baseline and r.error is None for r in results):
        kinds = [Patch(facecolor="C0", label="aggregator")]
        if any(r.name.startswith("full") for r in results):
            kinds.append(Patch(facecolor="C1", label="full GP"))
        kinds.append(Patch(facecolor="0.8", edgecolor="0.4", hatch="///", label="baseline"))
        figure.legend(handles=kinds, loc="outside lower center", ncols=len(kinds))
    return figure


def plot_calibration(
    model: GPEstimator,
    X: Any,
    y: Any,
    aggregation: Any = None,
    latent: bool = False,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the observed coverage of central intervals against the nominal one.

    On the diagonal the intervals are honest, below it too narrow, above it too wide.

    Parameters
    ----------
    model : GPEstimator
        A fitted model.
    X, y : array-like
        Test rows and their targets.
    aggregation : str or Aggregator, optional
        Another aggregator than the one that the model was fitted with.
    latent : bool, default=False
        Whether y are values of the function itself, without noise.
    label : str, optional
        What the line is called; by default "model".
    ax : Axes, optional
        Where to draw; several models may share it.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If y has another shape than the predictions.
    """
    ax, y = _axes(ax), np.asarray(y, dtype=np.float64)
    options = {} if aggregation is None else {"aggregation": aggregation}
    mean, std = _predict(model, X, latent=latent, **options)
    if y.shape != mean.shape:
        raise ValueError(f"expected y of shape {mean.shape}, got {y.shape}")
    nominal = np.linspace(0.02, 0.98, 49)
    distance = np.abs(y - mean) / std
    observed = [(distance <= _quantile(p)).mean() for p in nominal]
    if not any(line.get_label() == "honest" for line in ax.lines):
        ax.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="honest")
    ax.plot(nominal, observed, label=label or "model")
    ax.set(xlabel="nominal coverage", ylabel="observed coverage", xlim=(0, 1), ylim=(0, 1))
    ax.set_aspect("equal")
    ax.legend()
    return ax


def check_suffix(path: Path | str) -> str:
    """Return the kind of picture that a path's suffix names, such as "png".

    Raises
    ------
    ValueError
        If matplotlib cannot write this kind.
    """
    kind = Path(path).suffix.removeprefix(".").lower()
    known = plt.figure().canvas.get_supported_filetypes()
    plt.close()
    if kind not in known:
        raise ValueError(
            f"cannot draw {Path(path).name!r}: expected a suffix of {', '.join(known)}"
        )
    return kind


def save_figure(figure: Figure, path: Path | str, close: bool = True) -> None:
    """Write a figure, whole or not at all; the same figure always becomes the same file.

    Parameters
    ----------
    figure : Figure
        What to write.
    path : path-like
        Where to; the suffix names the kind of picture.
    close : bool, default=True
        Whether to close the figure afterwards.
    """
    path, kind = Path(path), check_suffix(path)
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with whole(path) as part:
        figure.savefig(part, format=kind, dpi=150, metadata=undated)
    if close:
        plt.close(figure)


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots(layout="constrained")[1] if ax is None else ax


def _row_of_axes(count: int, axes: Sequence[Axes] | None) -> list[Axes]:
    """The Axes given, as many as are needed, or a new figure's."""
    if axes is None:
        made = plt.subplots(1, count, figsize=(4 * count, 3.2), layout="constrained", squeeze=False)
        return list(made[1][0])
    given = list(np.ravel(np.asarray(axes, dtype=object)))
    if len(given) != count:
        raise ValueError(f"expected {count} Axes, got {len(given)}")
    return given


def _band(ax: Axes, model: GPEstimator, x: np.ndarray, points: np.ndarray, latent: bool) -> None:
    """The prediction at some points, drawn over the coordinate x."""
    mean, std = _predict(model, points, latent=latent)
    half, label = _quantile(BAND) * std, f"90 % of {'f' if latent else 'y'}"
    ax.fill_between(x, mean - half, mean + half, color="C0", alpha=0.25, label=label)
    ax.plot(x, mean, color="C0", label="mean")


def _points(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Observations, or a sample of them where they are many."""
    some = np.random.default_rng(0).permutation(len(x))[:MOST_POINTS]
    few = len(x) <= MOST_POINTS
    label = "observations" if few else f"{MOST_POINTS:,} of {len(x):,} observations"
    ax.plot(x[some], y[some], ".", color="0.7", markersize=2, label=label, rasterized=True)


def _predict(model: Any, X: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations."""
    with _unnamed():
        return model.predict(X, return_std=True, **options)


@contextmanager
def _unnamed() -> Iterator[None]:
    """Accept arrays for a model that was fitted to a table: their columns are in its order."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield


def _range(values: np.ndarray, size: int) -> np.ndarray:
    """Evenly spaced points over the range of the values, without the outermost 2 % of them."""
    return np.linspace(float(np.quantile(values, 0.01)), float(np.quantile(values, 0.99)), size)


def _quantile(level: float) -> float:
    """Half the width of the central interval of this level, in standard deviations."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def _feature(model: GPEstimator, index: int) -> str:
    """What an input is called."""
    table, names = getattr(model, "table_", None), getattr(model, "feature_names_in_", None)
    if table is not None:
        names = table.features
    return f"x{index}" if names is None else str(names[index])
