"""Kernels of the scaled distance r² = Σ_j (x_j − x′_j)² / ℓ_j²: RBF, Matérn, rational quadratic."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from distgp.kernels.base import Kernel, columns, field, scalar, select, vector


def squared_distance(A: Tensor, B: Tensor) -> Tensor:
    """‖a_i − b_j‖² for all rows of A (*batch, n1, d) and B (*batch, n2, d), by one matrix product.

    ‖a‖² + ‖b‖² − 2aᵀb is the product of the augmented rows (−2a, ‖a‖², 1) and (b, 1, ‖b‖²), always in
    float64, where its cancellation does no harm. Both are shifted by the median of B first, so that
    neither a large offset nor a few outliers take digits from the other rows: put the points of
    reference (training rows, inducing inputs) second. The norms are shrunk by the rounding error
    that the product is likely to have, (2 + √d)ε, so that equal rows get exactly 0 after clamping,
    in value and in gradient; the others move by no more than that error.
    """
    dtype, (A, B) = A.dtype, (A.to(torch.float64), B.to(torch.float64))
    centre = B.detach().median(-2, keepdim=True).values
    A, B = A - centre, B - centre
    shrink = 1.0 - (2.0 + math.sqrt(A.shape[-1])) * torch.finfo(A.dtype).eps
    a = A.square().sum(-1, keepdim=True) * shrink
    b = B.square().sum(-1, keepdim=True) * shrink
    left = torch.cat([-2.0 * A, a, torch.ones_like(a)], -1)
    right = torch.cat([B, torch.ones_like(b), b], -1)
    return _product(left, right).clamp_min(0.0).to(dtype)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ rightᵀ, as one large product where only the right side has a batch."""
    if left.ndim == 2 and right.ndim > 2:
        flat = right.reshape(-1, right.shape[-1]) @ left.mT
        return flat.reshape(*right.shape[:-1], len(left)).mT
    return left @ right.mT


def safe_sqrt(square: Tensor) -> Tensor:
    """√square, with derivative 0 instead of infinity at 0."""
    tiny = torch.finfo(square.dtype).tiny
    return square.clamp_min(tiny).sqrt()


class Stationary(Kernel):
    """k(x, x′) = shape(r²) with shape(0) = 1. One lengthscale for all columns, or one for each."""

    lengthscale: Tensor = field(default=1.0, converter=vector)
    active_dims: tuple[int, ...] | None = field(default=None, converter=columns)

    @abstractmethod
    def shape(self, square: Tensor) -> Tensor:
        """The kernel as a function of r²."""

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """shape(r²) for all pairs."""
        A = self._scaled(X1)
        B = A if X2 is X1 else self._scaled(X2)
        return self.shape(squared_distance(A, B))

    def _scaled(self, X: Tensor) -> Tensor:
        return select(X, self.active_dims, self.lengthscale) / self.lengthscale[..., None, :]

    def diag(self, X: Tensor) -> Tensor:
        """Ones."""
        batch = torch.broadcast_shapes(X.shape[:-1], (*self.lengthscale.shape[:-1], 1))
        return torch.ones(batch, dtype=X.dtype, device=X.device)


class RBF(Stationary):
    """exp(−r² / 2)."""

    def shape(self, square: Tensor) -> Tensor:
        """exp(−r² / 2)."""
        return (-0.5 * square).exp_()


class Matern12(Stationary):
    """exp(−r): the Matérn kernel with ν = 1/2."""

    def shape(self, square: Tensor) -> Tensor:
        """exp(−r)."""
        return torch.exp(-safe_sqrt(square))


class Matern32(Stationary):
    """(1 + √3 r) exp(−√3 r): the Matérn kernel with ν = 3/2."""

    def shape(self, square: Tensor) -> Tensor:
        """(1 + t) exp(−t) with t = √3 r."""
        t = math.sqrt(3.0) * safe_sqrt(square)
        return (1.0 + t) * torch.exp(-t)


class Matern52(Stationary):
    """(1 + √5 r + 5r²/3) exp(−√5 r): the Matérn kernel with ν = 5/2."""

    def shape(self, square: Tensor) -> Tensor:
        """(1 + t + t²/3) exp(−t) with t = √5 r."""
        t = math.sqrt(5.0) * safe_sqrt(square)
        return (1.0 + t + (5.0 / 3.0) * square) * torch.exp(-t)


class RationalQuadratic(Stationary):
    """(1 + r² / 2α)^−α: a mixture of RBF kernels over lengthscales."""

    alpha: Tensor = field(default=1.0, converter=scalar)

    def shape(self, square: Tensor) -> Tensor:
        """exp(−α log(1 + r² / 2α))."""
        alpha = self.alpha[..., None, None]
        return torch.exp(-alpha * torch.log1p(square / (2.0 * alpha)))
