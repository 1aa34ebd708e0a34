"""Predictions along one input at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike
from sklearn.inspection import partial_dependence

from distgp.mixin import ModelMixin
from distgp.plotting.figures import (
    BAND,
    Columns,
    Subject,
    draw_points,
    label_panels,
    one_axes,
    panels,
    predicted,
    quantile,
    quietly,
)


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
    X, y : array-like, optional
        Observations to draw as points.
    grid : array-like, optional
        Where to predict; by default over the range of X and a little beyond.
    latent : bool, default=False
        Whether the band is that of the function, without noise.
    ax : Axes, optional
        Where to draw.
    target : int, default=0
        Which target to draw, where there are several.

    Returns
    -------
    Axes
    """
    shown = Subject.of(model, target=target)
    if model.n_features_in_ != 1:
        raise ValueError(
            f"plot_prediction draws models with one input, this one has {model.n_features_in_}: use "
            "plot_slices or plot_partial_dependence"
        )
    x = None if X is None else shown.rows(np.reshape(X, (-1, 1)) if np.ndim(X) == 1 else X)[:, 0]
    if grid is None:
        if x is None:
            raise ValueError("give X or a grid, to know where to draw")
        margin = 0.05 * (x.max() - x.min())
        grid = np.linspace(x.min() - margin, x.max() + margin, 400)
    ax = one_axes(ax)
    if x is not None and y is not None:
        draw_points(ax, x, shown.of_target(np.asarray(y)))
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
    X : array-like
        Rows that give each input's range.
    features : sequence of str or int, optional
        The inputs to draw, by name or number; by default all.
    at : array-like, optional
        The values of the inputs that are held still; by default their medians in X.
    latent : bool, default=False
        Whether the band is that of the function, without noise.
    axes : sequence of Axes, optional
        Where to draw, one per input; by default on a new figure, in rows of at most four.
    target : int, default=0
        Which target to draw, where there are several.

    Returns
    -------
    list of Axes
    """
    shown = Subject.of(model, features, target)
    rows = shown.rows(X)
    still = np.median(rows, axis=0) if at is None else np.ravel(np.asarray(at, dtype=np.float64))
    if len(still) != rows.shape[1]:
        raise ValueError(f"expected `at` to have {rows.shape[1]} values, got {len(still)}")
    drawn = panels(len(shown.columns), axes)
    for ax, column in zip(drawn, shown.columns, strict=True):
        grid = _range(rows[:, column], 200)
        points = np.tile(still, (len(grid), 1))
        points[:, column] = grid
        _draw_band(ax, shown, grid, points, latent)
    title = "other columns at their medians" if at is None else "other columns held still"
    label_panels(drawn, shown.names, shown.label("prediction"), axes is None, title)
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
    X : array-like
        Rows to sample from.
    features : sequence of str or int, optional
        The inputs to vary, by name or number; by default all.
    sample : int, default=200
        The number of rows.
    random_state : int, default=0
        The seed of the sample.
    axes : sequence of Axes, optional
        Where to draw, one per input; by default on a new figure, in rows of at most four.
    target : int, default=0
        Which target to draw, where there are several.

    Returns
    -------
    list of Axes
    """
    shown = Subject.of(model, features, target)
    rows = shown.rows(X)
    some = rows[np.random.default_rng(random_state).permutation(len(rows))[:sample]]
    drawn = panels(len(shown.columns), axes)
    for ax, column in zip(drawn, shown.columns, strict=True):
        grid = _range(rows[:, column], 40)
        with quietly():
            found = partial_dependence(
                model, some, [column], kind="both", custom_values={column: grid}
            )
        low, high = np.quantile(found["individual"][target], [0.05, 0.95], axis=0)
        ax.fill_between(grid, low, high, color="C0", alpha=0.2, label="90 % of rows")
        ax.plot(grid, found["average"][target], color="C0", label="mean over rows")
    label_panels(drawn, shown.names, shown.label("partial dependence"), axes is None)
    return drawn


def _draw_band(ax: Axes, shown: Subject, x: np.ndarray, points: np.ndarray, latent: bool) -> None:
    """Draw the prediction at some points over the coordinate x."""
    found = predicted(shown.model, points, made_up=True, latent=latent)
    mean, std = map(shown.of_target, found)
    half, label = quantile(BAND) * std, f"90 % of {'f' if latent else 'y'}"
    ax.fill_between(x, mean - half, mean + half, color="C0", alpha=0.25, label=label)
    ax.plot(x, mean, color="C0", label="mean")


def _range(values: np.ndarray, size: int) -> np.ndarray:
    """Return evenly spaced points over the range of the values, without the outermost 2 % of them."""
    return np.linspace(float(np.quantile(values, 0.01)), float(np.quantile(values, 0.99)), size)
