"""What a model predicts, along one input at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from sklearn.inspection import partial_dependence

from distgp.mixin import ModelMixin
from distgp.plotting.panels import (
    BAND,
    Columns,
    about_target,
    check_model,
    check_target,
    columns_of,
    draw_points,
    label_panels,
    made_up,
    of_target,
    one_axes,
    panels,
    predicted,
    quantile,
    rows_of,
)
from distgp.summary import column_names


def plot_prediction(
    model: ModelMixin,
    X: Any = None,
    y: Any = None,
    grid: Any = None,
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

    Raises
    ------
    ValueError
        If the model has more than one input, or neither X nor a grid is given.
    """
    check_model(model)
    check_target(model, target)
    if model.n_features_in_ != 1:
        raise ValueError(
            f"plot_prediction draws models with one input, this one has {model.n_features_in_}: use "
            "plot_slices or plot_partial_dependence"
        )
    if X is not None:
        X = rows_of(model, np.reshape(X, (-1, 1)) if np.ndim(X) == 1 else X)[:, 0]
    if grid is None:
        if X is None:
            raise ValueError("give X or a grid, to know where to draw")
        low, high = X.min(), X.max()
        margin = 0.05 * (high - low)
        grid = np.linspace(low - margin, high + margin, 400)
    grid = np.ravel(np.asarray(grid, dtype=np.float64))
    ax = one_axes(ax)
    if X is not None and y is not None:
        draw_points(ax, X, of_target(np.asarray(y), target))
    _band(ax, model, grid, grid[:, None], latent, target)
    ax.set(xlabel=column_names(model)[0], ylabel=about_target(model, target, "prediction"))
    ax.legend()
    return ax


def plot_slices(
    model: ModelMixin,
    X: Any,
    features: Columns | None = None,
    at: Any = None,
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

    Raises
    ------
    ValueError
        If a column, the target or the number of Axes is not what it should be.
    """
    rows = rows_of(model, X)
    check_target(model, target)
    chosen = columns_of(model, features)
    still = np.median(rows, axis=0) if at is None else np.ravel(np.asarray(at, dtype=np.float64))
    if len(still) != rows.shape[1]:
        raise ValueError(f"expected `at` to have {rows.shape[1]} values, got {len(still)}")
    drawn = panels(len(chosen), axes)
    for ax, feature in zip(drawn, chosen, strict=True):
        grid = _range(rows[:, feature], 200)
        points = np.tile(still, (len(grid), 1))
        points[:, feature] = grid
        _band(ax, model, grid, points, latent, target)
    names = [column_names(model)[feature] for feature in chosen]
    title = "other columns at their medians" if at is None else "other columns held still"
    label_panels(drawn, names, about_target(model, target, "prediction"), axes is None, title)
    return drawn


def plot_partial_dependence(
    model: ModelMixin,
    X: Any,
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

    Raises
    ------
    ValueError
        If a column, the target or the number of Axes is not what it should be.
    """
    rows = rows_of(model, X)
    check_target(model, target)
    chosen = columns_of(model, features)
    some = rows[np.random.default_rng(random_state).permutation(len(rows))[:sample]]
    drawn = panels(len(chosen), axes)
    for ax, feature in zip(drawn, chosen, strict=True):
        grid = _range(rows[:, feature], 40)
        with made_up():
            found = partial_dependence(
                model, some, [feature], kind="both", custom_values={feature: grid}
            )
        low, high = np.quantile(found["individual"][target], [0.05, 0.95], axis=0)
        ax.fill_between(grid, low, high, color="C0", alpha=0.2, label="90 % of rows")
        ax.plot(grid, found["average"][target], color="C0", label="mean over rows")
    names = [column_names(model)[feature] for feature in chosen]
    label_panels(drawn, names, about_target(model, target, "partial dependence"), axes is None)
    return drawn


def _band(
    ax: Axes, model: ModelMixin, x: np.ndarray, points: np.ndarray, latent: bool, target: int
) -> None:
    """The prediction at some points, drawn over the coordinate x."""
    with made_up():
        mean, std = (of_target(v, target) for v in predicted(model, points, latent=latent))
    half, label = quantile(BAND) * std, f"90 % of {'f' if latent else 'y'}"
    ax.fill_between(x, mean - half, mean + half, color="C0", alpha=0.25, label=label)
    ax.plot(x, mean, color="C0", label="mean")


def _range(values: np.ndarray, size: int) -> np.ndarray:
    """Evenly spaced points over the range of the values, without the outermost 2 % of them."""
    return np.linspace(float(np.quantile(values, 0.01)), float(np.quantile(values, 0.99)), size)
