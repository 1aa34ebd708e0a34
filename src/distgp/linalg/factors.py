"""Cholesky factors, with the jitter policy of `distgp.linalg`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from distgp._util.checks import warn_user
from distgp.linalg import lapack

SILENT_JITTER = 1e-8
LARGEST_JITTER = {torch.float64: 1e-5, torch.float32: 1e-2}
GRAM_BLOCK = 128
"""Rows of the blocks that a Gram matrix is computed in."""
BLOCK = 64
"""Rows of the blocks on the diagonal where factors and inverses are made of products."""
SMALLEST = 256
"""Rows from which matrices of a batch are cut into such blocks."""
WIDE = 4
"""A solve with so many times more columns than rows multiplies by the inverse factor instead."""
ROUGH = 1e5
"""Condition number of a factor from which such a product is corrected once."""


class JitterWarning(UserWarning):
    """More than rounding error had to be added to a matrix before it could be factorised."""


class NotPositiveDefiniteError(ArithmeticError):
    """A covariance matrix could not be factorised, even with the largest allowed jitter."""


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
    """S − VVᵀ, perhaps in place of S, and perhaps right on and below the diagonal alone."""
    fit = lapack.in_place(S) and V.is_contiguous() and S.shape[:-1] == V.shape[:-1]
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

    PyTorch's function loads half a second of code; NumPy's does not take sizes of an exported module.
    """
    found = [1] * max(map(len, shapes))
    for shape in shapes:
        for place, size in enumerate(shape, len(found) - len(shape)):
            if size != 1:
                if found[place] not in (1, size):
                    raise ValueError(f"shapes {', '.join(map(str, shapes))} do not fit together")
                found[place] = size
    return tuple(found)


def cholesky(
    A: Tensor, name: str = "the covariance matrix", singular: bool = False, overwrite: bool = False
) -> Tensor:
    """Lower L with L Lᵀ = A, or = A + jitter·mean(diag A)·I where A alone fails.

    One that is expected to be `singular` gets its rounding error 10·n·ε added at once: without it there
    may be pivots that no gradient survives. With `overwrite` the factor may take the place of A; both of
    its triangles must be right then.
    """
    if singular:
        A, overwrite = add_diagonal(A, rounding_of(A.detach())[..., None]), True
    if _in_blocks(A):
        return _with_least_jitter(A, *factorised_in_blocks(A), name)
    if torch.is_grad_enabled() and A.requires_grad:
        return _Cholesky.apply(A, name)  # pyright: ignore[reportReturnType]
    if not lapack.serves(A, rows=A.shape[-1]):
        L, info = torch.linalg.cholesky_ex(A)
        return _with_least_jitter(A, L, info, name)
    # What is above the diagonal stays as it is, so that A can be restored where this fails.
    L = A if overwrite and A.is_contiguous() else A.clone(memory_format=torch.contiguous_format)
    diagonal = L.diagonal(dim1=-2, dim2=-1).clone()
    info = lapack.factorise_(L)
    if L is A and not succeeded(L, info):
        upper = L.triu(1)
        A = add_diagonal(upper + upper.mT, diagonal)
    return _with_least_jitter(A, L.tril_(), info, name)


def many_cholesky(A: Tensor, name: str) -> Tensor:
    """`cholesky` of many small matrices, perhaps with other rounding errors than each by itself has."""
    L = None if torch.is_grad_enabled() and A.requires_grad else lapack.factors_of_batch(A)
    return L if L is not None and succeeded(L) else cholesky(A, name)


def half_cholesky(A: Tensor, again: Callable[[], Tensor], name: str) -> Tensor:
    """`cholesky` in the place of A, or of what `again` makes of it; nothing above the diagonal counts."""
    if lapack.serves_batch(A) and lapack.in_place(A):
        if succeeded(A, lapack.factorise_(A)):
            return A
        A = again().tril()
    return cholesky(A, name)


