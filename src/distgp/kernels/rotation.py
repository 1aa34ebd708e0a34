"""Two columns with one lengthscale along a direction and another across it.

The direction is not trained as an angle: that is no positive number, it jumps from 180 degrees to 0, and
where both lengthscales are equal it means nothing and has no gradient. Trained are one lengthscale ℓ, the
geometric mean of both, and two positive numbers (p, q), the `anisotropy`. With b = log p and c = log q

    r² = ‖e^−S (x − x′)‖² / ℓ²,    S = [b c; c −b].

S has the eigenvalues ±s, s² = b² + c². The lengthscale is ℓe^s along the direction whose angle is half of
that of (b, c), and ℓe^−s across it. So p says how much longer it is along the first column, and q along the
diagonal between both columns. Any two logarithms are an ellipse, and their mean over experts is that of S.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distgp.kernels.distances import safe_sqrt


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
