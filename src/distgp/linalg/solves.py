"""Solves and inverses with lower Cholesky factors, and solves that a singular matrix survives."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from distgp.linalg import lapack, products
from distgp.linalg.matrices import broadcast


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