class _Cholesky(torch.autograd.Function):
    """The factor L of A; its derivative is the symmetric part of L⁻ᵀΦ(LᵀG)L⁻¹, by two solves with L.

    G is the incoming gradient, Φ(M) the lower triangle of M, its diagonal halved; jitter is constant.
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


def succeeded(L: Tensor, info: Tensor | None = None) -> bool:
    """Whether all factors of a batch are finite, and all pivots were positive."""
    if info is not None and bool(info.any()):
        return False
    return bool(torch.isfinite(L.diagonal(dim1=-2, dim2=-1)).all())


def _with_least_jitter(A: Tensor, L: Tensor, info: Tensor, name: str) -> Tensor:
    """L where the factorisation of A succeeded, else the factor of A with the jitter that it needs."""
    if succeeded(L, info):
        return L
    if not torch.isfinite(A.tril()).all():
        raise not_finite(name)
    scale = A.diagonal(dim1=-2, dim2=-1).mean(-1)
    jitter, level = torch.zeros_like(scale), 10 * torch.finfo(A.dtype).eps
    while info.any():
        if level > LARGEST_JITTER[A.dtype]:
            raise not_positive_definite(A, name, level / 10)
        jitter = jitter.masked_fill(info > 0, level)
        L, info = torch.linalg.cholesky_ex(add_diagonal(A, (jitter * scale)[..., None]))
        level *= 10
    report_jitter(A, name, float(jitter.max()))
    return L


def not_finite(name: str) -> NotPositiveDefiniteError:
    """The error of a matrix that no jitter mends."""
    return NotPositiveDefiniteError(
        f"{name} contains NaN or infinity: check the inputs and the hyperparameters for values "
        "that overflow"
    )


def not_positive_definite(A: Tensor, name: str, tried: float) -> NotPositiveDefiniteError:
    """The error of a matrix that the largest jitter did not mend."""
    n = A.shape[-1]
    return NotPositiveDefiniteError(
        f"{name} ({n} × {n}, {A.dtype}) is not positive definite, even with "
        f"{tried:.0e} of its mean diagonal added. Likely causes: duplicate or nearly "
        "duplicate rows with a tiny noise, lengthscales far larger than the data's extent, "
        "or a dtype too narrow. Remove duplicates, raise the noise, or use float64."
    )


def report_jitter(A: Tensor, name: str, jitter: float) -> None:
    """Warn of jitter that is more than the rounding error of the matrix."""
    n = A.shape[-1]
    if jitter > min(10 * n * torch.finfo(A.dtype).eps, SILENT_JITTER):
        warn_user(
            f"added {jitter:.0e} of its mean diagonal to {name} ({n} × {n}, {A.dtype}) to "
            "factorise it; results are accurate to about that much",
            JitterWarning,
        )


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
    """Pivots of a partial Cholesky factorisation, each with the largest residual on the diagonal.

    Stops after `largest`, or when the residual's mean over the other rows, which is returned too, is at
    most `tolerance`, or when it is all rounding error.
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
    V = solved_by_product(L, B)
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
    # PyTorch's own copies L, which for few columns takes longer than solving.
    few = B.device.type == "cpu" and B.shape[-1] < lapack.FEWEST_COLUMNS
    if not few and not lapack.serves(B, L, rows=L.shape[-1]):
        return torch.cholesky_solve(B, L)
    return solve_upper(L, solve_lower(L, B), overwrite=True)


