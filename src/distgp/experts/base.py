"""The two things every kind of expert is made of: the kind itself, and its posterior.

A kind scores θ on a shard, conditions on one, and declares what it can do: how it is trained and
combined by default, how it chooses inducing inputs, and what of its rows it keeps. Code elsewhere asks
these declarations; it never asks which kind it has.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, TypeAlias, TypeVar

import torch
from torch import Tensor

from distgp._util.threads import on_threads
from distgp.data.shard import Shard
from distgp.engines import Kinds, Placement
from distgp.experts.parameters import Parameters
from distgp.kernels import Kernel

CHUNK_ENTRIES = {"cpu": 2**21, "cuda": 2**26}
"""Entries of the largest temporary matrix, by device: 16 MiB (cache) and 512 MiB in float64."""
Result = TypeVar("Result")
Inducing: TypeAlias = int | Literal["auto"] | Tensor
"""The number of inducing inputs, "auto" for the kind's own rule, or the inputs themselves."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Mean and variance at N points, (*batch, N), of the latent function f unless it is said otherwise."""

    travels_as: ClassVar[str] = "predictions"
    mean: Tensor
    variance: Tensor

    @property
    def std(self) -> Tensor:
        """The standard deviation."""
        return self.variance.sqrt()

    def observed(self, noise: Tensor | float) -> Prediction:
        """Predict y = f + noise instead of f."""
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
    def covariance(self, X: Tensor) -> Tensor:
        """The latent covariance between all rows of X, (*batch, N, N)."""

    @abstractmethod
    def row_count(self) -> int:
        """The number of rows of all shards, known even where the rows are no longer held."""

    @abstractmethod
    def without_rows(self) -> Self:
        """The same posterior without rows that it can do without."""

    @abstractmethod
    def chosen(self, which: Tensor) -> Self:
        """These experts of a batch, by their places in it, as they are."""

    @abstractmethod
    def communication(self, shared: bool) -> object:
        """Return the rows of the first expert, or their sums: the others augment themselves with these.

        `shared` says whether all experts share θ and the inducing inputs, so that sums can be added.
        """

    @abstractmethod
    def augmented(self, message: object, skip: int) -> tuple[Posterior, Posterior]:
        """Join all experts but the first `skip` with the communication shard, or with its sums.

        Returns the augmented experts, and the communication expert as each of them sees it: where
        hyperparameters differ, through its own.
        """

    @property
    def count(self) -> int:
        """The number of experts in a batch with one leading dimension."""
        return self.batch[0]

    def rows_held(self) -> Shard:
        """The rows that the experts were conditioned on, for aggregators that need them."""
        if self.shard is None:
            raise RowsGoneError(
                "this aggregator needs the training rows, which these experts no longer hold"
            )
        return self.shard

    def mean(self, X: Tensor) -> Tensor:
        """The mean at the rows of X (N, d), without any variance work, in bounded memory."""
        return torch.cat(in_chunks(self.mean_chunk, X, self.entries), -1)

    def predict(self, X: Tensor) -> Prediction:
        """Mean and latent variance at the rows of X (N, d), in bounded memory.

        Variances are at least ε·k(x, x), and never zero or negative.
        """
        return concatenated(in_chunks(self.predict_chunk, X, self.entries))

    def prior(self, X: Tensor) -> Tensor:
        """k(x, x) in the dtype of X."""
        return self.parameters.kernel.diag(X.to(self.parameters.noise.dtype)).to(X.dtype)


