"""Kernels of the scaled distance r² = Σ_j (x_j − x′_j)² / ℓ_j²: RBF, Matérn, rational quadratic."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.kernels.base import (
    Columns,
    Kernel,
    ParameterError,
    columns,
    field,
    scalar,
    select,
    vector,
)
from distgp.kernels.distance import Shape, kernel_of_distance, squared_distance


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


class Stationary(Kernel):
    """The base class of kernels k(x, x′) = shape(r²) with shape(0) = 1.

    Parameters
    ----------
    lengthscale, active_dims, shared
        As for `RBF`: the lengthscales ℓ, the columns, and which columns share a lengthscale.
    """

    units: ClassVar[Mapping[str, int]] = {"lengthscale": 1}
    lengthscale: Tensor = field(default=1.0, converter=vector)
    active_dims: Columns = field(default=None, converter=columns)
    shared: tuple[int, ...] | None = field(default=None, converter=lengths, kw_only=True)

    @abstractmethod
    def shape(self, square: Tensor) -> Tensor:
        """Compute the kernel from the matrix of r²."""

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute shape(r²) for all pairs."""
        A = self.scaled(X1)
        B = A if X2 is X1 else self.scaled(X2)
        return self.shape(squared_distance(A, B))

    def diag(self, X: Tensor) -> Tensor:
        """Return ones."""
        batch = linalg.broadcast(X.shape[:-1], (*self.lengthscale.shape[:-1], 1))
        return torch.ones(batch, dtype=X.dtype, device=X.device)

    def scaled(self, X: Tensor) -> Tensor:
        """Return the active columns in units of the lengthscales, x / ℓ."""
        if self.shared is None:
            return select(X, self.active_dims, self.lengthscale) / self.lengthscale[..., None, :]
        X = select(X, self.active_dims)
        return X / self.lengthscale_by_column(X.shape[-1])[..., None, :]

    def lengthscale_by_column(self, count: int) -> Tensor:
        """Return the lengthscale of each of the `count` active columns, or one for all of them."""
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


class FixedShape(Stationary, Shape):
    """The base class of stationary kernels whose shape has no parameters of its own.

    Their derivative in the rows is written by hand, in `KernelOfDistance`.
    """

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute shape(r²) for all pairs."""
        return self._gram(X1, X2, None)

    def multiple(self, variance: Tensor, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute variance · shape(r²) for all pairs, in the same pass where there is one variance."""
        if variance.ndim:
            return variance[..., None, None] * self.gram(X1, X2)
        return self._gram(X1, X2, variance)

    def _gram(self, X1: Tensor, X2: Tensor, variance: Tensor | None) -> Tensor:
        A = self.scaled(X1)
        B = A if X2 is X1 else self.scaled(X2)
        return kernel_of_distance(self, A, B, variance)


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

    proportional: ClassVar[float | None] = -0.5
    formula: ClassVar[str | None] = "exp(T(-0.5) * s)"

    def shape(self, square: Tensor) -> Tensor:
        """Compute exp(−r² / 2)."""
        return (-0.5 * square).exp_()

    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Compute exp(−r² / 2), whose derivative is −½ of it."""
        del slope
        square.mul_(-0.5).exp_()


class Matern12(FixedShape):
    """The Matérn kernel with ν = 1/2, k = exp(−r), with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are continuous and nowhere differentiable.

    Parameters
    ----------
    lengthscale, active_dims, shared
        As for `RBF`: the lengthscales ℓ, the columns, and which columns share a lengthscale.

    Examples
    --------
    >>> from distgp import Matern12
    >>> Matern12(0.5, active_dims=[2])  # looks at the third column alone
    Matern12(lengthscale=[0.5], active_dims=(2,))
    """

    formula: ClassVar[str | None] = "exp(-sqrt(s))"

    def shape(self, square: Tensor) -> Tensor:
        """Compute exp(−r)."""
        return torch.exp(-safe_sqrt(square))

    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Compute exp(−r) and −exp(−r) / 2r, taken as 0 at r = 0, where there is no derivative."""
        apart = None if slope is None else square > torch.finfo(square.dtype).tiny
        r = square.sqrt_()
        if slope is None or apart is None:
            r.neg_().exp_()
            return
        slope.copy_(r)
        r.neg_().exp_()
        slope.copy_(torch.where(apart, -0.5 * square / slope, 0.0))


class Matern32(FixedShape):
    """The Matérn kernel with ν = 3/2, k = (1 + √3 r) exp(−√3 r), with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are differentiable once.

    Parameters
    ----------
    lengthscale, active_dims, shared
        As for `RBF`: the lengthscales ℓ, the columns, and which columns share a lengthscale.

    Examples
    --------
    >>> from distgp import Matern32
    >>> Matern32([0.5, 2.0])  # a lengthscale for each of two columns
    Matern32(lengthscale=[0.5, 2.0])
    """

    formula: ClassVar[str | None] = "(T(1) + sqrt(T(3) * s)) * exp(-sqrt(T(3) * s))"

    def shape(self, square: Tensor) -> Tensor:
        """Compute (1 + t) exp(−t) with t = √3 r."""
        t = math.sqrt(3.0) * safe_sqrt(square)
        return (1.0 + t) * torch.exp(-t)

    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Compute (1 + t) exp(−t) and −3/2 exp(−t)."""
        t = square.mul_(3.0).sqrt_()
        decay = torch.neg(t, out=slope).exp_()
        t.add_(1.0).mul_(decay)
        if slope is not None:
            slope.mul_(-1.5)


class Matern52(FixedShape):
    """The Matérn kernel with ν = 5/2, k = (1 + √5 r + 5r²/3) exp(−√5 r), r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are differentiable twice. It is the estimators' default.

    Parameters
    ----------
    lengthscale, active_dims, shared
        As for `RBF`: the lengthscales ℓ, the columns, and which columns share a lengthscale.

    Examples
    --------
    >>> from distgp import DistributedGPRegressor, Matern52
    >>> gp = DistributedGPRegressor(kernel=2.0 * Matern52([0.5, 2.0]))
    """

    formula: ClassVar[str | None] = (
        "(T(1) + sqrt(T(5) * s) + T(5.0 / 3.0) * s) * exp(-sqrt(T(5) * s))"
    )

    def shape(self, square: Tensor) -> Tensor:
        """Compute (1 + t + t²/3) exp(−t) with t = √5 r."""
        t = math.sqrt(5.0) * safe_sqrt(square)
        return (1.0 + t + (5.0 / 3.0) * square) * torch.exp(-t)

    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Compute (1 + t + t²/3) exp(−t) and −5/6 (1 + t) exp(−t)."""
        t = square.mul_(5.0).sqrt_()
        decay = t.neg().exp_()
        first = torch.add(t, 1.0, out=slope).mul_(decay)  # (1 + t) exp(−t)
        t.square_().mul_(1.0 / 3.0).mul_(decay).add_(first)
        if slope is not None:
            slope.mul_(-5.0 / 6.0)


class RationalQuadratic(Stationary):
    """The rational quadratic kernel, k = (1 + r² / 2α)^−α, with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    It is a mixture of RBF kernels over lengthscales, and tends to the RBF kernel as α grows.

    Parameters
    ----------
    lengthscale, active_dims, shared
        As for `RBF`: the lengthscales ℓ, the columns, and which columns share a lengthscale.
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
