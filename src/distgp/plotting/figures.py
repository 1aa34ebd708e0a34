"""Figures: Axes in rows, their labels and legends, points, and files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from distgp.files import whole

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


def one_axes(ax: Axes | None, size: tuple[float, float] | None = None) -> Axes:
    """Return the Axes given, or those of a new figure."""
    return plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def panels(count: int, axes: Sequence[Axes] | None) -> list[Axes]:
    """Return the Axes given, as many as are needed, or those of a new figure in rows of equal length."""
    if axes is not None:
        return given_axes(count, axes)
    rows = math.ceil(count / PANELS_IN_A_ROW)
    across = math.ceil(count / rows)
    width = WIDTHS[across - 1]
    size = (width, 0.6 + rows * min(3.0, 0.95 * width / across))
    return grid_of_axes(count, across, size, sharey=True)


def grid_of_axes(
    count: int, across: int, size: tuple[float, float], sharey: bool = False
) -> list[Axes]:
    """Make a figure of this many Axes, so many of them side by side."""
    rows = math.ceil(count / across)
    figure, made = plt.subplots(
        rows, across, figsize=size, layout="constrained", squeeze=False, sharey=sharey
    )
    for spare in made.flat[count:]:
        figure.delaxes(spare)
    return list(made.flat[:count])


def given_axes(count: int, axes: Sequence[Axes]) -> list[Axes]:
    """Return the Axes given, which must be this many."""
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
    small = {"fontsize": "small", "title": title, "title_fontsize": "small"}
    if own:
        figure: Any = axes[0].figure
        ncols = 2 if len(axes) == 1 else len(labels)
        figure.legend(handles, labels, loc="outside upper center", ncols=ncols, **small)
    else:
        axes[0].legend(**small)


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """Cut a name so that it fits: of a long one, its beginning and its end stay."""
    if len(name) <= longest:
        return name
    begin = longest // 2
    return f"{name[:begin]}…{name[begin + 1 - longest :]}"


def draw_points(
    ax: Axes, x: np.ndarray, y: np.ndarray, what: str = "observations", **style: Any
) -> None:
    """Draw observations, or a sample of them where they are many."""
    some = np.random.default_rng(0).permutation(len(x))[:MOST_POINTS]
    label = what if len(x) <= MOST_POINTS else f"{MOST_POINTS:,} of {len(x):,} {what}"
    size = 2 if len(x) > MANY_POINTS else 4
    style = {"color": "0.5", "markersize": size, "linestyle": "none", "marker": "."} | style
    ax.plot(x[some], y[some], label=label, rasterized=True, **style)


def quantile(level: float) -> float:
    """Return half the width of the central interval of this level, in standard deviations."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def check_suffix(path: Path | str) -> str:
    """Return the kind of picture that a path's suffix names, such as "png", if it can be written."""
    kind = Path(path).suffix.removeprefix(".").lower()
    known = FigureCanvasBase.get_supported_filetypes()
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
        The figure to write.
    path : path-like
        The file to write to; the suffix names the kind of picture.
    close : bool, default=True
        Whether to close the figure afterwards.
    """
    path, kind = Path(path), check_suffix(path)
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with whole(path) as part:
        figure.savefig(part, format=kind, dpi=150, metadata=undated)
    if close:
        plt.close(figure)
