"""What the pictures share: Axes in rows, columns by name, checked inputs, and points."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from sklearn.utils.validation import check_is_fitted

from distgp.data import frames
from distgp.mixin import ModelMixin
from distgp.novelty import NoveltyWarning
from distgp.summary import column_names, summary

BAND = 0.9
"""The probability that a band shows."""
MOST_POINTS = 5_000
"""Observations that are drawn: more would hide each other, and the picture would take megabytes."""
MANY_POINTS = 1_000
"""Observations from which on each is drawn small."""
PANELS_IN_A_ROW = 4
"""Panels side by side, at most; more go into further rows."""
WIDTHS = (4.8, 7.0, 8.4, 8.8)
"""The width of a figure of so many panels side by side, in inches."""
LONGEST_NAME = 22
"""Letters of a column's name that fit under a panel; longer names are cut in the middle."""

Columns: TypeAlias = Sequence[int | str] | int | str
"""Columns by their names or their numbers, which count from 0."""


def one_axes(ax: Axes | None, size: tuple[float, float] | None = None) -> Axes:
    """The Axes given, or those of a new figure."""
    return plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def panels(count: int, axes: Sequence[Axes] | None) -> list[Axes]:
    """The Axes given, as many as are needed, or those of a new figure in rows of equal length."""
    if axes is not None:
        return given_axes(count, axes)
    rows = math.ceil(count / PANELS_IN_A_ROW)
    across = math.ceil(count / rows)
    width = WIDTHS[across - 1]
    size = (width, 0.6 + rows * min(3.0, 0.95 * width / across))
    figure, made = plt.subplots(
        rows, across, figsize=size, layout="constrained", squeeze=False, sharey=True
    )
    every = list(made.flat)
    for spare in every[count:]:
        figure.delaxes(spare)
    return every[:count]


def given_axes(count: int, axes: Sequence[Axes]) -> list[Axes]:
    """The Axes given, which must be this many."""
    given = list(np.ravel(np.asarray(axes, dtype=object)))
    if len(given) != count:
        raise ValueError(f"expected {count} Axes, got {len(given)}")
    return given


