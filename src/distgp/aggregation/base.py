"""The method with its options, and the posterior it makes: what every aggregator is made of."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor

from distgp._util.checks import is_integer, is_number, warn_user
from distgp.aggregation.ensemble import Ensemble
from distgp.experts import Prediction
from distgp.experts.base import RowsGoneError, concatenated, in_chunks, latent_variance
from distgp.likelihoods.gaussian import Gaussian, Space

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PerExpert = TypeVar("PerExpert", bound="DataclassInstance")
MOST_ROWS = 2**40
"""More rows than any option can mean."""


class WeightsWarning(UserWarning):
    """The weights of an aggregator are so large that its prediction is not to be trusted."""


class AggregationError(ValueError):
    """An aggregator cannot serve these experts."""


class Aggregator(ABC):
    """A way to make one posterior out of many, with its options."""

    name: ClassVar[str]
    serves: ClassVar[tuple[str, ...]] = ("exact", "sparse")
    """The kinds of experts that it can combine."""
    rows_needed: ClassVar[str] = "always"
    """Whether it needs the training rows: "never", "always", or "unless shared", where sums will do if
    the experts share their inducing inputs."""
    joint: ClassVar[str] = ""
    """When it has a covariance between points, in words such as "always" or "for one expert"."""
    needs_communication_shard: ClassVar[bool] = False
    """Whether the first shard must be a random one, which the others are joined with."""
    needs_one_prior: ClassVar[bool] = False
    """Whether the experts must share their hyperparameters."""

    @abstractmethod
    def posterior(self, ensemble: Ensemble) -> Combined:
        """Compute all that does not depend on test points, for experts that it can serve."""

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
            able = names_where(lambda method: kind in method.serves)
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
    """Make an aggregator known by its name, to estimators and to model files.

    Parameters
    ----------
    kind : type
        A frozen dataclass derived from `Aggregator`, whose options all have defaults.
    posterior : type, optional
        A frozen dataclass derived from `Combined`, where its posteriors have a class of their own.

    Returns
    -------
    type
        The class itself, so that this can be used as a decorator.
    """
    AGGREGATORS[kind.name] = kind
    if posterior is not None:
        POSTERIORS[kind.name] = posterior
    return kind


def names_where(condition: Callable[[type[Aggregator]], bool], last: str = " or ") -> str:
    """Name the aggregators that meet a condition, for error messages."""
    found = [name for name, kind in AGGREGATORS.items() if condition(kind)]
    return last.join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else "".join(found)


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

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of the temporary matrices of this process per test point: by default the experts'."""
        return ensemble.entries

    def gathered(self) -> Combined:
        """The same posterior with nothing left on workers: itself where nothing is there."""
        return self

    def mean(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The mean at the rows of X (N, d), in bounded memory."""
        chunk = partial(self.mean_chunk, ensemble)
        return torch.cat(in_chunks(chunk, X, self.entries(ensemble)))

    def in_own_space(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Mean and variance at the rows of X (N, d), of f or of y as `space` says, in bounded memory."""
        chunk = partial(self.predict_chunk, ensemble)
        return concatenated(in_chunks(chunk, X, self.entries(ensemble)))

    def predict(self, ensemble: Ensemble, X: Tensor, observed: bool = False) -> Prediction:
        """Mean and variance of the latent f, or of an observation y = f + noise, at the rows of X."""
        out, likelihood = self.in_own_space(ensemble, X), Gaussian(ensemble.noise())
        variance = likelihood.observed if observed else likelihood.latent
        return Prediction(out.mean, variance(out.variance, self.space))

    def covariance(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The covariance of f between all rows of X; its diagonal is the variance of `predict`.

        Most aggregators predict each point by itself, and raise an AggregationError.
        """
        with torch.no_grad():
            between = self.between(ensemble, X)
        if between is None:
            when = dict.fromkeys(kind.joint for kind in AGGREGATORS.values() if kind.joint)
            able = [
                f"{names_where(lambda kind, one=one: kind.joint == one, ', ')} {one}"
                for one in when
            ]
            raise AggregationError(
                "this aggregator predicts each point by itself and has no covariance between points; "
                f"others have one: {'; '.join(able)}"
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


def default_aggregator(ensemble: Ensemble) -> Aggregator:
    """The aggregator that comes closest to the full GP for these experts, as their kind says."""
    shared = ensemble.shares_hyperparameters, ensemble.shares_inducing
    return AGGREGATORS[ensemble.expert.default_aggregation(ensemble.size, *shared)]()


def with_diagonal(covariance: Tensor, variance: Tensor) -> Tensor:
    """The same correlations with these variances: still positive semi-definite."""
    diagonal = covariance.diagonal()
    root = (variance / latent_variance(diagonal, torch.zeros_like(diagonal))).sqrt()
    scaled = root[:, None] * covariance * root[None, :]
    scaled.diagonal().copy_(variance)
    return 0.5 * (scaled + scaled.mT)


def joined(parts: list[PerExpert]) -> PerExpert:
    """One batch of what the workers' experts say: tensors with one row per expert, concatenated."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse an option that does not exist, naming those that do."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def check_count(name: str, value: int | None) -> None:
    """Refuse what is no number of rows, 1 or more."""
    if value is not None and not (is_integer(value) and 1 <= value <= MOST_ROWS):
        raise ValueError(f"{name} must be at least 1, got {value!r}")


def check_not_negative(name: str, value: float) -> None:
    """Refuse a number that is negative, infinite or NaN."""
    if not is_number(value) or not 0 <= value < sys.float_info.max:
        raise ValueError(f"{name} must be finite and not negative, got {value!r}")


def refusal(aggregator: str, why: str, alternatives: str) -> AggregationError:
    """The error that an aggregator cannot serve these experts, which names aggregators that can."""
    return AggregationError(f"{aggregator} {why}; use {alternatives} instead")


def warn_of_large_weights(name: str, weights: Tensor, limit: float) -> None:
    """Warn when Σ|β| says that the weights are not to be trusted."""
    norm = float(weights.abs().sum())
    if not norm <= limit:
        warn_user(
            f"the weights of {name} add up to {float(weights.sum()):.3g} but their absolute values "
            f"to {norm:.3g}: errors of single experts are amplified that much and the prediction is "
            "not to be trusted; use a ridge, fewer experts, or two-level",
            WeightsWarning,
        )
