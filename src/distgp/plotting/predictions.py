"""Predictions along the inputs, residuals, coverage of intervals, and the relevance of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from distgp._util.checks import a_count, a_seed
from distgp._util.progress import counted
from distgp.aggregation import Aggregator
from distgp.data.rows import as_numbers, observed_targets
from distgp.mixin import ModelMixin
from distgp.plotting import figures
from distgp.plotting.figures import BAND, Columns, Subject, predicted, quantile
from distgp.regressor import DistributedGPRegressor, Inputs

BINS = 10
"""Groups of rows whose mean residual is drawn."""


def plot_prediction(
    model: ModelMixin,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    grid: ArrayLike | None = None,
    latent: bool = False,
    ax: Axes | None = None,
    target: int = 0,
) -> Axes:
    """Draw the mean and the 90 % band of a model with one input.

    Parameters
    ----------
    model : ModelMixin
        A fitted model.
    X, y : array-like of shapes (n, 1) and (n,), optional
        Observations to draw as points.
    grid : array-like of shape (N,), optional
        Where to predict; by default over the range of X and a little beyond.
    latent : bool, default=False
        Whether the band is that of the function, without noise.
    ax : Axes, optional
        Where to draw.
    target : int, default=0
        Which target to draw, where there are several.
    """
    shown = Subject.of(model, target=target)
    if (d := model.model_.schema.n_features) != 1:
        raise ValueError(
            f"plot_prediction draws models with one input, this one has {d}: use "
            "plot_slices or plot_partial_dependence"
        )
    x = None if X is None else shown.rows(np.reshape(X, (-1, 1)) if np.ndim(X) == 1 else X)[:, 0]
    if grid is None:
        if x is None:
            raise ValueError("give X or a grid, to know where to draw")
        margin = 0.05 * (x.max() - x.min())
        grid = np.linspace(x.min() - margin, x.max() + margin, 400)
    ax = figures.one_axes(ax)
    if x is not None and y is not None:
        several = () if model.model_.one_target else (len(model.model_.targets),)
        figures.draw_points(ax, x, shown.of_target(observed_targets(y, (len(x), *several))))
    with as_numbers("grid", tables=False):
        points = np.reshape(np.asarray(grid, dtype=np.float64), (-1, 1))
    _draw_band(ax, shown, points[:, 0], points, latent)
    ax.set(xlabel=shown.names[0], ylabel=shown.label("prediction"))
    ax.legend()
    return ax


def plot_slices(
    model: ModelMixin,
    X: ArrayLike,
    features: Columns | None = None,
    at: ArrayLike | None = None,
    latent: bool = False,
    axes: Sequence[Axes] | None = None,
    target: int = 0,
) -> list[Axes]:
    """Draw the mean and the 90 % band along one input at a time, with the other inputs held still.

    Parameters
    ----------
    model : ModelMixin
        A fitted model.
    X : array-like of shape (n, d)
        Rows that give each input's range.
    features : sequence of str or int, optional
        The inputs to draw, by name or number; by default all, or of more
        than twelve the most relevant.
    at : array-like of shape (d,), optional
        The values of the inputs that are held still; by default their medians in X.
    latent : bool, default=False
        Whether the band is that of the function, without noise.
    axes : sequence of Axes, optional
        Where to draw, one per input; by default on a new figure, in rows of at most four.
    target : int, default=0
        Which target to draw, where there are several.
    """
    shown = Subject.of(model, features, target)
    rows = shown.rows(X)
    with as_numbers("at", tables=False):
        still = shown.middle(rows) if at is None else np.ravel(np.asarray(at, dtype=np.float64))
    if len(still) != rows.shape[1]:
        raise ValueError(f"expected `at` to have {rows.shape[1]} values, got {len(still)}")
    drawn = figures.panels(len(shown.columns), axes)
    for ax, column in zip(drawn, shown.columns, strict=True):
        values = shown.values(rows, column, 200)
        points = np.tile(still, (len(values), 1))
        points[:, column] = values
        _draw_band(ax, shown, values[:, 0], points, latent, shown.levels(column))
    title = "other columns at their medians" if at is None else "other columns held still"
    figures.label_panels(drawn, shown.names, shown.label("prediction"), axes is None, title)
    return drawn


def plot_parts(
    model: DistributedGPRegressor,
    X: Inputs,
    along: str | ArrayLike | None = None,
    axes: Sequence[Axes] | None = None,
    target: int = 0,
) -> list[Axes]:
    """Draw the parts that the function is the sum of, each with the band that holds it with 90 %.

    Parameters
    ----------
    model : DistributedGPRegressor
        A fitted model that knows its parts: see `decompose`.
    X : array-like or table of shape (N, d)
        Points, such as the rows of a series and those to come.
    along : str or array-like of shape (N,), optional
        What to draw them over: the name of a column of X, or one value for each row. By default the first
        column of dates of a table, or else the first column.
    axes : sequence of Axes, optional
        Where to draw, one per part; by default one above the other on a new figure.
    target : int, default=0
        Which target to draw, where there are several.
    """
    shown = Subject.of(model, target=target)
    level, *parts = model.decompose(X).items()
    over, name = figures.coordinate(X, along, len(level[1][0]))
    order = np.argsort(over, kind="stable")
    size = (8.0, 0.8 + 1.9 * len(parts))
    own = axes is None
    drawn = (
        figures.grid_of_axes(len(parts), 1, size) if own else figures.given_axes(len(parts), axes)
    )
    for ax, (title, found) in zip(drawn, parts, strict=True):
        mean, std = (shown.of_target(values)[order] for values in found)
        half = quantile(BAND) * std
        ax.fill_between(over[order], mean - half, mean + half, color="C0", alpha=0.25, label="90 %")
        ax.plot(over[order], mean, color="C0", label="mean")
        ax.axhline(0.0, color="0.7", linewidth=0.8, zorder=0)
        ax.set_title(figures.short(title, 80), fontsize="small", loc="left")
        ax.set_ylabel(shown.label("part"))
    drawn[-1].set_xlabel(figures.short(name))
    drawn[0].legend(fontsize="small")
    return drawn


def plot_partial_dependence(
    model: ModelMixin,
    X: ArrayLike,
    features: Columns | None = None,
    sample: int = 200,
    random_state: int = 0,
    axes: Sequence[Axes] | None = None,
    target: int = 0,
) -> list[Axes]:
    """Draw the mean prediction over a sample of rows as one input is varied, and how the rows differ.

    Parameters
    ----------
    model : ModelMixin
        A fitted model.
    X : array-like of shape (n, d)
        Rows to sample from.
    features : sequence of str or int, optional
        The inputs to vary, by name or number; by default all, or of more than twelve the most relevant.
    sample : int, default=200
        The number of rows.
    random_state : int, default=0
        The seed of the sample.
    axes : sequence of Axes, optional
        Where to draw, one per input; by default on a new figure, in rows of at most four.
    target : int, default=0
        Which target to draw, where there are several.
    """
    a_count()("sample", sample)
    random_state = a_seed("random_state", random_state)
    shown = Subject.of(model, features, target)
    rows = shown.rows(X)
    some = rows[np.random.default_rng(random_state).permutation(len(rows))[:sample]]
    drawn = figures.panels(len(shown.columns), axes)
    for ax, column in zip(drawn, shown.columns, strict=True):
        values, levels = shown.values(rows, column, 40), shown.levels(column)
        points = np.tile(some, (len(values), 1))
        points[:, column] = np.repeat(values, len(some), axis=0)
        found = shown.of_target(figures.predicted(model, points, made_up=True)[0])
        found = found.reshape(len(values), len(some))
        low, high = np.quantile(found, [0.05, 0.95], axis=1)
        labels = "mean over rows", "90 % of rows"
        _draw_between(ax, values[:, 0], found.mean(1), low, high, labels, levels)
    figures.label_panels(drawn, shown.names, shown.label("partial dependence"), axes is None)
    return drawn


def plot_residuals(
    model: ModelMixin,
    X: ArrayLike,
    y: ArrayLike,
    features: Columns | None = None,
    standardize: bool = False,
    axes: Sequence[Axes] | None = None,
    target: int = 0,
) -> list[Axes]:
    """Draw the residuals, observed minus predicted, against the predictions, then against each column.

    A line joins the means of ten groups of rows of about the same size. Where the model has found all
    that the columns say, it stays near 0. Residuals of training rows are smaller than those of new ones.

    Parameters
    ----------
    model : ModelMixin
        A fitted model.
    X, y : array-like of shapes (n, d) and (n,)
        Rows and their targets.
    features : sequence of str or int, optional
        The columns to draw against, by name or number; by default all, or of more than twelve the most
        relevant.
    standardize : bool, default=False
        Whether to divide each residual by its predicted standard deviation. Then a band shows ±2, in
        which 95 % of the residuals are to be expected.
    axes : sequence of Axes, optional
        Where to draw, one more than columns; by default on a new figure, in rows of at most four.
    target : int, default=0
        Which target to draw, where there are several.
    """
    shown = Subject.of(model, features, target)
    rows = shown.rows(X)
    mean, std, observed = map(shown.of_target, _checked(model, rows, y))
    residuals = (observed - mean) / std if standardize else observed - mean
    drawn = figures.panels(1 + len(shown.columns), axes)
    inside = 100.0 * float(np.mean(np.abs(residuals) <= 2.0))
    along = [(mean, []), *(_codes(rows, shown, column) for column in shown.columns)]
    for ax, (x, levels) in zip(drawn, along, strict=True):
        if standardize:
            label = f"±2, with {inside:.1f} % of the rows (expected: 95.4 %)"
            ax.axhspan(-2.0, 2.0, color="C0", alpha=0.15, linewidth=0, label=label)
        figures.draw_points(ax, x, residuals, "rows", color="C0", alpha=0.5)
        ax.axhline(0.0, color="0.3", linewidth=1)
        ax.plot(*_binned(x, residuals), "o-", color="C1", markersize=3, label="means of groups")
        _name_levels(ax, levels)
    ylabel = shown.label("standardised residual" if standardize else "residual")
    figures.label_panels(drawn, ["prediction", *shown.names], ylabel, axes is None)
    return drawn


def plot_calibration(
    model: ModelMixin,
    X: ArrayLike,
    y: ArrayLike,
    aggregation: str | Aggregator | None = None,
    latent: bool = False,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the observed coverage of central intervals against the nominal one.

    On the diagonal the intervals are honest, below it too narrow, above it too wide.

    Parameters
    ----------
    model : ModelMixin
        A fitted model.
    X, y : array-like of shapes (n, d) and (n,)
        Test rows and their targets.
    aggregation : str or Aggregator, optional
        Another aggregator than the one that the model was fitted with.
    latent : bool, default=False
        Whether y are values of the function itself, without noise.
    label : str, optional
        What the line is called; by default "model".
    ax : Axes, optional
        Where to draw; several models may share it.
    """
    options = {} if aggregation is None else {"aggregation": aggregation}
    mean, std, truth = _checked(model, X, y, latent=latent, **options)
    ax = figures.one_axes(ax, (4.8, 4.8))
    nominal = np.linspace(0.02, 0.98, 49)
    distance = np.abs(truth - mean) / std
    observed = [(distance <= quantile(p)).mean() for p in nominal]
    if not any(line.get_label() == "honest" for line in ax.lines):
        ax.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="honest")
    ax.plot(nominal, observed, label=label or "model")
    ax.set(xlabel="nominal coverage", ylabel="observed coverage", xlim=(0, 1), ylim=(0, 1))
    ax.set_aspect("equal")
    ax.legend()
    return ax


