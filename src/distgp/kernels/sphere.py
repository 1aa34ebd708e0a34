"""Longitude and latitude as points on the Earth's sphere."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from distgp.kernels.base import ParameterError

EARTH = 6371.0088
"""The mean radius of the Earth in km."""
Degrees: TypeAlias = tuple[tuple[float, float], tuple[float, float]]
"""The mean and the scale by which longitudes, and latitudes, were standardised."""
PLAIN_DEGREES: Degrees = ((0.0, 1.0), (0.0, 1.0))


def degrees(value: bool | Degrees | None) -> Degrees | None:
    """Convert how two columns become degrees: True for columns that hold them, None for no sphere."""
    if value is None or value is False:
        return None
    if value is True:
        return PLAIN_DEGREES
    (lon, lon_scale), (lat, lat_scale) = value
    return (float(lon), float(lon_scale)), (float(lat), float(lat_scale))


def on_sphere(X: Tensor, sphere: Degrees) -> Tensor:
    """Place longitudes and latitudes (*batch, n, 2) on the Earth's sphere: x, y, z in km, (*batch, n, 3).

    The straight line between two such points, through the Earth, is the chord 2R sin(angle / 2). Kernels of
    distances in three dimensions stay positive definite on it, which those of arcs need not.

    Examples
    --------
    >>> on_sphere(torch.tensor([[0.0, 0.0]]), PLAIN_DEGREES).round()
    tensor([[6371.,    0.,    0.]])
    """
    if X.shape[-1] != 2:
        raise ParameterError(
            "a kernel on the sphere looks at two columns, longitude and latitude, got "
            f"{X.shape[-1]}: name them in active_dims"
        )
    lon, lat = (
        torch.deg2rad(mean + scale * X[..., place]) for place, (mean, scale) in enumerate(sphere)
    )
    around = lat.cos()
    return EARTH * torch.stack([around * lon.cos(), around * lon.sin(), lat.sin()], -1)
