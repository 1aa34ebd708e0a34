"""Kernels that are products over the columns, k(x, x′) = Π_j k_j(x_j, x′_j).

On a grid, which is a product of axes, the matrix of such a kernel is a Kronecker product of small
matrices, one per axis: sparse grids ask `factors` for the kernels of the axes.
"""

from __future__ import annotations

import dataclasses
from functools import singledispatch
from typing import Any, TypeAlias

import torch
from torch import Tensor

from distgp.kernels.algebra import Product, Scale
from distgp.kernels.base import Kernel, TensorLike, places, vector
from distgp.kernels.nondecaying import Constant, Periodic
from distgp.kernels.stationary import RBF, Stationary

Factors: TypeAlias = dict[int, Kernel]
"""For each column that a kernel looks at, its factor, as a kernel of one column."""


def separable(kind: type[Stationary], lengthscale: TensorLike) -> Kernel:
    """Build the product kernel Π_j kind(x_j, x′_j), with one lengthscale per column.

    Parameters
    ----------
    kind : type of Stationary
        The kernel of each column, such as `Matern52`.
    lengthscale : sequence or Tensor
        One lengthscale per column.

    Returns
    -------
    Kernel
        A `Product` with one factor per column; an RBF kernel is such a product by itself.

    Examples
    --------
    >>> from distgp import Matern52, separable
    >>> list(separable(Matern52, [0.5, 2.0]).parameters())
    ['kernels.0.lengthscale', 'kernels.1.lengthscale']
    """
    lengths = vector(lengthscale)
    if kind is RBF or len(lengths) == 1:
        return kind(lengths)
    return Product(tuple(kind(lengths[j : j + 1], active_dims=(j,)) for j in range(len(lengths))))


def factors(kernel: Kernel, d: int) -> tuple[Kernel, ...] | None:
    """Take a kernel apart into one kernel per column.

    Parameters
    ----------
    kernel : Kernel
        Any kernel.
    d : int
        The number of input columns.

    Returns
    -------
    tuple of Kernel, or None
        d kernels of one column each whose product is the kernel; None where it is no such product,
        or where its parameters differ between experts.

    Examples
    --------
    >>> from distgp import RBF
    >>> factors(RBF([0.5, 2.0]), 2)
    (RBF(lengthscale=[0.5]), RBF(lengthscale=[2.0]))
    """
    if any(kernel.batches().values()):
        return None
    found = _factors(kernel, d)
    if found is None:
        return None
    like = next(iter(kernel.parameters().values()))
    one = Constant(torch.ones_like(like.reshape(-1)[0]))
    return tuple(found.get(j, one) for j in range(d))


@singledispatch
def _factors(kernel: Kernel, d: int) -> Factors | None:
    """Any kernel that looks at a single column is its own factor."""
    active = getattr(kernel, "active_dims", None)
    if active is not None and len(active) == 1:
        return {places(active, d)[0]: dataclasses.replace(_any(kernel), active_dims=None)}
    return {0: kernel} if d == 1 else None


@_factors.register
def _(kernel: Constant, d: int) -> Factors:
    del d
    return {0: kernel}


@_factors.register
def _(kernel: Scale, d: int) -> Factors | None:
    found = _factors(kernel.kernel, d)
    return None if found is None else _times(found, {0: Constant(kernel.variance)})


@_factors.register
def _(kernel: Product, d: int) -> Factors | None:
    product: Factors = {}
    for part in kernel.kernels:
        found = _factors(part, d)
        if found is None:
            return None
        product = _times(product, found)
    return product


@_factors.register
def _(kernel: RBF, d: int) -> Factors:
    product: Factors = {}
    columns = places(kernel.active_dims, d)
    lengths = kernel.lengthscale_by_column(len(columns))  # columns that share one get copies of it
    for j, column in enumerate(columns):
        product = _times(product, {column: RBF(_at(lengths, j))})
    return product


@_factors.register
def _(kernel: Periodic, d: int) -> Factors:
    product: Factors = {}
    for j, column in enumerate(places(kernel.active_dims, d)):
        factor = Periodic(_at(kernel.lengthscale, j), _at(kernel.period, j))
        product = _times(product, {column: factor})
    return product


def _times(a: Factors, b: Factors) -> Factors:
    both = {j: Product((a[j], b[j])) for j in a.keys() & b.keys()}
    return a | b | both


def _at(parameter: Tensor, j: int) -> Tensor:
    return parameter if parameter.shape[-1] == 1 else parameter[j : j + 1]


def _any(kernel: Kernel) -> Any:
    return kernel
