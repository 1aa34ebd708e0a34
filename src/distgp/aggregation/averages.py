"""Averages and choices of experts: the one with the smallest variance, and the Wasserstein barycentre.

Their weights add up to 1 at every point. So they count no expert twice, and far from the data, where
every expert returns to a common prior, they return it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from distgp.aggregation.base import check_choice, check_temperature
from distgp.aggregation.marginals import MarginalAggregator, Marginals
from distgp.experts import Prediction
from distgp.likelihoods.gaussian import Space


@dataclass(frozen=True)
class MinVariance(MarginalAggregator):
    """The mean and the variance of the expert with the smallest variance at each point.

    Rullière, Durrande, Bachoc and Chevalier (Nested Kriging predictions for datasets with a large
    number of observations, Statistics and Computing 2018) compare with it, as "smallest prediction
    variance". The choice depends on the inputs alone and not on y, so that the prediction is as certain
    as it says wherever the experts are. Exact experts that share their hyperparameters have at least
    the full GP's variance, and so has the chosen one: it uses the rows of one shard, no more.

    The mean jumps where another expert takes over. Experts whose variances differ by rounding alone, as
    of shards with the same inputs, are tied: the mean is the average of theirs, so that neither the
    order of the experts nor rounding decides. The variance stays the smallest one, since nothing is
    known of how their errors depend on each other.

    Where hyperparameters differ, the variances themselves are compared: an expert with a small prior
    variance is chosen even where it knows nothing.

    Parameters
    ----------
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are compared, or observed ones. The choice is the same where all
        experts have the same noise.
    """

    name: ClassVar[str] = "min-variance"
    space: Space = "latent"

    def merge(self, marginals: Marginals) -> Prediction:
        """μ_i and s_i² of the smallest s_i², the mean averaged over ties."""
        smallest = marginals.variance.amin(0)
        # Half of the digits: rounding spoils the last ones of a variance, all the more where it is
        # a small part of the prior's.
        tied = marginals.variance <= smallest * (1.0 + torch.finfo(smallest.dtype).eps ** 0.5)
        weights = tied.to(smallest.dtype)
        return Prediction((weights * marginals.mean).sum(0) / weights.sum(0), smallest)


@dataclass(frozen=True)
class Barycentre(MarginalAggregator):
    """The Wasserstein barycentre of the experts: means and standard deviations are averaged.

    Cohen, Mbuvha, Marwala and Deisenroth (Healing Products of Gaussian Process Experts, ICML 2020).
    The barycentre minimises Σβ_i W₂²(·, N(μ_i, s_i²)) with Σβ_i = 1. Between Gaussians in one dimension
    W₂² = (μ − μ_i)² + (s − s_i)², a sum of squares, so that its mean is Σβ_i μ_i and its standard
    deviation Σβ_i s_i. (The authors' published program averages variances instead, which is larger by
    the variance of s_i under the weights.)

    It never has a smaller standard deviation than the most certain expert: it does not gain from
    experts that agree.

    Parameters
    ----------
    weights : {"softmax", "uniform"}, default="softmax"
        "softmax", β_i ∝ exp(−T s_i² / s_**²), prefers the most certain experts, as `SoftmaxPoE` does;
        "uniform" is β = 1/M.
    temperature : float, default=100
        T of "softmax". 0 gives equal weights, and a large one takes the most certain expert alone.
    space : {"latent", "observed"}, default="latent"
        Whether latent predictions are averaged, as the authors do, or observed ones.
    """

    name: ClassVar[str] = "barycentre"
    weights: Literal["softmax", "uniform"] = "softmax"
    temperature: float = 100.0
    space: Space = "latent"

    def __post_init__(self) -> None:
        check_choice("weights", self.weights, ("softmax", "uniform"))
        check_temperature(self.temperature)
        check_choice("space", self.space, ("latent", "observed"))

    def merge(self, marginals: Marginals) -> Prediction:
        """Mean Σβ_i μ_i and standard deviation Σβ_i s_i."""
        beta = marginals.softmax(self.temperature if self.weights == "softmax" else 0.0)
        deviation = (beta * marginals.variance.sqrt()).sum(0)
        return Prediction((beta * marginals.mean).sum(0), deviation.square())
