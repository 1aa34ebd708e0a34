"""What an aggregator is, and what it makes: one posterior out of many."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from distgp.aggregation.ensemble import Ensemble, Group
from distgp.experts.base import Prediction, chunk_rows, latent_variance

Space: TypeAlias = Literal["latent", "observed"]


class WeightsWarning(UserWarning):
    """The weights of an aggregator are so large that its prediction is not to be trusted."""


class AggregationError(ValueError):
    """An aggregator cannot serve these experts."""


class Combined(ABC):
    """One posterior, made of many experts'."""

    space: ClassVar[Space] | Space = "latent"
    noise: Tensor
    weights: Tensor | None = None
    """β, one weight an expert; None where the weights change from point to point."""
    central: Tensor | None = None
    """The central inputs, where the aggregator has any."""

    @property
    @abstractmethod
    def columns(self) -> int:
        """Entries of temporary matrices for each test point."""

    @abstractmethod
    def mean_chunk(self, X: Tensor) -> Tensor:
        """The mean at all rows of X at once, without variance work where it can be avoided."""

    @abstractmethod
    def predict_chunk(self, X: Tensor) -> Prediction:
        """Mean and variance at all rows of X at once, of f or of y as `space` says."""

    @abstractmethod
    def between(self, X: Tensor) -> Tensor | None:
        """The covariance of f between all rows of X, up to its diagonal; None where there is none."""

    def covariance(self, X: Tensor) -> Tensor:
        """The covariance of f between all rows of X, (N, N), where the aggregator has one.

        Its diagonal is the variance of `predict`. Most aggregators are made of marginals and have none.
        """
        with torch.no_grad():
            between = self.between(X)
            if between is None:
                raise AggregationError(
                    "this aggregator predicts each point by itself and has no covariance between "
                    "points; pooled, two-level with variance='central', opt with shared inducing "
                    "inputs, and one expert under poe, gpoe, bcm or rbcm have one"
                )
            return with_diagonal(between, self.predict(X).variance)

    def mean(self, X: Tensor) -> Tensor:
        """The mean at the rows of X (N, d), in bounded memory."""
        with torch.no_grad():
            return torch.cat([self.mean_chunk(chunk) for chunk in self._chunks(X)])

    def predict(self, X: Tensor, observed: bool = False) -> Prediction:
        """Mean and variance at the rows of X (N, d): of the latent f, or of y = f + noise.

        An aggregator in observed space predicts y; its latent variance is that less the noise, which
        is nothing (the floor) wherever noise counted M times has brought it below the noise.
        """
        with torch.no_grad():
            parts = [self.predict_chunk(chunk) for chunk in self._chunks(X)]
        mean = torch.cat([part.mean for part in parts])
        variance = torch.cat([part.variance for part in parts])
        noise = self.noise.to(mean.dtype)
        if observed and self.space == "latent":
            variance = variance + noise
        elif not observed and self.space == "observed":
            variance = torch.maximum(variance - noise, torch.finfo(mean.dtype).eps * variance)
        return Prediction(mean, variance)

    @property
    def weight_sum(self) -> float | None:
        """Σβ: near 1 where the experts agree on the scale of f."""
        return None if self.weights is None else float(self.weights.sum())

    @property
    def weight_norm(self) -> float | None:
        """Σ|β|: how much errors of the experts can be amplified."""
        return None if self.weights is None else float(self.weights.abs().sum())

    def _chunks(self, X: Tensor) -> tuple[Tensor, ...]:
        return X.split(chunk_rows(self.columns, X.device), -2)


class Pointwise(Combined):
    """A posterior whose weights change from point to point, with the experts' precisions."""

    ensemble: Ensemble

    @property
    def columns(self) -> int:
        """A handful of values for each expert."""
        return 6 * self.ensemble.size

    def between(self, X: Tensor) -> None:
        """None: every point has its own weights."""
        del X

    def mean_chunk(self, X: Tensor) -> Tensor:
        """The mean is weighted by precisions, so there is nothing to spare."""
        return self.predict_chunk(X).mean


class Aggregator(ABC):
    """A way to make one posterior out of many, with its options."""

    name: ClassVar[str]

    @abstractmethod
    def combine(self, ensemble: Ensemble) -> Combined:
        """Everything that does not depend on test points, once."""


@dataclass(frozen=True, eq=False)
class Marginals:
    """What each of M experts says at N points: (M, N) each, and what it is corrected by.

    `base_mean` and `base_variance` are the prior's, or the communication expert's for grBCM.
    """

    travels_as: ClassVar[str] = "predictions"
    mean: Tensor
    variance: Tensor
    base_mean: Tensor
    base_variance: Tensor
    noise: Tensor  # (M, 1)

    def observed(self) -> Marginals:
        """The same with the noise inside every variance."""
        return Marginals(
            self.mean,
            self.variance + self.noise,
            self.base_mean,
            self.base_variance + self.noise,
            self.noise,
        )


