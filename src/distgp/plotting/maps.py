"""Maps of predictions on a grid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from distgp._util.checks import is_integer
from distgp.data import rows as frames
from distgp.data.encoding import listed
from distgp.plotting import figures

if TYPE_CHECKING:
    import xarray

UPWARDS = ("lat", "y", "north")
"""The beginnings of names of axes that are drawn upwards."""


def plot_map(
    data: xarray.Dataset,
    variable: str = "mean",
    points: ArrayLike | None = None,
    draw: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw a variable on a grid of two axes as colours, and observations as points.

    Parameters
    ----------
    data : xarray.Dataset
        What `maps.predict_grid` or `maps.simulate` returned.
    variable : str, default="mean"
        The variable to draw: "mean", "std", "lower", "upper" or "simulation".
    points : table or array-like of shape (n, 2), optional
        Places of observations: a table with the columns of the axes, or an array with the axis that is
        drawn to the right first.
    draw : int, default=0
        Which of several simulations to draw.
    ax : Axes, optional
        Where to draw.
    """
    if not hasattr(data, "data_vars"):
        raise TypeError(
            "expected data as returned by maps.predict_grid or maps.simulate, an xarray.Dataset, got "
            f"{type(data).__name__}"
        )
    if not isinstance(variable, str) or variable not in data:
        raise ValueError(f"expected one of {', '.join(map(str, data))}, got variable={variable!r}")
    values = data[variable]
    if "draw" in values.dims:
        count = values.sizes["draw"]
        if not is_integer(draw) or not -count <= draw < count:
            raise ValueError(f"draw must be a number from 0 to {count - 1}, got {draw!r}")
        values = values.isel(draw=draw)
    if values.ndim != 2:
        raise ValueError(
            f"a map has two axes, got {values.ndim} ({', '.join(map(str, values.dims))})"
        )
    across, up = map(str, values.dims)
    if across.lower().startswith(UPWARDS) and not up.lower().startswith(UPWARDS):
        across, up = up, across
    ax = figures.one_axes(ax)
    colours = "magma" if variable == "std" else "viridis"
    x, y = (np.asarray(data[name].values) for name in (across, up))
    mesh = ax.pcolormesh(x, y, values.transpose(up, across).values, cmap=colours, rasterized=True)
    limits, bar = (ax.get_xlim(), ax.get_ylim()), cast(Any, ax.figure)
    bar.colorbar(mesh, ax=ax, label=variable)
    if points is not None:
        east, north = _places(points, across, up)
        figures.draw_points(ax, east, north, color="white", markeredgecolor="0.2")
        ax.set(xlim=limits[0], ylim=limits[1])
    if across.lower().startswith("lon") and up.lower().startswith("lat"):
        # A degree of longitude is as long as one of latitude at the equator alone.
        ax.set_aspect(1.0 / max(0.1, math.cos(math.radians(float(np.mean(y))))))
    ax.set(xlabel=across, ylabel=up)
    return ax


def _places(points: ArrayLike, across: str, up: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates of points: columns of a table by their names, those of an array in order."""
    if frames.is_table(points):
        there = frames.names_of(table := cast(Any, points))
        if lacking := [name for name in (across, up) if name not in there]:
            raise ValueError(
                f"points has no column {', '.join(map(repr, lacking))}; it has {listed(there)}: rename its "
                "columns as the axes of the map, or give an array of two columns"
            )
        return np.asarray(table[across]), np.asarray(table[up])
    with frames.as_numbers("points", tables=False):
        found = np.asarray(points, np.float64)
    if found.ndim != 2 or found.shape[1] != 2:
        raise ValueError(
            f"points must be a table with the columns {across!r} and {up!r}, or an array of shape (n, 2), "
            f"got shape {found.shape}"
        )
    return found[:, 0], found[:, 1]
