"""Squared distances between the rows of two tensors, and their roots."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 2**18
"""Entries of a matrix that are worked on at a time on a CPU: 2 MiB, which stays in the cache."""
TOLERATED = 1e-9
"""The error of squared distances, in lengthscales, or their share, from which they are mended: rows must be
some 1,500 lengthscales away from the middle of all to have it."""
SMALL_SET = 256
"""Rows up to which the middle of a set in a batch is that of three of its rows."""


def squared_distance(A: Tensor, B: Tensor) -> Tensor:
    """Compute ‖a_i − b_j‖² for all rows of A and B, the points of reference, by one matrix product.

    ‖a‖² + ‖b‖² − 2aᵀb is the product of the augmented rows (−2a, ‖a‖², 1) and (b, 1, ‖b‖²), in float64,
    where its cancellation mostly does no harm. Both are shifted by the median of B, so that neither an
    offset nor outliers take digits from other rows. The norms are shrunk by the rounding error that the
    product is likely to have, (2 + √d)ε, so that equal rows get exactly 0, in value and in gradient.
    Where cancellation does harm, between rows that are close to each other and far from all others, the
    differences are squared and added.

    Examples
    --------
    >>> A = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> squared_distance(A, A)
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    dtype, (A, B) = A.dtype, centred(A, B)
    a, b = norms(A, B)
    left, right = augmented(A, B, a, b)
    square = (left @ right.mT).clamp_min(0.0)
    if cancels(a, b):
        batch = square.shape[:-2]
        wide = (P.expand(*batch, *P.shape[-2:]).reshape(-1, *P.shape[-2:]) for P in (A, B))
        square = by_differences(square.reshape(-1, *square.shape[-2:]), *wide).reshape(square.shape)
    return square.to(dtype)


def centred(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points in float64, shifted by the middle of B; the same tensor twice if both are one."""
    same, B = A is B, B.to(torch.float64)
    centre = _middle(B.detach())
    shifted = B - centre
    return shifted if same else A.to(torch.float64) - centre, shifted


def _shrink(d: int) -> float:
    """Return 1 less the rounding error that a product of d columns is likely to have."""
    return 1.0 - (2.0 + math.sqrt(d)) * torch.finfo(torch.float64).eps


def norms(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return ‖a‖² and ‖b‖², shrunk."""
    a, b = both((A, B), lambda P: torch.linalg.vecdot(P, P) * _shrink(P.shape[-1]))
    return a, b


def augmented(A: Tensor, B: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows whose products are the squared distances, from rows and their norms."""
    left = torch.cat([-2.0 * A, a[..., None], torch.ones_like(a)[..., None]], -1)
    return left, torch.cat([B, torch.ones_like(b)[..., None], b[..., None]], -1)


def cancels(a: Tensor, b: Tensor) -> bool:
    """Whether the rounding error of some squared distance may be more than `TOLERATED`, by the norms."""
    if torch.compiler.is_compiling() or not a.numel() or not b.numel():
        return False  # an exported program cannot look at its numbers
    largest = a.detach().max() + b.detach().max()
    return bool(torch.finfo(a.dtype).eps * largest > TOLERATED)


def by_differences(square: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """Replace the squared distances (count, n1, n2) that lost their digits by those of the differences.

    The product is wrong by about ε(‖a‖² + ‖b‖²), which is tolerated up to `TOLERATED`, or that share of
    the squared distance.
    """
    with torch.no_grad():
        eps = torch.finfo(A.dtype).eps
        wrong = eps * (A.square().sum(-1)[..., None] + B.square().sum(-1)[..., None, :])
        lost = (wrong > TOLERATED * square.clamp_min(1.0)).nonzero(as_tuple=True)
    item, row, column = lost
    parts = zip(*(index.split(BLOCK) for index in (item, row, column)), strict=True)
    mended = [(A[i, r] - B[i, c]).square().sum(-1) for i, r, c in parts]
    return square.index_put(lost, torch.cat(mended).to(square.dtype)) if mended else square


def _middle(B: Tensor) -> Tensor:
    """Return a point in the middle of the rows of B (*batch, n, d), column by column, (*batch, 1, d).

    That is the median, so that outliers do not move it, of some hundreds of rows where there are more; of
    many small sets (neighbourhoods of rows) that of the first, a middle and the last row, which costs far
    less.
    """
    n = B.shape[-2]
    if B.ndim == 2 or n > SMALL_SET:
        return B[..., :: max(1, n // SMALL_SET), :].median(-2, keepdim=True).values
    first, middle, last = B[..., :1, :], B[..., n // 2 : n // 2 + 1, :], B[..., -1:, :]
    low, high = torch.minimum(first, last), torch.maximum(first, last)
    return torch.maximum(low, torch.minimum(high, middle))


def safe_sqrt(square: Tensor) -> Tensor:
    """Compute the square root, with derivative 0 instead of infinity at 0."""
    return square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()


def both(pair: tuple[Tensor, Tensor], change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Change two tensors, which stay one if they are one."""
    first = change(pair[0])
    return first, first if pair[1] is pair[0] else change(pair[1])