PerExpert = TypeVar("PerExpert", Marginals, Prediction)
"""Tensors with one row an expert."""


class MarginalAggregator(Aggregator):
    """An aggregator that needs the experts' means and variances at the test points, no more."""

    space: Space

    @abstractmethod
    def merge(self, marginals: Marginals) -> Prediction:
        """The formula, in the space that the marginals are in."""

    def combine(self, ensemble: Ensemble) -> Combined:
        """Nothing depends on all experts at once: keep them."""
        return MarginalCombined(self, ensemble, ensemble.noise(), self.space)


@dataclass(frozen=True, eq=False)
class MarginalCombined(Combined):
    """The posterior of an aggregator from marginals."""

    aggregator: MarginalAggregator
    ensemble: Ensemble
    noise: Tensor
    space: Space

    @property
    def columns(self) -> int:
        """A handful of values for each expert."""
        return 4 * self.ensemble.size

    def mean_chunk(self, X: Tensor) -> Tensor:
        """These means are weighted by precisions, so there is nothing to spare."""
        return self.predict_chunk(X).mean

    def predict_chunk(self, X: Tensor) -> Prediction:
        """Ask every expert, then apply the formula."""
        parts = self.ensemble.map(group_marginals, X)
        return merge_parts(self.aggregator, parts)

    def between(self, X: Tensor) -> Tensor | None:
        """One expert's own."""
        return self.ensemble.first(_covariance, X) if self.ensemble.size == 1 else None


def _covariance(group: Group, X: Tensor) -> Tensor:
    return group.posterior.covariance(X)[0]


def with_diagonal(covariance: Tensor, variance: Tensor) -> Tensor:
    """The same correlations with these variances: still positive semi-definite."""
    diagonal = covariance.diagonal()
    root = (variance / latent_variance(diagonal, torch.zeros_like(diagonal))).sqrt()
    scaled = root[:, None] * covariance * root[None, :]
    scaled.diagonal().copy_(variance)
    return 0.5 * (scaled + scaled.mT)


def merge_parts(aggregator: MarginalAggregator, parts: list[Marginals]) -> Prediction:
    """Join the groups' marginals and apply the aggregator's formula in its space."""
    marginals = joined(parts)
    return aggregator.merge(marginals.observed() if aggregator.space == "observed" else marginals)


def joined(parts: list[PerExpert]) -> PerExpert:
    """What all groups' experts say, in one batch."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def group_marginals(group: Group, X: Tensor) -> Marginals:
    """Means, variances and priors of a group's experts at X."""
    out, theta = group.posterior.predict(X), group.posterior.parameters
    # Floored as the experts' variances are: where the prior is 0 nothing can be learnt.
    prior = group.posterior.prior(X)
    prior = latent_variance(prior, torch.zeros_like(prior)).expand_as(out.mean)
    noise = theta.noise.to(X.dtype).expand(group.size)[:, None]
    return Marginals(out.mean, out.variance, torch.zeros_like(prior), prior, noise)


def from_precision(precision: Tensor, weighted: Tensor, base: Tensor) -> Prediction:
    """N(weighted / precision, 1 / precision), with the precision at least ε / base variance."""
    precision = torch.maximum(precision, torch.finfo(precision.dtype).eps / base)
    return Prediction(weighted / precision, 1.0 / precision)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse an option that does not exist, naming those that do."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def check_count(name: str, value: int | None) -> None:
    """Refuse a number of rows below 1."""
    if value is not None and value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def require(condition: bool, aggregator: str, why: str, alternatives: str) -> None:
    """Refuse experts that the aggregator cannot serve, naming those that can."""
    if not condition:
        raise AggregationError(f"{aggregator} {why}; use {alternatives} instead")


def require_one_prior(ensemble: Ensemble, aggregator: str) -> None:
    """Refuse experts with different hyperparameters."""
    require(
        ensemble.shares_hyperparameters,
        aggregator,
        "needs one prior, but these experts have different hyperparameters",
        "poe, gpoe, bcm, rbcm, grbcm, opt or opt-local",
    )


def warn_of_large_weights(name: str, weights: Tensor, limit: float) -> None:
    """Tell when Σ|β| says that the weights are not to be trusted."""
    norm = float(weights.abs().sum())
    if not norm <= limit:
        warnings.warn(
            f"the weights of {name} add up to {float(weights.sum()):.3g} but their absolute values "
            f"to {norm:.3g}: errors of single experts are amplified that much and the prediction is "
            "not to be trusted; use a ridge, fewer experts, or two-level",
            WeightsWarning,
            stacklevel=3,
        )
