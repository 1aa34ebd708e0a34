"""What an expert is: it scores θ on a shard, conditions on one, and its posterior predicts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.experts.parameters import Parameters
from distgp.kernels import Kernel
from distgp.threads import on_threads

CHUNK_ENTRIES = {"cpu": 2**21, "cuda": 2**26}
"""Entries of the largest temporary matrix, by device: 16 MiB (cache) and 512 MiB in float64."""
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Prediction:
    """Mean and variance at N points.

    Parameters
    ----------
    mean, variance : Tensor of shape (*batch, N)
        Of the latent function f, unless it is said otherwise.
    """

    travels_as: ClassVar[str] = "predictions"
    mean: Tensor
    variance: Tensor

    @property
    def std(self) -> Tensor:
        """The standard deviation."""
        return self.variance.sqrt()

    def observed(self, noise: Tensor | float) -> Prediction:
        """The prediction of y = f + noise, from the latent prediction of f."""
        noise = torch.as_tensor(noise, dtype=self.mean.dtype, device=self.mean.device)
        return Prediction(self.mean, self.variance + noise[..., None])


class Means(ABC):
    """The posterior means of a batch of experts without their variances.

    This is all that other workers need of an expert to evaluate its mean on their own rows.
    """

    travels_as: ClassVar[Kinds] = "means"

    @property
    @abstractmethod
    def coefficients(self) -> Tensor:
        """One row of coefficients per expert, (M, p)."""

    @abstractmethod
    def mean_chunk(self, X: Tensor) -> Tensor:
        """All means at all rows of X at once, (M, N)."""

    @property
    def size(self) -> int:
        """The number of experts."""
        return len(self.coefficients)

    def mean(self, X: Tensor) -> Tensor:
        """All means at the rows of X, (M, N), in bounded memory."""
        return torch.cat(in_chunks(self.mean_chunk, X, self.coefficients.numel()), -1)


class Posterior(ABC):
    """The distribution of f given one shard, or per expert given a batch of shards."""

    parameters: Parameters
    shard: Shard | None
    """The rows that it was conditioned on; None where it no longer holds them."""

    @abstractmethod
    def mean_chunk(self, X: Tensor) -> Tensor:
        """The mean at all rows of X at once."""

    @abstractmethod
    def predict_chunk(self, X: Tensor) -> Prediction:
        """Mean and latent variance at all rows of X at once."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """Entries of the temporary matrices per test point, over the whole batch."""

    @property
    @abstractmethod
    def batch(self) -> tuple[int, ...]:
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

        cov(μ_i(x), μ_j(x)) = a_iᵀ k(P_i, P_j) a_j for i ≠ j, and var μ_i = cov(μ_i, f) = k_A: equation
        (6) of the paper.
        """

    @abstractmethod
    def covariance(self, X: Tensor) -> Tensor:
        """The latent covariance between all rows of X, (*batch, N, N)."""

    @abstractmethod
    def weighted_mean(self, X: Tensor, weights: Tensor) -> Tensor:
        """Σ_i β_i μ_i(x) over the experts of a batch, with one kernel matrix where they share θ."""

    @abstractmethod
    def row_count(self) -> int:
        """The number of rows of all shards, known even where the rows are no longer held."""

    @abstractmethod
    def without_rows(self) -> Self:
        """The same posterior without rows that it can do without."""

    @abstractmethod
    def chosen(self, which: Tensor) -> Self:
        """These experts of a batch, by their places in it, as they are."""

    @property
    def count(self) -> int:
        """The number of experts in a batch with one leading dimension."""
        return self.batch[0]

    def rows_held(self) -> Shard:
        """The rows that the experts were conditioned on, for aggregators that need them."""
        if self.shard is None:
            raise ValueError(
                "this aggregator needs the training rows, which these experts no longer hold; "
                "poe, gpoe, softmax-poe, bcm, rbcm, min-variance, barycentre, npae and, with shared "
                "inducing inputs, opt, grbcm and pooled do without"
            )
        return self.shard

    def mean(self, X: Tensor) -> Tensor:
        """The mean at the rows of X (N, d), without any variance work, in bounded memory."""
        return torch.cat(in_chunks(self.mean_chunk, X, self.entries), -1)

    def predict(self, X: Tensor) -> Prediction:
        """Mean and latent variance at the rows of X (N, d), in bounded memory.

        Variances are at least ε·k(x, x), and never zero or negative.
        """
        parts = in_chunks(self.predict_chunk, X, self.entries)
        mean = torch.cat([part.mean for part in parts], -1)
        return Prediction(mean, torch.cat([part.variance for part in parts], -1))

    def prior(self, X: Tensor) -> Tensor:
        """k(x, x) in the dtype of X."""
        return self.parameters.kernel.diag(X.to(self.parameters.noise.dtype)).to(X.dtype)


class Expert(ABC):
    """A kind of Gaussian process: how it scores θ on a shard, and how it conditions on one.

    Experts have no state; every object of a class is as good as any other.
    """

    name: ClassVar[str]

    @abstractmethod
    def entries(self, n: int) -> int:
        """Entries of the temporary matrices that the objective of one shard of n rows needs."""

    @abstractmethod
    def objective(self, parameters: Parameters, shard: Shard) -> Tensor:
        """What training minimises, (*batch,), differentiable in every tensor of θ."""

    @abstractmethod
    def condition(self, parameters: Parameters, shard: Shard) -> Posterior:
        """The posterior given the shard."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


def chunk_rows(entries: int, device: torch.device) -> int:
    """The number of rows that are worked on at a time, if each needs this many entries."""
    return max(1, CHUNK_ENTRIES.get(device.type, CHUNK_ENTRIES["cpu"]) // max(1, entries))


def in_chunks(function: Callable[[Tensor], Result], X: Tensor, entries: int) -> list[Result]:
    """Call a function on chunks of the rows of X, so that temporary matrices stay bounded.

    Parameters
    ----------
    function : callable
        Called without gradients, with consecutive rows of X.
    X : Tensor of shape (N, d)
        The points.
    entries : int
        Entries of the temporary matrices per point.

    Returns
    -------
    list
        What the function returned for each chunk.
    """
    size = chunk_rows(entries, X.device)
    with torch.no_grad():
        if X.device.type != "cpu":
            return [function(chunk) for chunk in X.split(size, -2)]
        # As many chunks for each thread, of the same size.
        threads, N = torch.get_num_threads(), X.shape[-2]
        parts = 1 if size >= N else threads * math.ceil(N / (threads * size))
        return on_threads(function, X.split(max(1, math.ceil(N / parts)), -2))


def product_in_chunks(kernel: Kernel, X: Tensor, points: Tensor, coefficients: Tensor) -> Tensor:
    """k(X, points) @ coefficients, without holding the whole matrix."""

    def product(chunk: Tensor) -> Any:
        return kernel(chunk, points) @ coefficients

    return torch.cat(in_chunks(product, X, len(points)))


def latent_variance(prior: Tensor, explained: Tensor) -> Tensor:
    """prior − explained, floored at ε·prior, and at √tiny where the prior itself is 0."""
    info = torch.finfo(prior.dtype)
    return torch.maximum(prior - explained, info.eps * prior + info.tiny**0.5)
