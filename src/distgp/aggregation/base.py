"""The method that combines experts, with its options, and the posterior it makes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from distgp._util.checks import is_number
from distgp.aggregation.ensemble import Ensemble
from distgp.engines import travels
from distgp.experts import Posterior, Prediction
from distgp.experts.base import RowsGoneError, chunk_rows, concatenated, in_chunks, latent_variance
from distgp.kernels import Kernel
from distgp.likelihoods.gaussian import Gaussian, Space

Result = TypeVar("Result")
WIDE = torch.float64
"""The dtype of sums over rows and of systems for weights, whatever the data's dtype is."""


class AggregationError(ValueError):
    """An aggregator cannot serve these experts."""


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
