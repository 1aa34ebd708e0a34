"""The periodic kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distgp.kernels.base import Kernel, columns, field, select, vector
from distgp.kernels.stationary import squared_distance


class Periodic(Kernel):
    """exp(−2 Σ_j sin²(π(x_j − x′_j) / p_j) / ℓ_j²), with period p and lengthscale ℓ a column.

    On the circle φ(x) = (cos 2πx/p, sin 2πx/p), ‖φ(x) − φ(x′)‖² = 4 sin²(π(x − x′)/p): the RBF
    kernel of the embedded inputs, so its distances are a matrix product too.
    """

    lengthscale: Tensor = field(default=1.0, converter=vector)
    period: Tensor = field(default=1.0, converter=vector)
    active_dims: tuple[int, ...] | None = field(default=None, converter=columns)

    def _embed(self, X: Tensor) -> Tensor:
        X = select(X, self.active_dims, self.lengthscale, self.period)
        angle = X * (2.0 * math.pi / self.period[..., None, :])
        scale = self.lengthscale[..., None, :]
        return torch.cat([angle.cos() / scale, angle.sin() / scale], -1)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """The RBF kernel of the embedded inputs."""
        A = self._embed(X1)
        B = A if X2 is X1 else self._embed(X2)
        return (-0.5 * squared_distance(A, B)).exp_()

    def diag(self, X: Tensor) -> Tensor:
        """Ones."""
        batch = (*torch.broadcast_shapes(self.lengthscale.shape, self.period.shape)[:-1], 1)
        shape = torch.broadcast_shapes(X.shape[:-1], batch)
        return torch.ones(shape, dtype=X.dtype, device=X.device)
