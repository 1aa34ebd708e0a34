"""Kernels of the scaled distance r² = Σ_j (x_j − x′_j)² / ℓ_j²: RBF, Matérn, rational quadratic."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distgp.kernels.base import (
    Kernel,
    ParameterError,
    columns,
    field,
    scalar,
    select,
    vector,
)


def squared_distance(A: Tensor, B: Tensor) -> Tensor:
    """Compute ‖a_i − b_j‖² for all rows of A and B by one matrix product.

    ‖a‖² + ‖b‖² − 2aᵀb is the product of the augmented rows (−2a, ‖a‖², 1) and (b, 1, ‖b‖²), always in
    float64, where its cancellation does no harm. Both are shifted by the median of B first, so that
    neither a large offset nor a few outliers take digits from the other rows. The norms are shrunk
    by the rounding error that the product is likely to have, (2 + √d)ε, so that equal rows get
    exactly 0 after clamping, in value and in gradient; the others move by no more than that error.

    Parameters
    ----------
    A : Tensor
        Points (*batch, n1, d).
    B : Tensor
        Points (*batch, n2, d): those of reference, such as training rows or inducing inputs.

    Returns
    -------
    Tensor
        (*batch, n1, n2), in the dtype of A.
    """
    dtype, (A, B) = A.dtype, (A.to(torch.float64), B.to(torch.float64))
    centre = _middle(B.detach())
    A, B = A - centre, B - centre
    shrink = 1.0 - (2.0 + math.sqrt(A.shape[-1])) * torch.finfo(A.dtype).eps
    a = A.square().sum(-1, keepdim=True) * shrink
    b = B.square().sum(-1, keepdim=True) * shrink
    left = torch.cat([-2.0 * A, a, torch.ones_like(a)], -1)
    right = torch.cat([B, torch.ones_like(b), b], -1)
    return _product(left, right).clamp_min(0.0).to(dtype)


SMALL_SET = 256
"""Rows up to which the middle of a set in a batch is that of three of its rows."""


def _middle(B: Tensor) -> Tensor:
    """A point in the middle of the rows of B (*batch, n, d), column by column, (*batch, 1, d).

    The median, so that outliers do not move it. Of many small sets (neighbourhoods of rows), the
    median of the first, a middle and the last row, which costs far less.
    """
    n = B.shape[-2]
    if B.ndim == 2 or n > SMALL_SET:
        return B.median(-2, keepdim=True).values
    first, middle, last = B[..., :1, :], B[..., n // 2 : n // 2 + 1, :], B[..., -1:, :]
    low, high = torch.minimum(first, last), torch.maximum(first, last)
    return torch.maximum(low, torch.minimum(high, middle))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Compute left @ rightᵀ, as one large product where only the right side has a batch."""
    if left.ndim == 2 and right.ndim > 2:
        flat = right.reshape(-1, right.shape[-1]) @ left.mT
        return flat.reshape(*right.shape[:-1], len(left)).mT
    return left @ right.mT


def safe_sqrt(square: Tensor) -> Tensor:
    """Compute the square root, with derivative 0 instead of infinity at 0."""
    tiny = torch.finfo(square.dtype).tiny
    return square.clamp_min(tiny).sqrt()


def lengths(value: Sequence[int] | None) -> tuple[int, ...] | None:
    """Convert the places of lengthscales, one for each column, to a tuple; None for one each."""
    if value is None:
        return None
    found = tuple(int(place) for place in value)
    if not found or min(found) < 0:
        raise ParameterError(
            "shared must say for each column which lengthscale it has, by numbers from 0, such as "
            f"(0, 1, 1), or be None, got {found}"
        )
    return found