def plot_relevance(model: ModelMixin, most: int = 20, ax: Axes | None = None) -> Axes:
    """Draw the relevance of each column, the most relevant at the top; all shares add up to 1.

    `distgp.diagnostics.summary.feature_relevance` explains what relevance is. A text column has one bar. Of
    several targets each column has one bar per target, in the order of the mean relevance.

    Parameters
    ----------
    model : ModelMixin
        A fitted model.
    most : int, default=20
        The number of columns to draw, at most; a note tells how many are left out.
    ax : Axes, optional
        Where to draw.
    """
    figures.check_model(model)
    a_count()("most", most)
    about = model.summary()
    names, shares = about.relevance_by_column()
    order = np.argsort(-shares.mean(0), kind="stable")[:most]
    several = len(shares) > 1
    ax = figures.one_axes(ax, (7.0, 1.1 + len(order) * max(0.3, 0.13 * len(shares))))
    places, height = np.arange(len(order)), 0.8 / len(shares)
    for i, (target, share) in enumerate(zip(about.targets, shares, strict=True)):
        middle = places + (i - (len(shares) - 1) / 2) * height
        bars = ax.barh(middle, share[order], height, color=f"C{i % 10}", label=target.target)
        if not several:
            ax.bar_label(bars, fmt=" {:.3f}", fontsize="small")
    ax.set_yticks(places, [figures.short(names[j], 30) for j in order])
    ax.invert_yaxis()
    ax.margins(x=0.12, y=0.02)
    left_out = counted(len(names) - len(order), "column")
    note = f"\nleft out: {left_out} of less relevance" if len(names) > len(order) else ""
    ax.set_xlabel(f"relevance{note}")
    if several:
        ax.legend(title="target", fontsize="small", loc="lower right")
    return ax


