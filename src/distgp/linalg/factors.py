"""Cholesky factors, with the jitter policy of `distgp.linalg`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from distgp.linalg import lapack, products
from distgp.linalg.matrices import add_diagonal
from distgp.linalg.solves import solve_upper
from distgp.warn import warn_user

SILENT_JITTER = 1e-8
LARGEST_JITTER = {torch.float64: 1e-5, torch.float32: 1e-2}


class JitterWarning(UserWarning):
    """More than rounding error had to be added to a matrix before it could be factorised."""


class NotPositiveDefiniteError(ArithmeticError):
    """A covariance matrix could not be factorised, even with the largest allowed jitter."""


def cholesky(
    A: Tensor,
    name: str = "the covariance matrix",
    singular: bool = False,
    overwrite: bool = False,
) -> Tensor:
    """Lower L with L Lᵀ = A, or = A + jitter·mean(diag A)·I where A alone fails.

    A matrix that is expected to be `singular` to rounding gets its rounding error 10·n·ε added at
    once: it might be factorised without, but with pivots that no gradient survives. With `overwrite`
    the factor may be put in the place of A, which the caller then no longer has.
    """
    if singular:
        A, overwrite = add_diagonal(A, rounding_of(A.detach())[..., None]), True
    if products.serves(A):
        return _with_least_jitter(A, *products.factorised(A), name)
    if torch.is_grad_enabled() and A.requires_grad:
        return _Cholesky.apply(A, name)  # pyright: ignore[reportReturnType]
    if not lapack.serves(A, rows=A.shape[-1]):
        L, info = torch.linalg.cholesky_ex(A)
        return _with_least_jitter(A, L, info, name)
    # What is above the diagonal stays as it is, so that A can be restored where this fails.
    L = A if overwrite and A.is_contiguous() else A.clone(memory_format=torch.contiguous_format)
    diagonal = L.diagonal(dim1=-2, dim2=-1).clone()
    info = lapack.factorise_(L)
    if L is A and not _succeeded(L, info):
        upper = L.triu(1)
        A = add_diagonal(upper + upper.mT, diagonal)
    return _with_least_jitter(A, L.tril_(), info, name)


class _Cholesky(torch.autograd.Function):
    """The factor L of A, with the derivative by two solves with L.

    With the incoming gradient G and Φ(M) the lower triangle of M, its diagonal halved, it is the
    symmetric part of L⁻ᵀΦ(LᵀG)L⁻¹. Jitter counts as a constant.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, A: Tensor, name: str) -> Tensor:
        L = cholesky(A, name)
        ctx.save_for_backward(L)
        return L

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: BackwardCFunction, G: Tensor
    ) -> tuple[Tensor, None]:
        (L,) = ctx.saved_tensors
        inner = (L.mT @ G).tril_()
        inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        half = solve_upper(L, inner)
        full = solve_upper(L, half.mT)
        return 0.5 * (full + full.mT), None


def _succeeded(L: Tensor, info: Tensor) -> bool:
    """Whether all factors of a batch are finite, and all pivots were positive."""
    pivots = L.diagonal(dim1=-2, dim2=-1)
    return not bool(info.any()) and bool(torch.isfinite(pivots).all())


def _with_least_jitter(A: Tensor, L: Tensor, info: Tensor, name: str) -> Tensor:
    """L where the factorisation of A succeeded, else the factor of A with the jitter that it needs."""
    if _succeeded(L, info):
        return L
    if not torch.isfinite(A).all():
        raise NotPositiveDefiniteError(
            f"{name} contains NaN or infinity: check the inputs and the hyperparameters for values "
            "that overflow"
        )
    n, eps = A.shape[-1], torch.finfo(A.dtype).eps
    scale = A.diagonal(dim1=-2, dim2=-1).mean(-1)
    jitter, level = torch.zeros_like(scale), 10 * eps
    while info.any():
        if level > LARGEST_JITTER[A.dtype]:
            raise NotPositiveDefiniteError(
                f"{name} ({n} × {n}, {A.dtype}) is not positive definite, even with "
                f"{level / 10:.0e} of its mean diagonal added. Likely causes: duplicate or nearly "
                "duplicate rows with a tiny noise, lengthscales far larger than the data's extent, "
                "or a dtype too narrow. Remove duplicates, raise the noise, or use float64."
            )
        jitter = jitter.masked_fill(info > 0, level)
        L, info = torch.linalg.cholesky_ex(add_diagonal(A, (jitter * scale)[..., None]))
        level *= 10
    if (largest := float(jitter.max())) > min(10 * n * eps, SILENT_JITTER):
        warn_user(
            f"added {largest:.0e} of its mean diagonal to {name} ({n} × {n}, {A.dtype}) to "
            "factorise it; results are accurate to about that much",
            JitterWarning,
        )
    return L


def rounding_of(A: Tensor) -> Tensor:
    """10·n·ε of the mean diagonal: pivots below that are rounding error."""
    mean = A.diagonal(dim1=-2, dim2=-1).mean(-1)
    return 10 * A.shape[-1] * torch.finfo(A.dtype).eps * mean


def clear_cholesky(A: Tensor) -> Tensor | None:
    """Lower L with L Lᵀ = A as it is; None where its pivots do not stand clear of rounding error."""
    L, info = torch.linalg.cholesky_ex(A)
    clear = L.diagonal(dim1=-2, dim2=-1).square() > rounding_of(A)[..., None]
    return L if not info.any() and clear.all() else None


def pivoted_cholesky(
    diagonal: Tensor, column: Callable[[int], Tensor], tolerance: float, largest: int
) -> tuple[Tensor, float]:
    """Pivots of a partial Cholesky factorisation of a matrix known by its diagonal and columns.

    Each pivot has the largest residual diagonal; stops when the residual's mean over the rows not
    taken is at most `tolerance`, when it is all rounding error, or after `largest` pivots. Returns
    the pivots and that mean.
    """
    s = len(diagonal)
    rounding = 10 * s * torch.finfo(diagonal.dtype).eps * float(diagonal.max())
    residual, L = diagonal.clone(), diagonal.new_empty((largest, s))
    pivots: list[int] = []
    left = float("inf")
    for j in range(largest):
        pivot = int(residual.argmax())
        peak = float(residual[pivot])
        if j > 0 and (peak <= rounding or left <= tolerance):
            break
        pivots.append(pivot)
        if peak > 0:
            L[j] = (column(pivot) - L[:j, pivot] @ L[:j]) / math.sqrt(peak)
            residual = (residual - L[j].square()).clamp_min_(0.0)
        residual[pivot] = 0.0
        left = float(residual.sum()) / max(1, s - len(pivots))
    return torch.tensor(pivots, device=diagonal.device), left
