"""What an expert is: objective and condition on a shard, then a posterior that predicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp.experts.parameters import Parameters
from distgp.kernels import Kernel
from distgp.shards import Shard

CHUNK_ENTRIES = {"cpu": 2**21, "cuda": 2**26}
"""Entries of the largest temporary matrix, by device: 16 MiB (cache) and 512 MiB in float64."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Mean and variance of the latent f at N points, (*batch, N)."""

    travels_as: ClassVar[str] = "predictions"
    mean: Tensor
    variance: Tensor

    @property
    def std(self) -> Tensor:
        """The standard deviation."""
        return self.variance.sqrt()

    def observed(self, noise: Tensor | float) -> Prediction:
        """The prediction of y = f + noise, for the latent prediction of f."""
        noise = torch.as_tensor(noise, dtype=self.mean.dtype, device=self.mean.device)
        return Prediction(self.mean, self.variance + noise[..., None])


class Means(ABC):
    """The experts' means and nothing else of them: what is sent where other rows are."""

    travels_as: ClassVar[str] = "means"

    @property
    @abstractmethod
    def coefficients(self) -> Tensor:
        """One row of coefficients an expert, (M, p)."""

    @abstractmethod
    def mean_chunk(self, X: Tensor) -> Tensor:
        """All means at all rows of X at once, (M, N)."""

    @property
    def size(self) -> int:
        """How many experts."""
        return len(self.coefficients)

    def mean(self, X: Tensor) -> Tensor:
        """All means at the rows of X, (M, N), in bounded memory."""
        rows = chunk_rows(self.coefficients.numel(), X.device)
        with torch.no_grad():
            return torch.cat([self.mean_chunk(chunk) for chunk in X.split(rows, -2)], -1)


class Posterior(ABC):
    """f given one shard, or a batch of shards."""

    parameters: Parameters

    @abstractmethod
    def mean_chunk(self, X: Tensor) -> Tensor:
        """The mean at all rows of X at once."""

    @abstractmethod
    def predict_chunk(self, X: Tensor) -> Prediction:
        """Mean and latent variance at all rows of X at once."""

    @property
    @abstractmethod
    def columns(self) -> int:
        """Entries of a temporary matrix for each test point, over the whole batch."""

    @property
    @abstractmethod
    def batch(self) -> torch.Size:
        """The leading batch dimensions: one entry per expert."""

    @abstractmethod
    def means(self) -> Means:
        """The means of a batch of experts, without what only variances need."""

    @abstractmethod
    def representer(self) -> tuple[Tensor, Tensor]:
        """Points P (*batch, p, d) and coefficients (*batch, p) with μ(x) = Σ_p k(x, p) c_p."""

    @abstractmethod
    def projection(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean as a random variable of the prior: points P, a (*batch, p, N), k_A (*batch, N).

        cov(μ_i(x), μ_j(x)) = a_iᵀ k(P_i, P_j) a_j for i ≠ j, var μ_i = cov(μ_i, f) = k_A: equation (6).
        """

    @abstractmethod
    def covariance(self, X: Tensor) -> Tensor:
        """The latent covariance between all rows of X, (*batch, N, N)."""

    @abstractmethod
    def weighted_mean(self, X: Tensor, weights: Tensor) -> Tensor:
        """Σ_i β_i μ_i(x) over the experts of a batch: one kernel matrix where they share θ."""

    def mean(self, X: Tensor) -> Tensor:
        """The mean at the rows of X (N, d), without any variance work, in bounded memory."""
        with torch.no_grad():
            return torch.cat([self.mean_chunk(chunk) for chunk in self._chunks(X)], -1)

    def predict(self, X: Tensor) -> Prediction:
        """Mean and latent variance at the rows of X (N, d), in bounded memory.

        Variances are at least ε·k(x, x), and never zero or negative.
        """
        with torch.no_grad():
            parts = [self.predict_chunk(chunk) for chunk in self._chunks(X)]
        mean = torch.cat([part.mean for part in parts], -1)
        return Prediction(mean, torch.cat([part.variance for part in parts], -1))

    def prior(self, X: Tensor) -> Tensor:
        """k(x, x) in the dtype of X."""
        return self.parameters.kernel.diag(X.to(self.parameters.noise.dtype)).to(X.dtype)

    def _chunks(self, X: Tensor) -> Sequence[Tensor]:
        return X.split(chunk_rows(self.columns, X.device), -2)


class Expert(ABC):
    """A kind of GP: how it scores θ on a shard, and how it conditions on one."""

    name: ClassVar[str]

    @abstractmethod
    def entries(self, n: int) -> int:
        """Entries of a temporary matrix that the objective of one shard of n rows needs at once."""

    @abstractmethod
    def objective(self, parameters: Parameters, shard: Shard) -> Tensor:
        """What training minimises, (*batch,): differentiable in every tensor of θ."""

    @abstractmethod
    def condition(self, parameters: Parameters, shard: Shard) -> Posterior:
        """The posterior given the shard."""


def chunk_rows(columns: int, device: torch.device) -> int:
    """How many rows fit into a chunk, if each takes this many entries."""
    return max(1, CHUNK_ENTRIES.get(device.type, CHUNK_ENTRIES["cpu"]) // columns)


def product_in_chunks(kernel: Kernel, X: Tensor, points: Tensor, coefficients: Tensor) -> Tensor:
    """k(X, points) @ coefficients, without holding the whole matrix."""
    rows = chunk_rows(len(points), X.device)
    return torch.cat([kernel(chunk, points) @ coefficients for chunk in X.split(rows, -2)])


def latent_variance(prior: Tensor, explained: Tensor) -> Tensor:
    """prior − explained, floored at ε·prior, and at √tiny where the prior itself is 0."""
    info = torch.finfo(prior.dtype)
    return torch.maximum(prior - explained, info.eps * prior + info.tiny**0.5)
