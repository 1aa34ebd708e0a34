"""The experts, the method that combines them with its options, and the posterior it makes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from distgp._util.checks import is_number
from distgp.data import shard as sample
from distgp.data.shard import Shard, unstack
from distgp.engines import LocalPlacement, Placement, travels
from distgp.experts import Expert, Parameters, Posterior, Prediction
from distgp.experts.base import RowsGoneError, chunk_rows, concatenated, in_chunks, latent_variance
from distgp.kernels import Kernel
from distgp.likelihoods.gaussian import Gaussian, Space

Result = TypeVar("Result")
WIDE = torch.float64
"""The dtype of sums over rows and of systems for weights, whatever the data's dtype is."""


class AggregationError(ValueError):
    """An aggregator cannot serve these experts."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """M conditioned experts of one kind; `Ensemble.condition` makes one from shards.

    Each item of the placement is a posterior with one batch dimension, a worker's own experts, of which
    there are as many as `counts` says. θ has a batch dimension of M wherever the experts differ.
    Aggregators reach experts on any engine through the placement, by functions with small results.
    """

    placement: Placement[Posterior]
    counts: tuple[int, ...]
    parameters: Parameters
    expert: Expert

    def __post_init__(self) -> None:
        if len(self.placement) != len(self.counts):
            raise ValueError(
                f"expected one number of experts per worker, got {len(self.counts)} numbers for "
                f"{len(self.placement)} workers"
            )
        for batch in (self.parameters.batch, self.parameters.inducing_batch):
            if batch not in ((), (self.size,)):
                raise ValueError(
                    f"expected parameters that {self.size} experts share, or one set per expert, got "
                    f"batch dimensions {tuple(batch)}"
                )

    @staticmethod
    def condition(
        expert: Expert, parameters: Parameters, shards: Placement[Shard] | Sequence[Shard]
    ) -> Ensemble:
        """Condition one expert on each shard, where the shards are.

        Parameters
        ----------
        expert : Expert
            The kind of expert.
        parameters : Parameters
            θ, shared or with one entry per expert.
        shards : Placement of Shard, or sequence of Shard
            One shard per expert; a sequence stays in this process.

        Returns
        -------
        Ensemble
        """
        placement = sample.placed(shards)
        counts = tuple(sample.counts(placement))
        if parameters.batch or parameters.inducing_batch:
            ends = zip(counts, accumulate(counts), strict=True)
            own = [parameters[stop - count : stop] for count, stop in ends]
            made = placement.derive(_condition, expert, each=own)
        else:
            made = placement.derive(_condition, expert, parameters)
        return Ensemble(made, counts, parameters, expert)

    def split(self, values: Tensor) -> list[Tensor]:
        """Cut a tensor (M, …) with one entry per expert into the parts of the workers, for `each`."""
        return list(values.split(list(self.counts)))

    def gathered(self) -> Ensemble:
        """The same ensemble in this process, without rows that its experts can do without."""
        if self.here:
            return self
        items = tuple(self.placement.map(_without_rows))
        return _one_batch(replace(self, placement=LocalPlacement(items)))

    def extended(self, posterior: Posterior) -> Ensemble:
        """The same ensemble in this process with more experts: a batch of the same kind."""
        items = self.placement.gather().items
        if len(posterior.batch) != 1:
            raise ValueError("an ensemble needs a batched posterior: condition on stack([shard])")
        if type(posterior) is not type(items[0]):
            raise ValueError("the experts of an ensemble must be of one kind")
        new = posterior.parameters.to(dtype=self.parameters.noise.dtype)
        counts, theta = (*self.counts, posterior.count), self.parameters.joined(new)
        return _one_batch(Ensemble(LocalPlacement((*items, posterior)), counts, theta, self.expert))

    def filled(self, shard: Shard) -> Ensemble:
        """The same ensemble in this process, whose last expert has the rows of a shard too."""
        *items, last = self.placement.gather().items
        if last.count > 1:
            places = torch.arange(last.count, device=self.parameters.noise.device)
            items, last = [*items, last.chosen(places[:-1])], last.chosen(places[-1:])
        items = (*items, last.with_rows(shard))
        counts = tuple(item.count for item in items)
        return _one_batch(replace(self, placement=LocalPlacement(items), counts=counts))

    def without(self, which: Sequence[int]) -> Ensemble:
        """The same ensemble in this process without some experts, by their places 0 … M − 1."""
        theta = self.parameters
        kept = torch.tensor([i not in which for i in range(self.size)], device=theta.noise.device)
        parts = [part.nonzero()[:, 0] for part in self.split(kept)]
        pairs = zip(self.placement.gather().items, parts, strict=True)
        items = tuple(item.chosen(part) for item, part in pairs if len(part))
        counts = tuple(len(part) for part in parts if len(part))
        return Ensemble(LocalPlacement(items), counts, theta[kept.nonzero()[:, 0]], self.expert)

    @property
    def here(self) -> tuple[Posterior, ...]:
        """The experts in this process, whose answers may leave: they can be asked directly."""
        placed = self.placement
        if isinstance(placed, LocalPlacement) and placed.may_leave is None:
            return placed.items
        return ()

    @property
    def size(self) -> int:
        """The number M of experts."""
        return sum(self.counts)

    @property
    def entries(self) -> int:
        """Entries of temporary matrices per test point: a handful per expert, and those of experts here."""
        # Workers elsewhere bound their memory themselves, so that points go to them in few messages.
        here = self.placement.items if isinstance(self.placement, LocalPlacement) else ()
        return 4 * self.size + max((item.entries for item in here), default=0)

    @property
    def shares_hyperparameters(self) -> bool:
        """Whether kernel and noise are the same for all experts."""
        return not self.parameters.batch

    @property
    def shares_inducing(self) -> bool:
        """Whether the experts have sums over their rows, for the same θ and inducing inputs."""
        shared = not self.parameters.batch and not self.parameters.inducing_batch
        return self.expert.adds_sums and shared

    def noise(self) -> Tensor:
        """The noise variance σ²; the mean of the experts' where they differ."""
        return self.parameters.noise.mean()

    def sizes(self) -> Tensor:
        """The number n_i of rows of every shard, (M,)."""
        return sample.sizes(self.placement)

    def row_counts(self) -> Tensor:
        """The number of rows of every expert, (M,), known even where they are no longer held."""
        return torch.cat(self.placement.map(_row_counts))

    def row_count(self) -> int:
        """The number n of rows of all shards, known even where they are no longer held."""
        return sum(self.placement.map(_row_count))

    def central(self, size: int, seed: int) -> Shard:
        """Random rows, evenly from all shards: the same for any order of the experts."""
        return sample.central(self.placement, size, seed)