def label_panels(
    axes: Sequence[Axes], names: Sequence[str], ylabel: str, own: bool, title: str | None = None
) -> None:
    """Name the x-axes, and the y-axis of the first panel in each row; add one legend for all.

    The legend is above the panels of a figure of our `own`, and else in the first panel.
    """
    for ax, name in zip(axes, names, strict=True):
        ax.set_xlabel(short(name))
        ax.locator_params(axis="x", nbins=4)
        place = ax.get_subplotspec()
        if ax is axes[0] or (own and place is not None and place.is_first_col()):
            ax.set_ylabel(ylabel)
    handles, labels = axes[0].get_legend_handles_labels()
    if own:
        figure: Any = axes[0].figure
        ncols, loc = 2 if len(axes) == 1 else len(labels), "outside upper center"
        small = {"fontsize": "small", "title_fontsize": "small"}
        figure.legend(handles, labels, loc=loc, ncols=ncols, title=title, **small)
    else:
        axes[0].legend(fontsize="small", title=title, title_fontsize="small")


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits: of a long one, its beginning and its end."""
    if len(name) <= longest:
        return name
    begin = longest // 2
    return f"{name[:begin]}…{name[begin + 1 - longest :]}"


def check_model(model: Any) -> None:
    """Refuse what is no estimator of ours, and one that is not fitted."""
    if not isinstance(model, ModelMixin):
        raise TypeError(
            "expected a fitted DistributedGPRegressor or SparseGridGP, got "
            f"{type(model).__name__}: of a pipeline or a search, give the estimator in it"
        )
    check_is_fitted(model)


def rows_of(model: ModelMixin, X: Any) -> np.ndarray:
    """Rows as numbers, their columns in the order that the model was fitted to.

    Columns of a table are found by name, so that they may be in any order and have others among them.
    """
    check_model(model)
    table = model.model_.schema.table
    if table is not None and frames.is_table(X) and frames.is_raw(X, table):
        policy: Any = model  # only models with these parameters are fitted to tables
        X, keep = frames.encoded(X, table, policy.missing, policy.unknown)
        if not keep.all():
            raise ValueError(
                f"{int((~keep).sum())} of {len(keep)} rows have missing values: leave them out of the plot"
            )
    names, arrow = getattr(model, "feature_names_in_", None), hasattr(X, "column_names")
    given = X.column_names if arrow else getattr(X, "columns", None)
    if names is not None and given is not None:
        there = set(given)
        if missing := [name for name in names if name not in there]:
            raise ValueError(
                f"X has no column {', '.join(map(repr, missing))}: give the columns that the model was "
                "fitted to"
            )
        X = X.select(list(names)) if arrow else X[list(names)]
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != model.n_features_in_:
        raise ValueError(
            f"expected X with rows of {model.n_features_in_} columns, got shape {rows.shape}"
        )
    return rows


def columns_of(model: ModelMixin, features: Columns | None) -> list[int]:
    """The numbers of columns that are given by name or number; by default of all columns."""
    names = column_names(model)
    if features is None:
        return list(range(len(names)))
    given = [features] if isinstance(features, int | str | np.integer) else list(features)
    if not given:
        raise ValueError("features names no column: give one at least, or None for all")
    table = model.model_.schema.table
    made = (
        {} if table is None else table.places
    )  # a column of text or dates stands for all its numbers
    places = [made[f] if isinstance(f, str) and f in made else [_column(f, names)] for f in given]
    return [place for some in places for place in some]


def _column(feature: Any, names: Sequence[str]) -> int:
    if isinstance(feature, str) and feature in names:
        return names.index(feature)
    if isinstance(feature, int | np.integer) and -len(names) <= feature < len(names):
        return range(len(names))[feature]
    some = ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
    raise ValueError(
        f"unknown column {feature!r}: expected one of {some}, or a number from 0 to {len(names) - 1}"
    )


def check_target(model: ModelMixin, target: Any) -> None:
    """Refuse the number of a target that the model does not have."""
    count = len(model.model_.targets)
    if not isinstance(target, int | np.integer) or not 0 <= target < count:
        numbers = "0, the only one" if count == 1 else f"from 0 to {count - 1}"
        raise ValueError(f"expected the number of a target, {numbers}, got {target!r}")


def of_target(values: np.ndarray, target: int) -> np.ndarray:
    """One target's values, (N,), of those of all targets."""
    return values if values.ndim == 1 else values[:, target]


def about_target(model: ModelMixin, target: int, text: str) -> str:
    """A text that names the target, where there are several."""
    if len(model.model_.targets) == 1:
        return text
    return f"{text} of {summary(model).targets[target].target}"


def predicted(model: Any, X: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations."""
    with unnamed():
        return model.predict(X, return_std=True, **options)


@contextmanager
def unnamed() -> Iterator[None]:
    """Accept arrays for a model that was fitted to a table: their columns are in its order."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield


@contextmanager
def made_up() -> Iterator[None]:
    """Predict points of a grid, some of which are unlike any row, without a warning for each panel."""
    with unnamed():
        warnings.simplefilter("ignore", NoveltyWarning)
        yield


def draw_points(
    ax: Axes, x: np.ndarray, y: np.ndarray, what: str = "observations", **style: Any
) -> None:
    """Observations, or a sample of them where they are many."""
    some = np.random.default_rng(0).permutation(len(x))[:MOST_POINTS]
    label = what if len(x) <= MOST_POINTS else f"{MOST_POINTS:,} of {len(x):,} {what}"
    size = 2 if len(x) > MANY_POINTS else 4
    style = {"color": "0.5", "markersize": size, "linestyle": "none", "marker": "."} | style
    ax.plot(x[some], y[some], label=label, rasterized=True, **style)


def quantile(level: float) -> float:
    """Half the width of the central interval of this level, in standard deviations."""
    return NormalDist().inv_cdf(0.5 + level / 2)