class ShapeOfDistance(torch.autograd.Function):
    """shape(r²) for all pairs of rows of A and B, with the derivative written by hand.

    One pass over the matrix gives the kernel and S = ∂shape/∂r²; with the incoming gradient G and
    W = G ∘ S the derivative is 2(a_i Σ_j W_ij − Σ_j W_ij b_j) in a_i, and likewise in b_j: two matrix
    products, and no other matrix is kept.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, kernel: FixedShape) -> Tensor:
        """Keep the rows and S."""
        K, slope = kernel.shape_and_slope(squared_distance(A, B))
        ctx.save_for_backward(A, B, slope)
        return K

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, G: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        """The formulas above, on rows shifted as in `squared_distance`."""
        A, B, slope = ctx.saved_tensors
        W = G * slope
        centre = _middle(B)
        if A is B or A.data_ptr() == B.data_ptr():  # both derivatives at once
            a, both = A - centre, W + W.mT
            return 2.0 * (a * both.sum(-1, keepdim=True) - both @ a), None, None
        a, b = A - centre, B - centre
        in_A = in_B = None
        if ctx.needs_input_grad[0]:
            in_A = (2.0 * (a * W.sum(-1, keepdim=True) - W @ b)).sum_to_size(A.shape)
        if ctx.needs_input_grad[1]:
            in_B = (2.0 * (b * W.sum(-2)[..., None] - W.mT @ a)).sum_to_size(B.shape)
        return in_A, in_B, None


class Stationary(Kernel):
    """The base class of kernels k(x, x′) = shape(r²) with shape(0) = 1.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, optional
        The columns that the kernel looks at, by place or name; all by default.
    shared : sequence of int, optional
        Which of the lengthscales each of these columns has, so that several can share one.
    """

    lengthscale: Tensor = field(default=1.0, converter=vector)
    active_dims: tuple[int | str, ...] | None = field(default=None, converter=columns)
    shared: tuple[int, ...] | None = field(default=None, converter=lengths, kw_only=True)

    @abstractmethod
    def shape(self, square: Tensor) -> Tensor:
        """Compute the kernel from the matrix of r²."""

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute shape(r²) for all pairs."""
        A = self.scaled(X1)
        B = A if X2 is X1 else self.scaled(X2)
        return self.shape_of(A, B)

    def shape_of(self, A: Tensor, B: Tensor) -> Tensor:
        """Compute shape(r²) for all pairs of scaled rows."""
        return self.shape(squared_distance(A, B))

    def diag(self, X: Tensor) -> Tensor:
        """Return ones."""
        batch = torch.broadcast_shapes(X.shape[:-1], (*self.lengthscale.shape[:-1], 1))
        return torch.ones(batch, dtype=X.dtype, device=X.device)

    def scaled(self, X: Tensor) -> Tensor:
        """The active columns in units of the lengthscales, x / ℓ."""
        if self.shared is None:
            return select(X, self.active_dims, self.lengthscale) / self.lengthscale[..., None, :]
        X = select(X, self.active_dims)
        return X / self.lengthscale_by_column(X.shape[-1])[..., None, :]

    def lengthscale_by_column(self, count: int) -> Tensor:
        """The lengthscale of each of the `count` active columns, (*batch, count), or (*batch, 1).

        Raises
        ------
        ParameterError
            Where `shared` does not fit the columns or the lengthscales.
        """
        if self.shared is None:
            return self.lengthscale
        if len(self.shared) != count:
            raise ParameterError(
                f"shared says which lengthscale each of {len(self.shared)} columns has, but the kernel "
                f"looks at {count} columns: give it one entry for each of them"
            )
        held = self.lengthscale.shape[-1]
        if set(self.shared) != set(range(held)):
            raise ParameterError(
                f"the kernel holds {held} lengthscales, but shared refers to {sorted(set(self.shared))}: "
                f"it must refer to all of them, by numbers from 0 to {held - 1}"
            )
        return self.lengthscale[..., list(self.shared)]