def _condition(shards: Shard, expert: Expert, parameters: Parameters) -> Posterior:
    return expert.condition(parameters, shards)


def _one_batch(ensemble: Ensemble) -> Ensemble:
    """Make one batch of experts that share θ, where their rows are better kept as one set."""
    theta = ensemble.parameters
    differ = theta.batch or theta.inducing_batch
    if not ensemble.expert.joins_rows or differ or len(ensemble.placement) == 1:
        return ensemble
    items = ensemble.placement.gather().items
    shards = [shard for item in items for shard in unstack(item.rows_held())]
    return Ensemble.condition(ensemble.expert, theta, shards)


def _without_rows(posterior: Posterior) -> Posterior:
    return posterior.without_rows()


@travels("predictions", X="points")
def predictions(posterior: Posterior, X: Tensor) -> Prediction:
    """Means and variances of a worker's experts at X."""
    return posterior.predict(X)


def predicted_parts(
    posterior: Posterior, X: Tensor, kernels: Sequence[Kernel]
) -> list[Prediction] | None:
    """Mean and variance of those summands of f which have these kernels; None where they are not known."""
    parts = [part for kernel in kernels if (part := posterior.part(kernel)) is not None]
    return [part.predict(X) for part in parts] if len(parts) == len(kernels) else None


@travels("counts")
def _row_counts(posterior: Posterior) -> Tensor:
    return posterior.row_counts()


@travels("counts")
def _row_count(posterior: Posterior) -> int:
    return posterior.row_count()


