"""Kernels that do not decay: linear and constant."""

from __future__ import annotations

from torch import Tensor

from distgp.kernels.base import Kernel, columns, field, scalar, select, vector


class Linear(Kernel):
    """Σ_j v_j x_j x′_j: Bayesian linear regression through the origin, with weight variances v."""

    variance: Tensor = field(default=1.0, converter=vector)
    active_dims: tuple[int, ...] | None = field(default=None, converter=columns)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """X1 diag(v) X2ᵀ, as the product of two scaled factors so that it stays symmetric."""
        return self._scaled(X1) @ self._scaled(X2).mT

    def diag(self, X: Tensor) -> Tensor:
        """Σ_j v_j x_j²."""
        return self._scaled(X).square().sum(-1)

    def _scaled(self, X: Tensor) -> Tensor:
        return select(X, self.active_dims, self.variance) * self.variance[..., None, :].sqrt()


class Constant(Kernel):
    """The same value everywhere: an unknown offset with this prior variance."""

    variance: Tensor = field(default=1.0, converter=scalar)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """The variance, for all pairs."""
        pairs = X1.new_ones(X1.shape[:-1])[..., :, None] * X2.new_ones(X2.shape[:-1])[..., None, :]
        return self.variance[..., None, None] * pairs

    def diag(self, X: Tensor) -> Tensor:
        """The variance, for all rows."""
        return self.variance[..., None] * X.new_ones(X.shape[:-1])
