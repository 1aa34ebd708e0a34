"""The residuals of a model, and the coverage of its intervals: whether it is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from distgp.aggregation import Aggregator
from distgp.mixin import ModelMixin
from distgp.plotting.figures import (
    Columns,
    Subject,
    draw_points,
    label_panels,
    one_axes,
    panels,
    predicted,
    quantile,
)

BINS = 10
"""Groups of rows whose mean residual is drawn."""


def plot_residuals(
    model: ModelMixin,
    X: ArrayLike,
    y: ArrayLike,
    features: Columns | None = None,
    standardize: bool = False,
    axes: Sequence[Axes] | None = None,
    target: int = 0,
) -> list[Axes]:
    """Draw the residuals, observed minus predicted, against the predictions and against each column.

    A line joins the means of ten groups of rows of about the same size. Where the model has found all
    that the columns say, it stays near 0. Rows that the model was not fitted to tell more: residuals
    of training rows are smaller than those of new ones.

    Parameters
    ----------
    model : ModelMixin
        A fitted model.
    X, y : array-like
        Rows and their targets.
    features : sequence of str or int, optional
        The columns to draw against, by name or number; by default all.
    standardize : bool, default=False
        Whether to divide each residual by its predicted standard deviation. Then a band shows ±2, in
        which 95 % of the residuals are to be expected.
    axes : sequence of Axes, optional
        Where to draw, one more than columns; by default on a new figure, in rows of at most four.
    target : int, default=0
        Which target to draw, where there are several.

    Returns
    -------
    list of Axes
        The first is against the predictions.
    """
    shown = Subject.of(model, features, target)
    rows = shown.rows(X)
    mean, std, observed = map(shown.of_target, _checked(model, rows, y))
    residuals = (observed - mean) / std if standardize else observed - mean
    drawn = panels(1 + len(shown.columns), axes)
    inside = 100.0 * float(np.mean(np.abs(residuals) <= 2.0))
    for ax, x in zip(drawn, [mean, *rows.T[shown.columns]], strict=True):
        if standardize:
            label = f"±2, with {inside:.1f} % of the rows (expected: 95.4 %)"
            ax.axhspan(-2.0, 2.0, color="C0", alpha=0.15, linewidth=0, label=label)
        draw_points(ax, x, residuals, "rows", color="C0", alpha=0.5)
        ax.axhline(0.0, color="0.3", linewidth=1)
        ax.plot(*_binned(x, residuals), "o-", color="C1", markersize=3, label="means of groups")
    ylabel = shown.label("standardised residual" if standardize else "residual")
    label_panels(drawn, ["prediction", *shown.names], ylabel, axes is None)
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
    """
    options = {} if aggregation is None else {"aggregation": aggregation}
    mean, std, truth = _checked(model, X, y, latent=latent, **options)
    ax = one_axes(ax, (4.8, 4.8))
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


def _checked(
    model: ModelMixin, X: ArrayLike, y: ArrayLike, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, standard deviations, and targets of the same shape."""
    targets = np.asarray(y, dtype=np.float64)
    mean, std = predicted(model, X, **options)
    if targets.shape != mean.shape:
        raise ValueError(f"expected y of shape {mean.shape}, got {targets.shape}")
    return mean, std, targets


def _binned(x: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of x and of the values in groups of rows with neighbouring or equal x."""
    edges = np.unique(np.quantile(x, np.linspace(0.0, 1.0, BINS + 1)[1:-1]))
    group = np.searchsorted(edges, x, side="right")
    counts = np.bincount(group)
    filled = counts > 0
    means = [np.bincount(group, v)[filled] / counts[filled] for v in (x, values)]
    return means[0], means[1]
