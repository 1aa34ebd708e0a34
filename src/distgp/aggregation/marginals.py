"""Aggregators from marginals need the experts' means and variances at the test points, no more."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from distgp.aggregation.base import Aggregator, Combined, check_choice, joined
from distgp.aggregation.ensemble import Ensemble
from distgp.engines import LocalPlacement, Placement, travels
from distgp.experts import Posterior, Prediction
from distgp.experts.base import latent_variance
from distgp.likelihoods.gaussian import Space


@dataclass(frozen=True, eq=False)
class Marginals:
    """Predictions of M experts at N points, (M, N), and noise variances, (M, 1).

    The base that they are compared with is each expert's prior, or for grBCM the communication expert.
    """

    travels_as: ClassVar[str] = "predictions"
    mean: Tensor
    variance: Tensor
    base_mean: Tensor
    base_variance: Tensor
    noise: Tensor

    def observed(self) -> Marginals:
        """The same with the noise inside every variance."""
        variance, base = self.variance + self.noise, self.base_variance + self.noise
        return replace(self, variance=variance, base_variance=base)

    def gain(self) -> Tensor:
        """½(log s_**² − log s_i²): the nats that expert i has learnt about f(x)."""
        return 0.5 * (self.base_variance.log() - self.variance.log())

    def softmax(self, temperature: float) -> Tensor:
        """β_i ∝ exp(−T s_i² / s_**²), adding up to 1: the most certain experts weigh most."""
        return torch.softmax(-temperature * self.variance / self.base_variance, 0)


class MarginalAggregator(Aggregator):
    """An aggregator that needs the experts' means and variances at the test points, no more."""

    serves: ClassVar[tuple[str, ...]] = ("exact", "sparse", "nearest")
    rows_needed: ClassVar[str] = "never"
    joint: ClassVar[str] = "for one expert"
    space: Space

    def __post_init__(self) -> None:
        check_choice("space", self.space, ("latent", "observed"))

    @abstractmethod
    def merge(self, marginals: Marginals) -> Prediction:
        """The aggregator's formula, in the space that the marginals are in."""

    def merged(self, parts: list[Marginals]) -> Prediction:
        """The formula for the marginals of all workers, in the aggregator's space."""
        marginals = joined(parts)
        return self.merge(marginals.observed() if self.space == "observed" else marginals)

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Keep the formula: nothing is to be computed before there are test points."""
        del ensemble
        return MarginalCombined(aggregator=self)


@dataclass(frozen=True, eq=False, kw_only=True)
class MarginalCombined(Combined):
    """The posterior of an aggregator from marginals."""

    aggregator: MarginalAggregator

    @property
    def space(self) -> Space:
        """The aggregator's."""
        return self.aggregator.space

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Ask every expert, then apply the formula."""
        return self.aggregator.merged(ensemble.placement.map(expert_marginals, X))

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor | None:
        """The covariance of a single expert."""
        return ensemble.placement.on_first(_covariance, X) if ensemble.size == 1 else None


@dataclass(frozen=True, eq=False)
class AugmentedExperts:
    """A worker's augmented experts, and the communication expert as each of them sees it."""

    posterior: Posterior
    base: Posterior


@dataclass(frozen=True, eq=False, kw_only=True)
class AugmentedCombined(Combined):
    """The posterior of grBCM, which has experts of its own."""

    aggregator: MarginalAggregator
    augmented: Placement[AugmentedExperts]

    @property
    def space(self) -> Space:
        """The aggregator's."""
        return self.aggregator.space

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of temporary matrices: augmented experts have the rows of two."""
        return 2 * ensemble.entries

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Ask every augmented expert, then apply the formula."""
        del ensemble
        return self.aggregator.merged(self.augmented.map(_augmented_marginals, X))

    def gathered(self) -> AugmentedCombined:
        """The same posterior with its augmented experts in this process."""
        if isinstance(self.augmented, LocalPlacement) and self.augmented.may_leave is None:
            return self
        return replace(self, augmented=LocalPlacement(tuple(self.augmented.map(_without_rows))))


@travels("predictions", X="points")
def expert_marginals(posterior: Posterior, X: Tensor) -> Marginals:
    """Means, variances and priors of a worker's experts at X."""
    out = posterior.predict(X)
    # Floored as the experts' variances are: where the prior is 0 nothing can be learnt.
    prior = posterior.prior(X)
    prior = latent_variance(prior, torch.zeros_like(prior)).expand_as(out.mean)
    noise = posterior.parameters.noise.to(X.dtype).expand(posterior.count)[:, None]
    return Marginals(out.mean, out.variance, torch.zeros_like(prior), prior, noise)


def augmented_experts(ensemble: Ensemble) -> Placement[AugmentedExperts]:
    """The augmented experts of grBCM, each conditioned where its shard lives.

    Only the communication shard travels, or its sums where the experts share θ and Z. A single expert
    is its own communication expert.
    """
    if ensemble.size == 1:
        return ensemble.placement.derive(_alone)
    message = ensemble.placement.on_first(_communication, ensemble.shares_inducing)
    skip = [1] + [0] * (len(ensemble.counts) - 1)  # the communication expert itself
    return ensemble.placement.derive(_augment, message, each=skip)


@travels("predictions", X="points")
def _covariance(posterior: Posterior, X: Tensor) -> Tensor:
    return posterior.covariance(X)[0]


@travels("predictions", X="points")
def _augmented_marginals(experts: AugmentedExperts, X: Tensor) -> Marginals:
    own, base = expert_marginals(experts.posterior, X), experts.base.predict(X)
    mean, variance = base.mean.expand_as(own.mean), base.variance.expand_as(own.mean)
    return replace(own, base_mean=mean, base_variance=variance)


def _alone(posterior: Posterior) -> AugmentedExperts:
    return AugmentedExperts(posterior, posterior)


def _communication(posterior: Posterior, shared: bool) -> object:
    return posterior.communication(shared)


def _augment(posterior: Posterior, message: object, skip: int) -> AugmentedExperts | None:
    """Augment a worker's experts, all but the first `skip`; None where there are no others."""
    if posterior.count == skip:
        return None
    return AugmentedExperts(*posterior.augmented(message, skip))


def _without_rows(experts: AugmentedExperts) -> AugmentedExperts:
    return AugmentedExperts(experts.posterior.without_rows(), experts.base.without_rows())
