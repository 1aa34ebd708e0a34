"""Random problems of one seed, drawn on the CPU so that every device sees the same numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import distgp
from distgp import linalg
from distgp.data import RandomPartition, Shard, split

NOISE = 0.25
"""The noise variance σ² of the paper's synthetic problems."""
LENGTHSCALE = 0.3
"""The lengthscale of their RBF kernel."""
WAVES = 2000
"""The number of waves in `wave_problem`."""


class Draws:
    """A stream of random numbers.

    Parameters
    ----------
    seed : int
        The seed of the stream.
    device : str
        The device that the numbers are moved to.
    """

    def __init__(self, seed: int, device: str) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device

    def box(self, *shape: int) -> Tensor:
        """Draw numbers that are uniform on [−1, 1]."""
        values = torch.rand(*shape, generator=self._generator, dtype=torch.float64) * 2 - 1
        return values.to(self._device)

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers."""
        values = torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        return values.to(self._device)

    def prior(self, kernel: distgp.Kernel, points: Tensor, nugget: float = 1e-8) -> Tensor:
        """Draw a function from a GP prior.

        Parameters
        ----------
        kernel : Kernel
            The covariance of the prior.
        points : Tensor of shape (n, d)
            The points at which the function is wanted.
        nugget : float, default=1e-8
            The variance of independent noise to add.

        Returns
        -------
        Tensor of shape (n,)
        """
        K = kernel(points)
        L = linalg.cholesky(linalg.add_diagonal(K, K.new_full((), nugget)))
        return L @ self.normal(len(points))

    def choice(self, n: int, size: int) -> Tensor:
        """Draw `size` different numbers from 0 … n − 1."""
        return torch.randperm(n, generator=self._generator)[:size].to(self._device)


def rbf(device: str, lengthscale: float = LENGTHSCALE) -> distgp.Kernel:
    """The RBF kernel of the synthetic problems, σ_f² = 1, on a device."""
    return (1.0 * distgp.RBF(lengthscale)).to(device)


def prior_problem(
    n: int, seed: int, device: str, side: int = 50, d: int = 2, lengthscale: float = LENGTHSCALE
) -> tuple[Shard, Tensor, Tensor]:
    """Draw a function from the prior of `rbf`, with noisy rows in [−1, 1]^d.

    Parameters
    ----------
    n : int
        The number of rows.
    seed : int
        The seed of the draw.
    device : str
        The device that the problem is moved to.
    side : int, default=50
        In two dimensions the test points are a grid of side × side on [−1.2, 1.2]²; in any other
        number of dimensions, 1,000 random points in [−1.1, 1.1]^d.
    d : int, default=2
        The number of columns.
    lengthscale : float, default=0.3
        The lengthscale of the kernel.

    Returns
    -------
    data : Shard
        The rows.
    X : Tensor of shape (N, d)
        The test points.
    f : Tensor of shape (N,)
        The function's values there, without noise.
    """
    draws = Draws(seed, device)
    X, test = draws.box(n, d), 1.1 * draws.box(1000, d)
    if d == 2:
        line = torch.linspace(-1.2, 1.2, side, dtype=torch.float64, device=device)
        test = torch.cartesian_prod(line, line)
    points = torch.cat([X, test])
    f = draws.prior(rbf(device, lengthscale), points)
    y = f[:n] + NOISE**0.5 * draws.normal(n)
    return Shard.of(points[:n], y), points[n:], f[n:]


def wave_problem(n: int, seed: int, device: str, tests: int = 500) -> tuple[Shard, Tensor, Tensor]:
    """Draw a function that is a sum of random waves, with noisy rows in [−1, 1]².

    The sum of many waves is nearly a draw from the prior of `rbf`, and costs O(n) where the draw
    itself costs O(n³).

    Parameters
    ----------
    n : int
        The number of rows.
    seed : int
        The seed of the draw.
    device : str
        The device that the problem is moved to.
    tests : int, default=500
        The number of test points, which are uniform on [−1, 1]².

    Returns
    -------
    data : Shard
        The rows.
    X : Tensor of shape (tests, 2)
        The test points.
    f : Tensor of shape (tests,)
        The function's values there, without noise.
    """
    draws = Draws(seed, device)
    W, phase = draws.normal(2, WAVES) / LENGTHSCALE, math.pi * draws.box(WAVES)
    heights = math.sqrt(2 / WAVES) * draws.normal(WAVES)
    points = draws.box(tests + n, 2)
    f = torch.cat([torch.cos(part @ W + phase) @ heights for part in points.split(5000)])
    y = f[tests:] + NOISE**0.5 * draws.normal(n)
    return Shard.of(points[tests:], y), points[:tests], f[:tests]


def random_shards(data: Shard, M: int, seed: int) -> list[Shard]:
    """Deal the rows of a shard out to M experts at random."""
    return split(data, RandomPartition().assign(data.X.cpu().numpy(), M, seed))
