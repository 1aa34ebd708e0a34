"""Coordinates in which the Euclidean distance orders points by a kernel's correlation."""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from distgp.kernels.base import Kernel, Product, Scale, Sum
from distgp.kernels.nondecaying import Periodic
from distgp.kernels.stationary import RBF, Stationary


@singledispatch
def coordinates(kernel: Kernel, X: Tensor) -> Tensor | None:
    """Place points so that for a kernel the nearer two are, the larger is their correlation.

    For a stationary kernel these are x / ℓ, for a periodic one points on circles. A sum is ordered by
    its first part that has coordinates; a product of RBF and periodic kernels by all of its parts.
    The points X are (n, d), their coordinates (n, q), and the kernel has no batch dimensions. None
    is returned where no such coordinates are known: then only the kernel itself can tell.

    Examples
    --------
    >>> import torch
    >>> from distgp import Linear, Matern52
    >>> from distgp.kernels import coordinates
    >>> coordinates(2.0 * Matern52([0.5, 2.0]), torch.ones(1, 2, dtype=torch.float64)).tolist()
    [[2.0, 0.5]]
    >>> coordinates(Linear(1.0), torch.ones(1, 2, dtype=torch.float64)) is None
    True
    """
    del kernel, X
    return None


@coordinates.register
def _(kernel: Stationary, X: Tensor) -> Tensor:
    return kernel.scaled(X)


@coordinates.register
def _(kernel: Periodic, X: Tensor) -> Tensor:
    return kernel.embedded(X)


@coordinates.register
def _(kernel: Scale, X: Tensor) -> Tensor | None:
    return coordinates(kernel.kernel, X)


@coordinates.register
def _(kernel: Sum, X: Tensor) -> Tensor | None:
    found = (coordinates(part, X) for part in kernel.kernels)
    return next((values for values in found if values is not None), None)


@coordinates.register
def _(kernel: Product, X: Tensor) -> Tensor | None:
    """exp(−r₁²/2) exp(−r₂²/2) = exp(−(r₁² + r₂²)/2), so coordinates are joined; other shapes differ."""
    parts = [part.kernel if isinstance(part, Scale) else part for part in kernel.kernels]
    if not all(isinstance(part, RBF | Periodic) for part in parts):
        return None
    found = [coordinates(part, X) for part in parts]
    return torch.cat([values for values in found if values is not None], -1)
