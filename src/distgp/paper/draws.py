"""Random numbers of one seed, drawn on the CPU so that every device sees the same."""

from __future__ import annotations

import torch
from torch import Tensor

import distgp
from distgp import linalg


class Draws:
    """A stream of random numbers."""

    def __init__(self, seed: int, device: str) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device

    def box(self, *shape: int) -> Tensor:
        """Uniform on [−1, 1]."""
        values = torch.rand(*shape, generator=self._generator, dtype=torch.float64) * 2 - 1
        return values.to(self._device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal."""
        values = torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        return values.to(self._device)

    def prior(self, kernel: distgp.Kernel, points: Tensor, nugget: float = 1e-8) -> Tensor:
        """A draw from the prior at these points, with independent noise of variance `nugget`."""
        K = kernel(points)
        L = linalg.cholesky(linalg.add_diagonal(K, K.new_full((), nugget)))
        return L @ self.normal(len(points))

    def choice(self, n: int, size: int) -> Tensor:
        """Numbers below n, all different."""
        return torch.randperm(n, generator=self._generator)[:size].to(self._device)