def _draw_band(
    ax: Axes,
    shown: Subject,
    x: np.ndarray,
    points: np.ndarray,
    latent: bool,
    levels: Sequence[str] = (),
) -> None:
    """Draw the prediction at some points over the coordinate x, or over texts."""
    found = predicted(shown.model, points, made_up=True, latent=latent)
    mean, std = map(shown.of_target, found)
    half, labels = quantile(BAND) * std, ("mean", f"90 % of {'f' if latent else 'y'}")
    _draw_between(ax, x, mean, mean - half, mean + half, labels, levels)


def _draw_between(
    ax: Axes,
    x: np.ndarray,
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    labels: tuple[str, str],
    levels: Sequence[str] = (),
) -> None:
    """Draw means with the ranges around them: a line in a band, or of texts points on bars."""
    if not levels:
        ax.fill_between(x, low, high, color="C0", alpha=0.25, label=labels[1])
        ax.plot(x, mean, color="C0", label=labels[0])
        return
    places = np.arange(len(levels))
    ax.bar(places, high - low, 0.6, low, color="C0", alpha=0.25, label=labels[1])
    ax.plot(places, mean, "o", color="C0", markersize=4, label=labels[0])
    _name_levels(ax, levels)


def _name_levels(ax: Axes, levels: Sequence[str]) -> None:
    """Write texts below their places."""
    if levels:
        ax.set_xticks(range(len(levels)), [figures.short(text, 12) for text in levels])
        ax.tick_params(axis="x", labelrotation=90 if len(levels) > 4 else 0, labelsize="small")


def _codes(
    rows: np.ndarray, shown: Subject, column: tuple[int, ...]
) -> tuple[np.ndarray, list[str]]:
    """A column's numbers in the rows, (n,), or the places of its texts, and these."""
    levels = shown.levels(column)
    return rows[:, column].argmax(1) if levels else rows[:, column[0]], levels


def _checked(
    model: ModelMixin, X: ArrayLike, y: ArrayLike, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, standard deviations, and targets of the same shape."""
    mean, std = predicted(figures.check_model(model), X, **options)
    targets = observed_targets(y, mean.shape)
    known = np.isfinite(targets - mean).reshape(len(mean), -1).all(1)
    if not known.all():
        raise ValueError(
            f"{int((~known).sum())} of {len(mean)} rows have no target, or values that are missing: leave "
            "them out of the plot"
        )
    return mean, std, targets


def _binned(x: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of x and of the values in groups of rows with neighbouring or equal x."""
    edges = np.unique(np.quantile(x, np.linspace(0.0, 1.0, BINS + 1)[1:-1]))
    group = np.searchsorted(edges, x, side="right")
    counts = np.bincount(group)
    filled = counts > 0
    means = [np.bincount(group, v)[filled] / counts[filled] for v in (x, values)]
    return means[0], means[1]
