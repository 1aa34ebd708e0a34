"""Kernels that do not decay with distance: constant, linear and periodic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.kernels.base import Columns, Kernel, columns, field, scalar, select, vector
from distgp.kernels.distance import squared_distance


class Constant(Kernel):
    """The constant kernel, k(x, x′) = v: an unknown offset with prior variance v.

    Parameters
    ----------
    variance : float or Tensor, default=1.0
        The variance v of the offset, (*batch,).

    Examples
    --------
    >>> from distgp import RBF, Constant
    >>> RBF(0.5) + Constant(10.0)
    Sum(kernels=(RBF(lengthscale=[0.5]), Constant(variance=10.0)))
    """

    variance: Tensor = field(default=1.0, converter=scalar)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Repeat the variance for all pairs."""
        pairs = X1.new_ones(X1.shape[:-1])[..., :, None] * X2.new_ones(X2.shape[:-1])[..., None, :]
        return self.variance[..., None, None] * pairs

    def diag(self, X: Tensor) -> Tensor:
        """Repeat the variance for all rows."""
        return self.variance[..., None] * X.new_ones(X.shape[:-1])


class Linear(Kernel):
    """The linear kernel, k(x, x′) = Σ_j v_j x_j x′_j.

    A GP with it is Bayesian linear regression through the origin, with prior variance v_j of the
    j-th weight. Add a `Constant` for an offset.

    Parameters
    ----------
    variance : float, sequence or Tensor, default=1.0
        The variances v of the weights: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, optional
        The columns that the kernel looks at, by place or name; all by default.

    Examples
    --------
    >>> import torch
    >>> from distgp import Linear
    >>> Linear(4.0)(torch.tensor([[1.0], [3.0]], dtype=torch.float64)).tolist()
    [[4.0, 12.0], [12.0, 36.0]]
    """

    units: ClassVar[Mapping[str, int]] = {"variance": -2}
    variance: Tensor = field(default=1.0, converter=vector)
    active_dims: Columns = field(default=None, converter=columns)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Multiply two scaled factors, X1 diag(√v) and X2 diag(√v), so that it stays symmetric."""
        return self._scaled(X1) @ self._scaled(X2).mT

    def diag(self, X: Tensor) -> Tensor:
        """Compute Σ_j v_j x_j²."""
        return self._scaled(X).square().sum(-1)

    def _scaled(self, X: Tensor) -> Tensor:
        return select(X, self.active_dims, self.variance) * self.variance[..., None, :].sqrt()


class Periodic(Kernel):
    """The periodic kernel, k(x, x′) = exp(−2 Σ_j sin²(π(x_j − x′_j) / p_j) / ℓ_j²).

    On the circle φ(x) = (cos 2πx/p, sin 2πx/p), ‖φ(x) − φ(x′)‖² = 4 sin²(π(x − x′)/p). So this is the
    RBF kernel of the embedded inputs, and its distances too come from one matrix product.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ on the circle: one per column, (*batch, d), or one for all, (*batch, 1).
    period : float, sequence or Tensor, default=1.0
        The periods p, likewise.
    active_dims : sequence of int or str, optional
        The columns that the kernel looks at, by place or name; all by default.

    Examples
    --------
    >>> from distgp import RBF, Periodic
    >>> Periodic(1.0, period=24.0) * RBF(100.0)  # a daily rhythm that changes slowly
    Product(kernels=(Periodic(lengthscale=[1.0], period=[24.0]), RBF(lengthscale=[100.0])))
    """

    units: ClassVar[Mapping[str, int]] = {"period": 1}
    lengthscale: Tensor = field(default=1.0, converter=vector)
    period: Tensor = field(default=1.0, converter=vector)
    active_dims: Columns = field(default=None, converter=columns)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Evaluate the RBF kernel of the embedded inputs."""
        A = self.embedded(X1)
        B = A if X2 is X1 else self.embedded(X2)
        return (-0.5 * squared_distance(A, B)).exp_()

    def diag(self, X: Tensor) -> Tensor:
        """Return ones."""
        batch = (*linalg.broadcast(self.lengthscale.shape, self.period.shape)[:-1], 1)
        shape = linalg.broadcast(X.shape[:-1], batch)
        return torch.ones(shape, dtype=X.dtype, device=X.device)

    def embedded(self, X: Tensor) -> Tensor:
        """Return the active columns on circles, (cos 2πx/p, sin 2πx/p) / ℓ."""
        X = select(X, self.active_dims, self.lengthscale, self.period)
        angle = X * (2.0 * math.pi / self.period[..., None, :])
        scale = self.lengthscale[..., None, :]
        return torch.cat([angle.cos() / scale, angle.sin() / scale], -1)
