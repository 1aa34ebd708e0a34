"""Pictures of models: each function draws on the Axes it is given, or makes one, and returns it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distgp.comparison import Result
from distgp.files import whole
from distgp.regressor import DistributedGPRegressor, predict_unnamed
from distgp.training import TrainingResult

BAND = 0.9
"""The probability that a band shows."""
LEAST_BAR = 1e-3
"""On a logarithmic axis the shortest bar stands for anything below this share of the longest."""


def plot_prediction(
    model: DistributedGPRegressor,
    X: Any = None,
    y: Any = None,
    grid: Any = None,
    latent: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Mean and 90 % band of a model with one input, with the observations where they are given."""
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
    mean, std = predict_unnamed(model, grid[:, None], return_std=True, latent=latent)
    _band(ax, grid, mean, std, "f" if latent else "y")
    ax.set(xlabel=_feature(model, 0))
    ax.legend()
    return ax


def plot_slices(
    model: DistributedGPRegressor,
    X: Any,
    features: Sequence[int] | None = None,
    at: Any = None,
    latent: bool = False,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Mean and band along one input at a time, the others held at `at` (their medians)."""
    X = np.asarray(X, dtype=np.float64)
    which = list(range(X.shape[1])) if features is None else list(features)
    fixed = np.median(X, axis=0) if at is None else np.asarray(at, dtype=np.float64)
    axes = _row_of_axes(len(which), axes)
    for ax, feature in zip(axes, which, strict=True):
        grid = _range(X[:, feature])
        points = np.tile(fixed, (len(grid), 1))
        points[:, feature] = grid
        mean, std = predict_unnamed(model, points, return_std=True, latent=latent)
        _band(ax, grid, mean, std, "f" if latent else "y")
        ax.set(xlabel=_feature(model, feature))
    axes[0].set_ylabel("prediction, others at their medians" if at is None else "prediction")
    return axes


def plot_partial_dependence(
    model: DistributedGPRegressor,
    X: Any,
    features: Sequence[int] | None = None,
    sample: int = 200,
    random_state: int = 0,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """The mean prediction over a sample of rows as one input is varied, and how the rows differ."""
    X = np.asarray(X, dtype=np.float64)
    which = list(range(X.shape[1])) if features is None else list(features)
    rows = np.random.default_rng(random_state).permutation(len(X))[:sample]
    axes = _row_of_axes(len(which), axes)
    for ax, feature in zip(axes, which, strict=True):
        grid = _range(X[:, feature], 40)
        points = np.repeat(X[rows], len(grid), axis=0)
        points[:, feature] = np.tile(grid, len(rows))
        each = predict_unnamed(model, points).reshape(len(rows), len(grid))
        low, high = np.quantile(each, [0.05, 0.95], axis=0)
        ax.fill_between(grid, low, high, color="C0", alpha=0.2, label="90 % of rows")
        ax.plot(grid, each.mean(0), color="C0", label="mean over rows")
        ax.set(xlabel=_feature(model, feature))
    axes[0].set_ylabel("partial dependence")
    axes[0].legend()
    return axes


def plot_training(result: TrainingResult, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """The objective and the hyperparameters, round by round (accepted rounds)."""
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
    """One bar an aggregator, best at the top; those that could not serve are left out."""
    ax = _axes(ax)
    shown = [r for r in results if r.error is None]
    values = {r.name: getattr(r, metric) for r in shown}
    values = {name: value for name, value in values.items() if value is not None}
    if not values:
        raise ValueError(f"none of these results has a {metric} to draw")
    order = sorted(values, key=lambda name: values[name], reverse=True)
    colors = ["C1" if name.startswith("full") else "C0" for name in order]
    heights = [values[name] for name in order]
    least = LEAST_BAR * max(heights)
    wide = min(heights) > 0 and max(heights) / min(heights) > 20
    drawn = [max(height, least) if wide else height for height in heights]
    ax.barh(order, drawn, color=colors)
    if wide:
        ax.set_xscale("log")
    for name, height, end in zip(order, heights, drawn, strict=True):
        ax.annotate(f" {height:.3g}", (max(end, 0.0), name), va="center", fontsize="small")
    ax.tick_params(axis="y", labelsize="small")
    ax.set_xlabel(LABELS.get(metric, metric))
    ax.margins(x=0.18)
    return ax


def comparison_figure(results: Sequence[Result]) -> Figure:
    """RMSE, NLPD and distance to the full GP of all aggregators."""
    shown = [m for m in ("rmse", "nlpd", "w2") if any(getattr(r, m) is not None for r in results)]
    figure, axes = plt.subplots(1, len(shown), figsize=(4.2 * len(shown), 4), layout="constrained")
    for ax, metric in zip(np.ravel(axes), shown, strict=True):
        plot_comparison(results, metric, ax)
    return figure


def plot_calibration(
    model: DistributedGPRegressor,
    X: Any,
    y: Any,
    aggregation: Any = None,
    latent: bool = False,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Nominal against observed coverage of central intervals: on the diagonal they are honest.

    latent: y are values of the function itself, without noise.
    """
    ax, y = _axes(ax), np.asarray(y, dtype=np.float64)
    mean, std = predict_unnamed(model, X, return_std=True, latent=latent, aggregation=aggregation)
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
    """What kind of picture a path names."""
    kind = Path(path).suffix.removeprefix(".").lower()
    known = plt.figure().canvas.get_supported_filetypes()
    plt.close()
    if kind not in known:
        raise ValueError(
            f"cannot draw {Path(path).name!r}: expected a suffix of {', '.join(known)}"
        )
    return kind


def save_figure(figure: Figure, path: Path | str, close: bool = True) -> None:
    """Write a figure by the suffix of its path, whole or not at all; the same figure as the same file."""
    path, kind = Path(path), check_suffix(path)
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with whole(path) as part:
        figure.savefig(part, format=kind, dpi=150, metadata=undated)
    if close:
        plt.close(figure)


LABELS = {
    "rmse": "RMSE",
    "nlpd": "NLPD",
    "seconds": "seconds",
    "coverage": "coverage of 90 % intervals",
    "w2": "2-Wasserstein distance to the full GP",
}


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots(layout="constrained")[1] if ax is None else ax


def _row_of_axes(count: int, axes: Sequence[Axes] | None) -> list[Axes]:
    if axes is None:
        made = plt.subplots(1, count, figsize=(4 * count, 3.2), layout="constrained", squeeze=False)
        return list(made[1][0])
    given = list(np.ravel(np.asarray(axes, dtype=object)))
    if len(given) != count:
        raise ValueError(f"expected {count} Axes, got {len(given)}")
    return given


def _band(ax: Axes, x: np.ndarray, mean: np.ndarray, std: np.ndarray, of: str) -> None:
    half = _quantile(BAND) * std
    ax.fill_between(x, mean - half, mean + half, color="C0", alpha=0.25, label=f"90 % of {of}")
    ax.plot(x, mean, color="C0", label="mean")


def _points(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    most = 5_000  # more would hide each other, and the picture would take megabytes
    some = np.random.default_rng(0).permutation(len(x))[:most]
    label = "observations" if len(x) <= most else f"{most:,} of {len(x):,} observations"
    ax.plot(x[some], y[some], ".", color="0.7", markersize=2, label=label, rasterized=True)


def _range(values: np.ndarray, size: int = 200) -> np.ndarray:
    return np.linspace(float(np.quantile(values, 0.01)), float(np.quantile(values, 0.99)), size)


def _quantile(level: float) -> float:
    """Half the width of the central interval of this level, in standard deviations."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def _feature(model: DistributedGPRegressor, index: int) -> str:
    table, names = getattr(model, "table_", None), getattr(model, "feature_names_in_", None)
    if table is not None:
        names = table.features
    return f"x{index}" if names is None else str(names[index])