class FixedShape(Stationary):
    """The base class of stationary kernels whose shape has no parameters of its own.

    Their derivative in the rows is written by hand, in `ShapeOfDistance`.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, optional
        The columns that the kernel looks at, by place or name; all by default.
    shared : sequence of int, optional
        Which of the lengthscales each of these columns has, so that several can share one.
    """

    @abstractmethod
    def shape_and_slope(self, square: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the kernel and its derivative in r² from the matrix of r²."""

    def shape_of(self, A: Tensor, B: Tensor) -> Tensor:
        """Compute shape(r²) for all pairs of scaled rows; where a gradient is wanted, with the slope."""
        if torch.is_grad_enabled() and (A.requires_grad or B.requires_grad):
            return ShapeOfDistance.apply(A, B, self)  # pyright: ignore[reportReturnType]
        return super().shape_of(A, B)


class RBF(FixedShape):
    """The squared exponential kernel, k = exp(−r² / 2), with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are infinitely smooth. It is the product of its columns' kernels, which sparse
    grids make use of.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, optional
        The columns that the kernel looks at, by place or name; all by default.
    shared : sequence of int, optional
        Which of the lengthscales each of these columns has, so that several can share one.

    Examples
    --------
    >>> import torch
    >>> from distgp import RBF
    >>> X = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    >>> round(float(RBF(1.0)(X)[0, 1]), 4)  # exp(−1/2)
    0.6065
    """

    def shape(self, square: Tensor) -> Tensor:
        """Compute exp(−r² / 2)."""
        return (-0.5 * square).exp_()

    def shape_and_slope(self, square: Tensor) -> tuple[Tensor, Tensor]:
        """Compute exp(−r² / 2) and −½ exp(−r² / 2)."""
        K = self.shape(square)
        return K, -0.5 * K


class Matern12(FixedShape):
    """The Matérn kernel with ν = 1/2, k = exp(−r), with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are continuous and nowhere differentiable.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, optional
        The columns that the kernel looks at, by place or name; all by default.
    shared : sequence of int, optional
        Which of the lengthscales each of these columns has, so that several can share one.

    Examples
    --------
    >>> from distgp import Matern12
    >>> Matern12(0.5, active_dims=[2])  # looks at the third column alone
    Matern12(lengthscale=[0.5], active_dims=(2,))
    """

    def shape(self, square: Tensor) -> Tensor:
        """Compute exp(−r)."""
        return torch.exp(-safe_sqrt(square))

    def shape_and_slope(self, square: Tensor) -> tuple[Tensor, Tensor]:
        """Compute exp(−r) and −exp(−r) / 2r, taken as 0 at r = 0, where there is no derivative."""
        r = safe_sqrt(square)
        K = torch.exp(-r)
        apart = square > torch.finfo(square.dtype).tiny
        return K, torch.where(apart, -0.5 * K / r, 0.0)


class Matern32(FixedShape):
    """The Matérn kernel with ν = 3/2, k = (1 + √3 r) exp(−√3 r), with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are differentiable once.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, optional
        The columns that the kernel looks at, by place or name; all by default.
    shared : sequence of int, optional
        Which of the lengthscales each of these columns has, so that several can share one.

    Examples
    --------
    >>> from distgp import Matern32
    >>> Matern32([0.5, 2.0])  # a lengthscale for each of two columns
    Matern32(lengthscale=[0.5, 2.0])
    """

    def shape(self, square: Tensor) -> Tensor:
        """Compute (1 + t) exp(−t) with t = √3 r."""
        t = math.sqrt(3.0) * safe_sqrt(square)
        return (1.0 + t) * torch.exp(-t)

    def shape_and_slope(self, square: Tensor) -> tuple[Tensor, Tensor]:
        """Compute (1 + t) exp(−t) and −3/2 exp(−t)."""
        t = square.mul(3.0).sqrt_()
        decay = t.neg().exp_()
        return t.add_(1.0).mul_(decay), decay.mul_(-1.5)


class Matern52(FixedShape):
    """The Matérn kernel with ν = 5/2, k = (1 + √5 r + 5r²/3) exp(−√5 r), r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are differentiable twice. It is the estimators' default.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, optional
        The columns that the kernel looks at, by place or name; all by default.
    shared : sequence of int, optional
        Which of the lengthscales each of these columns has, so that several can share one.

    Examples
    --------
    >>> from distgp import DistributedGPRegressor, Matern52
    >>> gp = DistributedGPRegressor(kernel=2.0 * Matern52([0.5, 2.0]))
    """

    def shape(self, square: Tensor) -> Tensor:
        """Compute (1 + t + t²/3) exp(−t) with t = √5 r."""
        t = math.sqrt(5.0) * safe_sqrt(square)
        return (1.0 + t + (5.0 / 3.0) * square) * torch.exp(-t)

    def shape_and_slope(self, square: Tensor) -> tuple[Tensor, Tensor]:
        """Compute (1 + t + t²/3) exp(−t) and −5/6 (1 + t) exp(−t)."""
        t = square.mul(5.0).sqrt_()
        decay = t.neg().exp_()
        slope = t.add(1.0).mul_(decay)
        K = t.square_().mul_(1.0 / 3.0).mul_(decay).add_(slope)
        return K, slope.mul_(-5.0 / 6.0)


class RationalQuadratic(Stationary):
    """The rational quadratic kernel, k = (1 + r² / 2α)^−α, with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    It is a mixture of RBF kernels over lengthscales, and tends to the RBF kernel as α grows.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, optional
        The columns that the kernel looks at, by place or name; all by default.
    shared : sequence of int, optional
        Which of the lengthscales each of these columns has, so that several can share one.
    alpha : float or Tensor, default=1.0
        The mixture parameter α, (*batch,).

    Examples
    --------
    >>> from distgp import RationalQuadratic
    >>> RationalQuadratic(0.8, alpha=1.4)
    RationalQuadratic(lengthscale=[0.8], alpha=1.4)
    """

    alpha: Tensor = field(default=1.0, converter=scalar)

    def shape(self, square: Tensor) -> Tensor:
        """Compute exp(−α log(1 + r² / 2α))."""
        alpha = self.alpha[..., None, None]
        return torch.exp(-alpha * torch.log1p(square / (2.0 * alpha)))


KERNELS: dict[str, type[Stationary]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational-quadratic": RationalQuadratic,
}
"""The kernels that estimators know by name: those with one lengthscale per column."""
