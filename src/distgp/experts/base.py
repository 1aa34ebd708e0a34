"""θ, and the two things every kind of expert is made of: the kind itself, and its posterior.

A kind scores θ on a shard, conditions on one, and declares what it can do: how it is trained and
combined by default, how it chooses inducing inputs, and what of its rows it keeps. Code elsewhere asks
these declarations; it never asks which kind it has.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp._util.checks import did_you_mean
from distgp._util.threads import on_threads
from distgp.data.shard import Shard
from distgp.engines import Kinds, Placement
from distgp.kernels.base import Kernel, TensorLike, check_positive, scalar

if TYPE_CHECKING:
    from distgp.experts.sums import SparseSums

CHUNK_ENTRIES = {"cpu": 2**21, "cuda": 2**26}
"""Entries of the largest temporary matrix, by device: 16 MiB (cache) and 512 MiB in float64."""
Result = TypeVar("Result")
Inducing: TypeAlias = int | Literal["auto"] | Tensor
"""The number of inducing inputs, "auto" for the kind's own rule, or the inputs themselves."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """θ: kernel, noise variance and, for sparse experts, inducing inputs.

    Every tensor may carry leading batch dimensions, one entry per expert; without them the
    experts share it.

    Parameters
    ----------
    kernel : Kernel
        The covariance function.
    noise : Tensor of shape (*batch,)
        The noise variance σ².
    inducing : Tensor of shape (*batch, m, d), optional
        The inducing inputs Z.
    """

    travels_as: ClassVar[Kinds] = {"inducing": "inducing", "*": "parameters"}
    kernel: Kernel
    noise: Tensor
    inducing: Tensor | None = None

    @staticmethod
    def of(
        kernel: Kernel, noise: TensorLike, inducing: Tensor | np.ndarray | None = None
    ) -> Parameters:
        """Build θ from plain numbers, checked, in the dtype and on the device of the kernel's."""
        like = next(iter(kernel.parameters().values()))
        noise = scalar(noise).to(like)
        check_positive("noise", noise)
        return Parameters(kernel, noise, None if inducing is None else _inputs(inducing, like))

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch dimensions of kernel and noise: empty where the experts share them."""
        return linalg.broadcast(self.noise.shape, *self.kernel.batches().values())

    @property
    def inducing_batch(self) -> torch.Size:
        """The batch dimensions of Z: empty where the experts share it, or have none."""
        return torch.Size() if self.inducing is None else self.inducing.shape[:-2]

    def __getitem__(self, index: int | slice | Tensor) -> Parameters:
        """θ of these experts of a batch; what they share stays shared."""
        values, batches = self.kernel.parameters(), self.kernel.batches()
        own = {name: values[name][index] for name, batch in batches.items() if batch}
        noise = self.noise[index] if self.noise.ndim else self.noise
        Z = self.inducing
        if Z is not None and self.inducing_batch:
            Z = Z[index]
        return Parameters(self.kernel.with_parameters(own), noise, Z)

    def unsqueezed(self) -> Parameters:
        """The same θ with one leading batch dimension of size one on every tensor."""
        own = {name: value[None] for name, value in self.kernel.parameters().items()}
        Z = None if self.inducing is None else self.inducing[None]
        return Parameters(self.kernel.with_parameters(own), self.noise[None], Z)

    def averaged(self) -> Parameters:
        """One θ for all experts: the geometric mean of kernel and noise, without inducing inputs."""
        values, batches = self.kernel.parameters(), self.kernel.batches()
        shared = {name: values[name].log().mean(0).exp() for name, b in batches.items() if b}
        noise = self.noise.log().mean().exp() if self.noise.ndim else self.noise
        return Parameters(self.kernel.with_parameters(shared), noise)

    def paths(self, name: str) -> list[str]:
        """The full names, such as "kernel.kernel.lengthscale", that end with a name, or the name itself."""
        known = list(self.unconstrained())
        if name in known:
            return [name]
        found = [path for path in known if path.rpartition(".")[2] == name]
        if not found:
            near = did_you_mean(name, [*known, *(path.rpartition(".")[2] for path in known)])
            raise ValueError(f"no parameter {name!r}{near} there are {', '.join(known)}")
        return found

    def joined(self, other: Parameters) -> Parameters:
        """The experts of this θ followed by those of the other; what they share must be the same."""
        values, more = self.kernel.parameters(), other.kernel.parameters()
        differ = [name for name, batch in self.kernel.batches().items() if batch]
        own = {name: torch.cat([values[name], more[name]]) for name in differ}
        noise = torch.cat([self.noise, other.noise]) if self.noise.ndim else self.noise
        Z = self.inducing
        if Z is not None and other.inducing is not None and self.inducing_batch:
            Z = torch.cat([Z, other.inducing])
        return Parameters(self.kernel.with_parameters(own), noise, Z)

    def unconstrained(self) -> dict[str, Tensor]:
        """The view that optimisers work on: logarithms of the positive parameters, Z as it is."""
        positive = {f"kernel.{name}": value for name, value in self.kernel.parameters().items()}
        view = {name: value.log() for name, value in (positive | {"noise": self.noise}).items()}
        return view if self.inducing is None else view | {"inducing": self.inducing}

    def with_unconstrained(self, view: Mapping[str, Tensor]) -> Parameters:
        """The inverse of `unconstrained`; what the view leaves out stays."""
        prefix, noise = "kernel.", self.noise
        named = {k.removeprefix(prefix): v.exp() for k, v in view.items() if k.startswith(prefix)}
        if "noise" in view:
            noise = view["noise"].exp()
            check_positive("noise", noise)
        kernel, Z = self.kernel.with_parameters(named), view.get("inducing", self.inducing)
        return Parameters(kernel, noise, Z)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Parameters:
        """The same θ on another device or in another dtype."""
        Z = None if self.inducing is None else self.inducing.to(device=device, dtype=dtype)
        noise = self.noise.to(device=device, dtype=dtype)
        return Parameters(self.kernel.to(device, dtype), noise, Z)


def _inputs(inducing: Tensor | np.ndarray, like: Tensor) -> Tensor:
    Z = torch.as_tensor(inducing).to(like)
    if Z.ndim < 2 or not Z.numel() or not bool(torch.isfinite(Z).all()):
        raise ValueError(f"expected finite inducing inputs of shape (m, d), got {tuple(Z.shape)}")
    return Z


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

    def log_density(self, y: Tensor) -> Tensor:
        """The log density of values at the points."""
        normaliser = (2.0 * math.pi * self.variance).log()
        return -0.5 * ((y - self.mean).square() / self.variance + normaliser)

    def observed(self, noise: Tensor | float) -> Prediction:
        """Predict y = f + noise instead of f."""
        noise = torch.as_tensor(noise, dtype=self.mean.dtype, device=self.mean.device)
        return Prediction(self.mean, self.variance + noise[..., None])


class RowsGoneError(ValueError):
    """Something needs training rows that the experts no longer hold."""


class Posterior(ABC):
    """The distribution of f given one shard, or per expert given a batch of shards."""

    parameters: Parameters
    shard: Shard | None
    """The rows that it was conditioned on; None where it no longer holds them."""
    sums: SparseSums | None
    """The sums over its rows, where they are all that it needs of them; else None."""

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

    def draws(self, X: Tensor, size: int, seed: int) -> Tensor | None:
        """Joint draws of f at the rows of X, (N, size), of a posterior without batch dimensions.

        Memory beside the result is bounded; None where that is not known without a covariance.
        """
        del X, size, seed

    def part(self, kernel: Kernel) -> Posterior | None:
        """The posterior of that summand of f which has this kernel; None where it is not known.

        Where f = Σ_p f_p has the kernel Σ_p k_p, the covariance of f_p(x) with f is k_p, so that k_p stands
        for k in μ and s², and all that was computed of the rows stays.
        """
        del kernel

    @abstractmethod
    def chosen(self, which: Tensor) -> Self:
        """These experts of a batch, by their places in it, as they are."""

    @abstractmethod
    def with_rows(self, shard: Shard) -> Posterior:
        """The expert of a batch of one, with the same θ, given the rows of a shard beside its own."""

    @abstractmethod
    def augmented(self, message: object, skip: int) -> tuple[Posterior, Posterior]:
        """Join all experts but the first `skip` with the communication shard, or with its sums.

        Returns the augmented experts, and the communication expert as each of them sees it: where
        hyperparameters differ, through its own.
        """

    def communication(self, shared: bool) -> Shard | SparseSums:
        """Return the rows of the first expert, or their sums: the others augment themselves with these.

        `shared` says whether all experts share θ and the inducing inputs, so that sums can be added.
        """
        if shared and self.sums is not None:
            return self.sums[0]
        return self.rows_held()[:1].flatten().without_padding()

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

    def row_counts(self) -> Tensor:
        """The number of rows of every shard; where only sums are kept, with weights that of all copies."""
        return self.rows_held().sizes if self.sums is None else self.sums.n

    def row_count(self) -> int:
        """The number of rows of all shards, counted as `row_counts` does."""
        return round(float(self.row_counts().double().sum()))

    def without_rows(self) -> Self:
        """The same posterior without rows that it can do without."""
        return self if self.sums is None else replace(cast(Any, self), shard=None)

    def stored(self) -> Self:
        """The same posterior as files hold it, without what it can do without or compute again."""
        return self.without_rows()

    def prepare(self) -> None:  # noqa: B027
        """Compute what variances need and is not held, with all threads; by default there is nothing."""

    def mean(self, X: Tensor) -> Tensor:
        """The mean at the rows of X (N, d), without any variance work, in bounded memory."""
        return torch.cat(in_chunks(self.mean_chunk, X, self.entries), -1)

    def predict(self, X: Tensor) -> Prediction:
        """Mean and latent variance at the rows of X (N, d), in bounded memory.

        Variances are at least ε·k(x, x), and never zero or negative.
        """
        self.prepare()
        return concatenated(in_chunks(self.predict_chunk, X, self.entries))

    def prior(self, X: Tensor) -> Tensor:
        """k(x, x) in the dtype of X."""
        return self.parameters.kernel.diag(X.to(self.parameters.noise.dtype)).to(X.dtype)


def fields_alone(self: object) -> dict[str, object]:
    """Pickle the fields of a dataclass, but not what each process computes for itself."""
    return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}


class Stage(NamedTuple):
    """One stage of training.

    Before it begins `choose` chooses inducing inputs for the θ found so far, from rows and a seed. Each
    expert keeps its `own` parameters for itself; the `fixed` ones stay as they are.
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
    first_rows: ClassVar[int | None] = None
    """Rows that training of one large expert begins with, where that is left to us; None for all."""
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

    def check_room(self, shard: Shard) -> None:
        """Raise a MemoryError where the memory that is free cannot hold the posterior of a shard."""
        del shard

    def leave_one_out(self, parameters: Parameters, shard: Shard) -> Prediction | None:
        """Predict each row's observation given all other rows of the shard, (n,).

        None where it costs more than the objective.
        """
        del parameters, shard

    @abstractmethod
    def number_of_experts(self, n: int, inducing: Inducing, workers: int) -> int:
        """The number of experts for n rows, where the user leaves it to us."""

    def full_shard(self, inducing: Inducing) -> int:
        """The number of rows at which an expert is full, where that is left to us; by default none is."""
        del inducing
        return sys.maxsize

    def training_for(self, rows: int) -> str:
        """The name of the algorithm that trains experts of so many rows best; 0 where it is not known."""
        del rows
        return self.default_training

    def polish_for(self, n: int, d: int, like: Tensor, seconds: float) -> int:
        """Evaluations of the objective of all n rows that are worth their time after nearest rows."""
        del n, d, like, seconds
        return 0

    def default_aggregation(self, size: int, shares_theta: bool, shares_inducing: bool) -> str:
        """The aggregator that comes closest to the full GP, which one expert is, for `size` of these."""
        del shares_inducing
        return "poe" if size == 1 else "two-level" if shares_theta else "opt-local"

    def first_inducing(self, given: Inducing, rows: Placement[Shard], seed: int) -> Tensor | None:
        """Inducing inputs for training to start with, while nothing is known of θ; None for none."""
        del given, rows, seed

    def stages(self, given: Inducing, n_iter: int, shared: bool, learnt: bool) -> Sequence[Stage]:
        """The stages of training, of `n_iter` rounds together, with the inducing inputs `given`.

        The experts learn one θ where it is `shared`; `learnt` says that training starts from a θ that
        was learnt from a part of the rows.
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


def even_size(count: int, size: int, parts: int) -> int:
    """The size of chunks of `count` rows, at most `size`, that come in whole numbers of `parts`.

    Examples
    --------
    >>> even_size(100, 40, 2)  # four of 25, so that none of two threads waits for the other
    25
    """
    return max(1, math.ceil(count / (parts * math.ceil(max(1, count) / (parts * size)))))


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
        return on_threads(function, X.split(even_size(N, size, torch.get_num_threads()), -2))


def latent_variance(prior: Tensor, explained: Tensor | float = 0.0) -> Tensor:
    """prior − explained, floored at ε·prior, and at √tiny where the prior itself is 0."""
    info = torch.finfo(prior.dtype)
    return torch.maximum(prior - explained, info.eps * prior + info.tiny**0.5)