class LinearPosterior(Posterior):
    """A posterior whose mean is a fixed combination of kernel functions, the same at every point."""

    @abstractmethod
    def means(self) -> Means:
        """The means of a batch of experts, without what only variances need."""

    @abstractmethod
    def representer(self) -> tuple[Tensor, Tensor]:
        """Points P (*batch, p, d) and coefficients (*batch, p) with μ(x) = Σ_p k(x, p) c_p."""

    @property
    @abstractmethod
    def row_coefficients(self) -> Tensor | None:
        """The representer's coefficients where its points are the rows, (*batch, n); else None."""

    @abstractmethod
    def projection(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean as a random variable of the prior: points P, a (*batch, p, N), k_A (*batch, N).

        cov(μ_i(x), μ_j(x)) = a_iᵀ k(P_i, P_j) a_j for i ≠ j, and var μ_i = cov(μ_i, f) = k_A: equation
        (6) of the paper.
        """

    @abstractmethod
    def weighted_mean(self, X: Tensor, weights: Tensor) -> Tensor:
        """Σ_i β_i μ_i(x) over the experts of a batch, with one kernel matrix where they share θ."""

    @abstractmethod
    def printed_variance(self, X: Tensor) -> Tensor:
        """The term that algorithms 4 and 6 of the paper print for the variance, (*batch, N)."""


class RowsGoneError(ValueError):
    """Something needs training rows that the experts no longer hold."""


@dataclass(frozen=True)
class Stage:
    """One stage of training.

    Parameters
    ----------
    choose : callable, optional
        Chooses inducing inputs for the θ found so far, as ``choose(theta, rows, seed)``, before the
        stage begins.
    own, fixed : tuple of str
        Parameters that each expert keeps for itself, and that the stage leaves as they are.
    """

    choose: Callable[[Parameters, Placement[Shard], int], Tensor] | None = None
    own: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


class Expert(ABC):
    """A kind of Gaussian process: how it scores θ on a shard, and how it conditions on one.

    Experts have no state; every object of a class with the same options is as good as any other.
    """

    name: ClassVar[str]
    default_training: ClassVar[str]
    """The name of the algorithm that trains it best."""
    training_rows: ClassVar[int | None] = None
    """Rows that training looks at by default, so that its cost does not depend on n; None for all."""
    holds_rows: ClassVar[bool] = True
    """Whether its posteriors are made of their rows, which then travel and are saved with them."""
    adds_sums: ClassVar[bool] = False
    """Whether experts that share θ and inducing inputs are joined by adding sums over their rows."""
    joins_rows: ClassVar[bool] = False
    """Whether the rows of experts that share θ are better kept as one set."""
    cheap_covariances: ClassVar[bool] = False
    """Whether covariances between experts cost far less than n² per test point."""
    least_inducing: ClassVar[int] = 0
    """The least number of inducing inputs that it can do with."""

    @classmethod
    def with_options(cls, n_neighbors: int) -> Self:
        """Build the kind from those parameters of an estimator that are about it."""
        del n_neighbors
        return cls()

    @abstractmethod
    def entries(self, n: int) -> int:
        """Entries of the temporary matrices that the objective of one shard of n rows needs."""

    @abstractmethod
    def objective(self, parameters: Parameters, shard: Shard) -> Tensor:
        """Return the value that training minimises, (*batch,), differentiable in every tensor of θ."""

    @abstractmethod
    def condition(self, parameters: Parameters, shard: Shard) -> Posterior:
        """The posterior given the shard."""

    @abstractmethod
    def number_of_experts(self, n: int, inducing: Inducing, workers: int) -> int:
        """The number of experts for n rows, where the user leaves it to us."""

    def default_aggregation(self, size: int, shares_theta: bool, shares_inducing: bool) -> str:
        """The aggregator that comes closest to the full GP for `size` of these experts.

        One expert is the full GP, and poe returns it. Experts that share θ are closest under
        two-level, and others under opt-local.
        """
        del shares_inducing
        return "poe" if size == 1 else "two-level" if shares_theta else "opt-local"

    def first_inducing(self, given: Inducing, rows: Placement[Shard], seed: int) -> Tensor | None:
        """Inducing inputs for training to start with, while nothing is known of θ; None for none."""
        del given, rows, seed

    def stages(self, given: Inducing, n_iter: int, shared: bool, learnt: bool) -> Sequence[Stage]:
        """The stages of training.

        Parameters
        ----------
        given : int, "auto" or Tensor
            The inducing inputs that the user asked for.
        n_iter : int
            The number of rounds of all stages.
        shared : bool
            Whether the experts learn one θ.
        learnt : bool
            Whether training starts from a θ that was learnt from a part of the rows.
        """
        del given, n_iter, shared, learnt
        return (Stage(),)

    def last_inducing(
        self, given: Inducing, theta: Parameters, shards: Placement[Shard], seed: int
    ) -> Tensor | None:
        """Inducing inputs to condition on, for the θ that training found; None for none."""
        del given, shards, seed
        return theta.inducing

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


def concatenated(parts: Sequence[Prediction]) -> Prediction:
    """Join the predictions of consecutive chunks of points."""
    if len(parts) == 1:
        return parts[0]
    mean = torch.cat([part.mean for part in parts], -1)
    return Prediction(mean, torch.cat([part.variance for part in parts], -1))


def chunk_rows(entries: int, device: torch.device) -> int:
    """The number of rows that are worked on at a time, if each needs this many entries."""
    return max(1, CHUNK_ENTRIES.get(device.type, CHUNK_ENTRIES["cpu"]) // max(1, entries))


def in_chunks(function: Callable[[Tensor], Result], X: Tensor, entries: int) -> list[Result]:
    """Call a function without gradients on chunks of the rows of X, so that memory stays bounded.

    `entries` are the entries of temporary matrices per row.
    """
    size, N = chunk_rows(entries, X.device), X.shape[-2]
    with torch.no_grad():
        if size >= N:
            return [function(X)]
        if X.device.type != "cpu":
            return [function(chunk) for chunk in X.split(size, -2)]
        # As many chunks for each thread, of the same size.
        threads = torch.get_num_threads()
        parts = threads * math.ceil(N / (threads * size))
        return on_threads(function, X.split(max(1, math.ceil(N / parts)), -2))


def product_in_chunks(kernel: Kernel, X: Tensor, points: Tensor, coefficients: Tensor) -> Tensor:
    """k(X, points) @ coefficients, without holding the whole matrix."""

    def product(chunk: Tensor) -> Tensor:
        return kernel(chunk, points) @ coefficients

    return torch.cat(in_chunks(product, X, len(points)))


def latent_variance(prior: Tensor, explained: Tensor) -> Tensor:
    """prior − explained, floored at ε·prior, and at √tiny where the prior itself is 0."""
    info = torch.finfo(prior.dtype)
    return torch.maximum(prior - explained, info.eps * prior + info.tiny**0.5)
