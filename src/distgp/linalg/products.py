"""Factors, inverses and solves made of matrix products, above all on a GPU.

A GPU multiplies matrices ten to twenty times faster than its library factorises batches of them,
inverts them, or solves triangular systems. So small blocks on the diagonal are factorised and
inverted by the library, and everything else is a product.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
"""Rows of the blocks on the diagonal."""
SMALLEST = 256
"""Rows from which matrices of a batch are cut into blocks."""
WIDE = 4
"""A solve with so many times more columns than rows multiplies by the inverse factor instead."""
ROUGH = 1e5
"""Condition number of a factor from which such a product is corrected once."""


def serves(A: Tensor) -> bool:
    """Whether a batch of factorisations or inverses is done here: several larger ones on a GPU."""
    if torch.is_grad_enabled() and A.requires_grad:
        return False
    return A.is_cuda and A.ndim > 2 and A.shape[:-2].numel() > 1 and A.shape[-1] >= SMALLEST


def factorised(A: Tensor) -> tuple[Tensor, Tensor]:
    """The lower Cholesky factors of symmetric matrices (*batch, n, n), and LAPACK's information.

    Block column after block column: take off what the columns before it explain, factorise the block
    on the diagonal, and multiply the rows below by its inverse factor.
    """
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
            L[:, stop:, start:stop] = L[:, stop:, start:stop] @ inverse_factor(D).mT
    return L.tril_().reshape(A.shape), info.reshape(A.shape[:-2])


def inverse_factor(L: Tensor) -> Tensor:
    """L⁻¹ of lower factors (*batch, n, n), by the library."""
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
    return torch.linalg.solve_triangular(L, eye, upper=False)


def inverse(L: Tensor) -> Tensor:
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
        W[:, start:stop, start:stop] = inverse_factor(L[:, start:stop, start:stop])
        return
    middle = start + ((stop - start) // 2 + 31) // 32 * 32
    _put_inverse(L, W, start, middle)
    _put_inverse(L, W, middle, stop)
    right = L[:, middle:stop, start:middle] @ W[:, start:middle, start:middle]
    W[:, middle:stop, start:middle] = (W[:, middle:stop, middle:stop] @ right).neg_()


def solved(L: Tensor, B: Tensor) -> Tensor | None:
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
    W = inverse_factor(L)
    rough = bool((torch.linalg.matrix_norm(W) * torch.linalg.matrix_norm(L) > ROUGH).any())
    if rough and not B.is_cuda:
        return None
    V = W @ B
    return V + W @ (B - L @ V) if rough else V
