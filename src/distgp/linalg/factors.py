"""Cholesky factors, with the jitter policy of `distgp.linalg`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from distgp._util.checks import warn_user
from distgp.linalg import lapack, products

GRAM_BLOCK = 128
"""Rows of the blocks that a Gram matrix is computed in."""


def gram(V: Tensor) -> Tensor:
    """VVᵀ for V (*batch, m, n): on a CPU only blocks on and below the diagonal are computed."""
    m = V.shape[-2]
    if V.is_cuda or m < 2 * GRAM_BLOCK:
        return V @ V.mT
    out = V.new_empty(*V.shape[:-2], m, m)
    for start in range(0, m, GRAM_BLOCK):
        stop = min(m, start + GRAM_BLOCK)
        rows = V[..., start:stop, :] @ V[..., :stop, :].mT
        out[..., start:stop, :stop] = rows
        out[..., :start, start:stop] = rows[..., :start].mT
    return out


def minus_gram(S: Tensor, V: Tensor) -> Tensor:
    """S − VVᵀ, perhaps in place of S, and perhaps right on and below the diagonal alone.

    For S (*batch, k, k) that the caller has no other use for, and V (*batch, k, m).
    """
    fit = S.is_contiguous() and V.is_contiguous() and S.shape[:-1] == V.shape[:-1]
    if not fit or not lapack.serves(S, V, rows=S.shape[-1]):
        return S - V @ V.mT
    lapack.subtract_gram_(S, V)
    return S


def add_diagonal(A: Tensor, values: Tensor) -> Tensor:
    """A + diag(values), where values broadcasts to the diagonal's shape (*batch, n)."""
    shape = broadcast(A.shape[:-1], values.shape)
    out = A.expand(*shape, A.shape[-1]).clone()
    out.diagonal(dim1=-2, dim2=-1).add_(values)
    return out


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that tensors of these shapes have together.

    PyTorch's own function loads half a second of code when it is called first; NumPy's does not take
    the symbols that sizes are while a module is exported.
    """
    found = [1] * max(map(len, shapes))
    for shape in shapes:
        for place, size in enumerate(shape, len(found) - len(shape)):
            if size != 1:
                if found[place] not in (1, size):
                    raise ValueError(f"shapes {', '.join(map(str, shapes))} do not fit together")
                found[place] = size
    return tuple(found)


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


def solve_lower(L: Tensor, B: Tensor, overwrite: bool = False) -> Tensor:
    """L⁻¹B; with `overwrite`, perhaps in the place of B, which the caller then no longer has."""
    V = products.solved(L, B)
    return _solved(L, B, transposed=False, overwrite=overwrite) if V is None else V


def solve_upper(L: Tensor, B: Tensor, overwrite: bool = False) -> Tensor:
    """L⁻ᵀB, from the lower factor L; with `overwrite`, perhaps in the place of B."""
    return _solved(L, B, transposed=True, overwrite=overwrite)


def _solved(L: Tensor, B: Tensor, transposed: bool, overwrite: bool) -> Tensor:
    if B.shape[-1] < lapack.FEWEST_COLUMNS or not lapack.serves(B, L, rows=L.shape[-1]):
        return torch.linalg.solve_triangular(L.mT if transposed else L, B, upper=transposed)
    B = B.expand(*broadcast(L.shape[:-2], B.shape[:-2]), *B.shape[-2:])
    if not B.is_contiguous() and not B.mT.is_contiguous():
        B = B.contiguous()
    elif not overwrite:
        B = B.clone()
    lapack.solve_(L if L.stride(-1) == 1 else L.contiguous(), B, transposed)
    return B


def cholesky_solve(L: Tensor, B: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ B."""
    if not lapack.serves(B, L, rows=L.shape[-1]):
        return torch.cholesky_solve(B, L)
    return solve_upper(L, solve_lower(L, B), overwrite=True)


def cholesky_inverse(L: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹, where every entry of it is needed; everything else solves."""
    if products.serves(L):
        return products.inverse(L)
    if not lapack.serves(L, rows=L.shape[-1]):
        return torch.cholesky_inverse(L)
    below = _lower_inverse(L)
    return below.add_(below.tril(-1).mT)


def half_inverse(L: Tensor) -> Tensor:
    """A matrix with the same symmetric part as (L Lᵀ)⁻¹, perhaps with zeros above its diagonal.

    It serves as the derivative of log det K in K: Σ_ij G_ij dK_ij counts, in which dK is symmetric.
    """
    if products.serves(L) or not lapack.serves(L, rows=L.shape[-1]):
        return cholesky_inverse(L)
    half = _lower_inverse(L).mul_(2.0)
    half.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    return half


def _lower_inverse(L: Tensor) -> Tensor:
    """The lower triangle of (L Lᵀ)⁻¹, with zeros above it."""
    below = L.clone(memory_format=torch.contiguous_format)
    lapack.invert_(below)
    return below.tril_()


def log_det(L: Tensor) -> Tensor:
    """log det(L Lᵀ)."""
    return 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def truncated_solve(A: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """A⁺ b for a symmetric positive semidefinite A that may be singular; b: (n,) or (n, k).

    Solved in unknowns scaled by √scale, where A has entries of order 1; directions with
    eigenvalues below 10³·n·ε are rounding error and get no weight.
    """
    info = torch.finfo(A.dtype)
    root = scale.clamp_min(info.tiny).sqrt()
    values, vectors = torch.linalg.eigh(A / (root[:, None] * root[None, :]))
    kept = values > 1e3 * A.shape[-1] * info.eps
    inverse = torch.where(kept, 1.0 / torch.where(kept, values, 1.0), 0.0)
    columns = b[:, None] if b.ndim == 1 else b
    solved = vectors @ (inverse[:, None] * (vectors.mT @ (columns / root[:, None])))
    return (solved / root[:, None]).reshape(b.shape)


def least_squares(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the x with the least ‖Ax − b‖; of those that say the same to 1e-6, the shortest."""
    return np.linalg.lstsq(A, b, rcond=1e-6)[0]