class Aggregator(ABC):
    """A way to make one posterior out of many, with its options."""

    name: ClassVar[str]
    serves: ClassVar[tuple[str, ...]] = ("exact", "sparse")
    """The kinds of experts that it can combine."""
    rows_needed: ClassVar[str] = "always"
    """When it needs the training rows: "never", "always", or "unless shared" inducing inputs give sums."""
    joint: ClassVar[str] = ""
    """When it has a covariance between points, in words such as "always" or "for one expert"."""
    needs_communication_shard: ClassVar[bool] = False
    """Whether the first shard must be a random one, which the others are joined with."""
    needs_one_prior: ClassVar[bool] = False
    """Whether the experts must share their hyperparameters."""

    @abstractmethod
    def posterior(self, ensemble: Ensemble) -> Combined:
        """Compute all that does not depend on test points, for experts that it can serve."""

    def with_progress(self, show: bool) -> Aggregator:
        """Return the same aggregator, told whether to show progress if it takes long."""
        del show
        return self

    def combine(self, ensemble: Ensemble) -> Combined:
        """Compute everything that does not depend on test points, once.

        Parameters
        ----------
        ensemble : Ensemble
            The conditioned experts.

        Returns
        -------
        Combined

        Raises
        ------
        AggregationError
            Where the aggregator cannot serve these experts; the message names those that can.
        """
        kind = ensemble.expert.name
        if kind not in self.serves:
            able = names_where(lambda one: kind in one.serves)
            raise refusal(self.name, f"cannot combine {kind} experts", able)
        if self.needs_one_prior and not ensemble.shares_hyperparameters:
            why = "needs one prior, but these experts have different hyperparameters"
            raise refusal(self.name, why, names_where(lambda one: not one().needs_one_prior))
        try:
            with torch.no_grad():
                return self.posterior(ensemble)
        except RowsGoneError as error:
            never = names_where(lambda one: one.rows_needed == "never", last=", ")
            shared = names_where(lambda one: one.rows_needed == "unless shared", last=" and ")
            raise AggregationError(
                f"{error}; {never} and, with shared inducing inputs, {shared} do without"
            ) from error


AGGREGATORS: dict[str, type[Aggregator]] = {}
"""Every aggregator by its name; `register` adds to it."""
POSTERIORS: dict[str, type] = {}
"""Classes of posteriors that users have registered with their aggregators."""


def register(kind: type[Aggregator], posterior: type[Combined] | None = None) -> type[Aggregator]:
    """Make a frozen dataclass derived from `Aggregator`, with its posteriors' own class, known by name."""
    AGGREGATORS[kind.name] = kind
    if posterior is not None:
        POSTERIORS[kind.name] = posterior
    return kind


def names_where(condition: Callable[[type[Aggregator]], bool], last: str = " or ") -> str:
    """Name the aggregators that meet a condition, for error messages."""
    found = [name for name, kind in AGGREGATORS.items() if condition(kind)]
    return last.join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else "".join(found)


def default_aggregator(ensemble: Ensemble) -> Aggregator:
    """The aggregator that comes closest to the full GP for these experts, as their kind says."""
    shared = ensemble.shares_hyperparameters, ensemble.shares_inducing
    return AGGREGATORS[ensemble.expert.default_aggregation(ensemble.size, *shared)]()


