"""One large matrix, factorised and inverted in the memory that it lies in.

A matrix in rows is to LAPACK, which counts by columns, its own transpose, and a lower factor L the upper
one Lᵀ: PyTorch is given that, both to read and to write, and so copies nothing. On a GPU its inverse would
solve for the columns of another matrix, with three times as many products as are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from distgp.linalg import lapack
from distgp.linalg.factors import (
    LARGEST_JITTER,
    not_finite,
    not_positive_definite,
    report_jitter,
    succeeded,
)

Fill: TypeAlias = Callable[[Tensor], None]
"""Puts a symmetric matrix into memory, on and below the diagonal; above it anything may be."""
BLOCK = 256
"""Rows that are looked at at a time."""
ROWS, COLUMNS = 1024, 4096
"""Rows and columns of the blocks of a matrix that is inverted by products."""


def cholesky_(A: Tensor, fill: Fill, name: str = "the covariance matrix") -> None:
    """Fill A (n, n) and put its lower factor in its place, zeros above it.

    Where that fails A is filled anew with jitter on its diagonal, by the policy of `distgp.linalg`.
    """
    assert A.is_contiguous() and not A.requires_grad
    level = 0.0
    for level in _levels(A.dtype):
        fill(A)
        if level:
            A.diagonal().add_(level * A.diagonal().mean())
        if _factorised(A):
            report_jitter(A, name, level)
            A.tril_()
            return
        if not level:
            _check_finite(A, fill, name)
    raise not_positive_definite(A, name, level)


def _levels(dtype: torch.dtype) -> Iterator[float]:
    """Yield no jitter, then 10·ε and what follows by tens up to the largest."""
    level = 10 * torch.finfo(dtype).eps
    yield 0.0
    while level <= LARGEST_JITTER[dtype]:
        yield level
        level *= 10


def _factorised(A: Tensor) -> bool:
    """Put the factor into the lower triangle; tell whether all pivots were positive."""
    if lapack.serves(A, rows=len(A)):
        return succeeded(A, lapack.factorise_(A))
    info = torch.empty((), dtype=torch.int32, device=A.device)
    torch.linalg.cholesky_ex(A.mT, upper=True, out=(A.mT, info))
    return succeeded(A, info)


def _check_finite(A: Tensor, fill: Fill, name: str) -> None:
    """Raise the error of a matrix that is not finite, which no jitter mends."""
    fill(A)
    starts = range(0, len(A), BLOCK)
    rows = (A[start : start + BLOCK, : start + BLOCK].tril(start) for start in starts)
    if not all(bool(torch.isfinite(block).all()) for block in rows):
        raise not_finite(name)


def invert_(L: Tensor) -> None:
    """Put the lower triangle of (L Lᵀ)⁻¹ in place of the lower factor L; what is above it is lost."""
    if lapack.serves(L, rows=len(L)):
        lapack.invert_(L)
    elif L.is_cuda:
        _invert_by_products_(L)
    else:
        torch.cholesky_inverse(L.mT, upper=True, out=L.mT)


def _invert_by_products_(L: Tensor) -> None:
    """Invert by products of blocks alone, which a GPU does at full speed; L has zeros above its diagonal.

    W = L⁻¹ takes the place of L, one row of blocks after the other: W_ii = L_ii⁻¹, and left of it
    W_ij = −W_ii Σ_{j ≤ k < i} L_ik W_kj. Then WᵀW takes that of W: its blocks are Σ_{k ≥ i} W_kiᵀ W_kj.
    """
    places = [(start, min(len(L), start + ROWS)) for start in range(0, len(L), ROWS)]
    for start, stop in places:
        left, own = L[start:stop, :start], L[start:stop, start:stop]
        one = torch.eye(len(own), dtype=L.dtype, device=L.device)
        own.copy_(torch.linalg.solve_triangular(own, one, upper=False))
        sums = torch.empty_like(left)
        for first in range(0, start, COLUMNS):
            last = min(start, first + COLUMNS)
            torch.mm(left[:, first:], L[first:start, first:last], out=sums[:, first:last])
        torch.mm(own, sums.neg_(), out=left)
    for start, stop in places:
        L[start:stop, :stop] = L[start:, start:stop].mT @ L[start:, :stop]
