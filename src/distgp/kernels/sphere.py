"""Points on the Earth's sphere, and kernels with a direction"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from distgp.kernels.base import ParameterError, safe_sqrt

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


def squeezed(X: Tensor, anisotropy: Tensor) -> Tensor:
    """Return e^−S x for the rows of X (*batch, n, 2), in which the lengthscale is ℓ in every direction.

    e^−S = cosh(s) I − sinh(s)/s S. It is written out, so that equal rows stay equal to the last digit.
    """
    b, c = anisotropy.to(X.dtype).log()[..., None, :].unbind(-1)
    s = safe_sqrt(b.square() + c.square())
    whole, part = s.cosh(), s.sinh() / s
    x, y = X.unbind(-1)
    return torch.stack(
        [(whole - part * b) * x - part * c * y, (whole + part * b) * y - part * c * x], -1
    )


def anisotropy_of(ratio: float, angle: float) -> list[float]:
    """Return (p, q) where the lengthscale along an angle in degrees is `ratio` times that across it.

    Examples
    --------
    >>> anisotropy_of(4.0, angle=0.0)
    [2.0, 1.0]
    """
    half, twice = 0.5 * math.log(ratio), math.radians(2.0 * angle)
    return [math.exp(half * math.cos(twice)), math.exp(half * math.sin(twice))]


def of_metric(M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lengthscales along and across the direction in which xᵀMx is least, and its angle.

    M = [u w; w v] has the eigenvalues m ± h with m = (u + v)/2 and h² = ((u − v)/2)² + w².
    """
    u, v, w = M[..., 0, 0], M[..., 1, 1], M[..., 0, 1]
    m, h = 0.5 * (u + v), torch.hypot(0.5 * (u - v), w)
    angle = torch.rad2deg(0.5 * torch.atan2(-2.0 * w, v - u))
    return (m - h).rsqrt(), (m + h).rsqrt(), angle % 180.0