@dataclass(frozen=True, eq=False, kw_only=True)
class Combined(ABC):
    """One posterior of f made of many experts'.

    It holds its own numbers only, so that it can be saved as it is; the experts are handed to it
    whenever it predicts. `weights` β (M,) are None where they change from point to point; `central`
    (m_c, d) are the central inputs, where the aggregator has any.
    """

    weights: Tensor | None = None
    central: Tensor | None = None

    @property
    def space(self) -> Space:
        """Whether `predict_chunk` predicts the latent f or an observation y."""
        return "latent"

    @abstractmethod
    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Mean and variance at all rows of X at once, of f or of y as `space` says."""

    def mean_chunk(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The mean at all rows of X at once; overridden where it can do without variance work."""
        return self.predict_chunk(ensemble, X).mean

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor | None:
        """The covariance of f between all rows of X, up to its diagonal; None where there is none."""
        del ensemble, X

    def draws(self, ensemble: Ensemble, X: Tensor, size: int, seed: int) -> Tensor | None:
        """Joint draws of f at the rows of X (N, d), (N, size), in bounded memory beside the result.

        None where they are not known without the covariance between points. The same seed gives the
        same draws.
        """
        del ensemble, X, size, seed

    def parts(
        self, ensemble: Ensemble, X: Tensor, kernels: Sequence[Kernel]
    ) -> list[Prediction] | None:
        """Mean and variance at the rows of X of those summands of f which have these kernels.

        None where they are not known, since the combination is not one posterior given all rows.
        """
        del ensemble, X, kernels

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of the temporary matrices of this process per test point: by default the experts'."""
        return ensemble.entries

    @property
    def effort(self) -> str:
        """The way in which it was computed and how far it got, in words; empty where there is no news."""
        return ""

    def gathered(self) -> Combined:
        """The same posterior with nothing left on workers: itself where nothing is there."""
        return self

    def mean(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The mean at the rows of X (N, d), in bounded memory."""
        return torch.cat(self._in_chunks(self.mean_chunk, ensemble, X))

    def prepare(self, ensemble: Ensemble) -> None:
        """Let experts of this process compute what they lack for variances, before threads ask them."""
        del ensemble

    def in_own_space(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Mean and variance at the rows of X (N, d), of f or of y as `space` says, in bounded memory."""
        self.prepare(ensemble)
        return concatenated(self._in_chunks(self.predict_chunk, ensemble, X))

    def predict(self, ensemble: Ensemble, X: Tensor, observed: bool = False) -> Prediction:
        """Mean and variance of the latent f, or of an observation y = f + noise, at the rows of X."""
        out, likelihood = self.in_own_space(ensemble, X), Gaussian(ensemble.noise())
        variance = likelihood.observed if observed else likelihood.latent
        return Prediction(out.mean, variance(out.variance, self.space))

    def covariance(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The covariance of f between all rows of X, or an AggregationError where there is none."""
        with torch.no_grad():
            between = self.between(ensemble, X)
        if between is None:
            able = {
                when: f"{names_where(lambda kind, when=when: kind.joint == when, ', ')} {when}"
                for when in (kind.joint for kind in AGGREGATORS.values() if kind.joint)
            }
            raise AggregationError(
                "this aggregator predicts each point by itself and has no covariance between points; "
                f"others have one: {'; '.join(able.values())}"
            )
        return with_diagonal(between, self.predict(ensemble, X).variance)

    @property
    def weight_sum(self) -> float | None:
        """Σβ: near 1 where the experts agree on the scale of f."""
        return None if self.weights is None else float(self.weights.sum())

    @property
    def weight_norm(self) -> float | None:
        """Σ|β|: the factor by which errors of the experts can be amplified."""
        return None if self.weights is None else float(self.weights.abs().sum())

    def _in_chunks(
        self, function: Callable[[Ensemble, Tensor], Result], ensemble: Ensemble, X: Tensor
    ) -> list[Result]:
        """Call a function on chunks of the rows of X; on all of them directly where they are few."""
        entries = self.entries(ensemble)
        if chunk_rows(entries, X.device) < len(X):
            return in_chunks(partial(function, ensemble), X, entries)
        with torch.no_grad():
            return [function(ensemble, X)]


def with_diagonal(covariance: Tensor, variance: Tensor) -> Tensor:
    """The same correlations with these variances: still positive semi-definite."""
    diagonal = covariance.diagonal()
    root = (variance / latent_variance(diagonal)).sqrt()
    scaled = root[:, None] * covariance * root[None, :]
    scaled.diagonal().copy_(variance)
    return 0.5 * (scaled + scaled.mT)


def joined(parts: list[Result]) -> Result:
    """One batch of what the workers' experts say: tensors with one row per expert, concatenated."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return type(parts[0])(*map(torch.cat, columns))


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse an option that does not exist, naming those that do."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def check_not_negative(name: str, value: float) -> None:
    """Refuse a number that is negative, infinite or NaN."""
    if not is_number(value) or not 0 <= value < sys.float_info.max:
        raise ValueError(f"{name} must be finite and not negative, got {value!r}")


def refusal(aggregator: str, why: str, alternatives: str) -> AggregationError:
    """The error that an aggregator cannot serve these experts, which names aggregators that can."""
    return AggregationError(f"{aggregator} {why}; use {alternatives} instead")
