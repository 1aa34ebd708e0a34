"""Systems that may be singular or have more equations than unknowns, and the axes of symmetric matrices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def truncated_solve(A: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """A⁺ b for a symmetric A ≥ 0 that may be singular, in unknowns scaled by √scale; b: (n,) or (n, k).

    Directions with eigenvalues below 10³·n·ε are rounding error and get no weight.
    """
    info = torch.finfo(A.dtype)
    root = scale.clamp_min(info.tiny).sqrt()
    values, vectors = torch.linalg.eigh(A / (root[:, None] * root[None, :]))
    kept = values > 1e3 * A.shape[-1] * info.eps
    inverse = torch.where(kept, 1.0 / torch.where(kept, values, 1.0), 0.0)
    columns = b[:, None] if b.ndim == 1 else b
    solved = vectors @ (inverse[:, None] * (vectors.mT @ (columns / root[:, None])))
    return (solved / root[:, None]).reshape(b.shape)


def triangle(A: Tensor) -> Tensor:
    """R with RᵀR = AᵀA for a matrix of many rows, which says of least squares all that A does."""
    return torch.linalg.qr(A, mode="r").R


def least_squares(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the x with the least ‖Ax − b‖; of those that say the same to 1e-6, the shortest."""
    return np.linalg.lstsq(A, b, rcond=1e-6)[0]


def principal_axes(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues of a symmetric matrix, ascending, and its eigenvectors as columns."""
    values, axes = np.linalg.eigh(A)
    return values, axes