def cholesky_inverse(L: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹, where every entry of it is needed; everything else solves."""
    if _in_blocks(L):
        return inverse_in_blocks(L)
    if not lapack.serves(L, rows=L.shape[-1]):
        return torch.cholesky_inverse(L)
    below = _lower_inverse(L)
    return below.add_(below.tril(-1).mT)


def half_inverse(L: Tensor) -> Tensor:
    """A matrix with the symmetric part of (L Lᵀ)⁻¹, which is all that the derivative of log det needs."""
    if _in_blocks(L) or not lapack.serves(L, rows=L.shape[-1]):
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


# A GPU multiplies matrices ten to twenty times faster than its library factorises batches of them,
# inverts them, or solves triangular systems. So small blocks on the diagonal are factorised and inverted
# by the library, and everything else is a product.


def _in_blocks(A: Tensor) -> bool:
    """Whether a batch is factorised or inverted by products: several larger matrices on a GPU."""
    if torch.is_grad_enabled() and A.requires_grad:
        return False
    return A.is_cuda and A.ndim > 2 and A.shape[:-2].numel() > 1 and A.shape[-1] >= SMALLEST


def factorised_in_blocks(A: Tensor) -> tuple[Tensor, Tensor]:
    """The lower Cholesky factors of matrices (*batch, n, n), by block columns, and LAPACK's info."""
    n = A.shape[-1]
    L = A.reshape(-1, n, n).clone()
    info = torch.zeros(len(L), dtype=torch.int32, device=A.device)
    for start in range(0, n, BLOCK):
        stop = min(n, start + BLOCK)
        column = L[:, start:, start:stop]
        if start:
            column.baddbmm_(L[:, start:, :start], L[:, start:stop, :start].mT, alpha=-1.0)
        D, found = torch.linalg.cholesky_ex(L[:, start:stop, start:stop])
        info = torch.where((info == 0) & (found > 0), found + start, info)
        L[:, start:stop, start:stop] = D
        if stop < n:
            L[:, stop:, start:stop] = L[:, stop:, start:stop] @ _inverse_factor(D).mT
    return L.tril_().reshape(A.shape), info.reshape(A.shape[:-2])


def _inverse_factor(L: Tensor) -> Tensor:
    """L⁻¹ of lower factors (*batch, n, n), by the library."""
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
    return torch.linalg.solve_triangular(L, eye, upper=False)


def inverse_in_blocks(L: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ of lower factors (*batch, n, n): W = L⁻¹ by halves, then WᵀW without its zeros."""
    n = L.shape[-1]
    flat = L.reshape(-1, n, n)
    W, out = torch.zeros_like(flat), torch.empty_like(flat)
    _put_inverse(flat, W, 0, n)
    for start in range(0, n, BLOCK):
        stop = min(n, start + BLOCK)
        rows = W[:, start:, start:stop].mT @ W[:, start:, :stop]
        out[:, start:stop, :stop] = rows
        out[:, :start, start:stop] = rows[:, :, :start].mT
    return out.reshape(L.shape)


def _put_inverse(L: Tensor, W: Tensor, start: int, stop: int) -> None:
    """Put L⁻¹ into rows and columns of W: [[P, 0], [−QRP, Q]] for P, Q inverse blocks, R below P."""
    if stop - start <= BLOCK:
        W[:, start:stop, start:stop] = _inverse_factor(L[:, start:stop, start:stop])
        return
    middle = start + ((stop - start) // 2 + 31) // 32 * 32
    _put_inverse(L, W, start, middle)
    _put_inverse(L, W, middle, stop)
    right = L[:, middle:stop, start:middle] @ W[:, start:middle, start:middle]
    W[:, middle:stop, start:middle] = (W[:, middle:stop, middle:stop] @ right).neg_()


def solved_by_product(L: Tensor, B: Tensor) -> Tensor | None:
    """L⁻¹B as a product with W = L⁻¹, for far more columns than rows; None where a solve is better.

    Its error is 3e-16 of the condition number of L. Where ‖W‖‖L‖, which is no less than that, is above
    `ROUGH`, V + W(B − LV) is as good as a solve, and on a GPU still cheaper.
    """
    if B.dtype != torch.float64 or B.shape[-1] < WIDE * L.shape[-1]:
        return None
    if torch.is_grad_enabled() and (L.requires_grad or B.requires_grad):
        return None
    pivots = L.diagonal(dim1=-2, dim2=-1)
    if not B.is_cuda and bool((pivots.amax(-1) > ROUGH * pivots.amin(-1)).any()):
        return None  # the condition number is no less than the ratio of the pivots
    W = _inverse_factor(L)
    rough = bool((torch.linalg.matrix_norm(W) * torch.linalg.matrix_norm(L) > ROUGH).any())
    if rough and not B.is_cuda:
        return None
    V = W @ B
    return V + W @ (B - L @ V) if rough else V
