"""One large matrix, factorised and inverted in the memory that it lies in.

A matrix in rows is to LAPACK, which counts by columns, its own transpose, and a lower factor L the upper
one Lᵀ: PyTorch is given that, both to read and to write, and so copies nothing on a CPU. On a GPU its
inverse takes a second matrix for as long as it is computed.
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
    else:
        torch.cholesky_inverse(L.mT, upper=True, out=L.mT)
