"""Kernels that are products over the columns, k(x, x′) = Π_j k_j(x_j, x′_j).

On a grid, which is a product of axes, the matrix of such a kernel is a Kronecker product of small
matrices, one per axis: sparse grids ask `factors` for the kernels of the axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from typing import TypeAlias

import torch
from torch import Tensor

from distgp.kernels import RBF, Constant, Kernel, Periodic, Product, Scale, Stationary
from distgp.kernels.base import TensorLike, places, replaced, vector

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
    """Take a kernel of d columns apart into one kernel per column.

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
    """Return the factors of a kernel; any that looks at a single column is its own."""
    active = getattr(kernel, "active_dims", None)
    if active is not None and len(active) == 1:
        return {places(active, d)[0]: replaced(kernel, active_dims=None)}
    return {0: kernel} if d == 1 else None


@_factors.register
def _(kernel: Constant, d: int) -> Factors:
    del d
    return {0: kernel}


@_factors.register
def _(kernel: Scale, d: int) -> Factors | None:
    return _multiplied([_factors(kernel.kernel, d), {0: Constant(kernel.variance)}])


@_factors.register
def _(kernel: Product, d: int) -> Factors | None:
    return _multiplied(_factors(part, d) for part in kernel.kernels)


@_factors.register
def _(kernel: RBF, d: int) -> Factors | None:
    columns = places(kernel.active_dims, d)
    lengths = kernel.lengthscale_by_column(len(columns))  # columns that share one get copies of it
    return _multiplied({column: RBF(_at(lengths, j))} for j, column in enumerate(columns))


@_factors.register
def _(kernel: Periodic, d: int) -> Factors | None:
    return _multiplied(
        {column: Periodic(_at(kernel.lengthscale, j), _at(kernel.period, j))}
        for j, column in enumerate(places(kernel.active_dims, d))
    )


def _multiplied(parts: Iterable[Factors | None]) -> Factors | None:
    """Multiply the factors of each column; None where a part has none."""
    product: Factors = {}
    for part in parts:
        if part is None:
            return None
        both = {j: Product((product[j], part[j])) for j in product.keys() & part.keys()}
        product = product | part | both
    return product


def _at(parameter: Tensor, j: int) -> Tensor:
    """Return the j-th value, or the one for all."""
    return parameter if parameter.shape[-1] == 1 else parameter[j : j + 1]
