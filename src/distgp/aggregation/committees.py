"""Products of experts, Bayesian committee machines, and averages of experts.

Equations (4) and (5) of the paper: the precision is Σβ_i s_i⁻² for the products and
Σβ_i s_i⁻² + (1 − Σβ_i) s_**⁻² for the committee machines; the mean is weighted by precisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.aggregation.base import Combined, check_choice, check_not_negative
from distgp.aggregation.ensemble import Ensemble
from distgp.aggregation.marginals import (
    AugmentedCombined,
    MarginalAggregator,
    Marginals,
    augmented_experts,
)
from distgp.experts import Prediction
from distgp.likelihoods.gaussian import Space


def product(marginals: Marginals, beta: Tensor) -> Prediction:
    """Precision Σβ_i s_i⁻², and the mean weighted by it."""
    parts = beta / marginals.variance
    weighted = (parts * marginals.mean).sum(0)
    return _from_precision(parts.sum(0), weighted, marginals.base_variance.mean(0))


def committee(marginals: Marginals, beta: Tensor) -> Prediction:
    """Precision Σβ_i(s_i⁻² − s_b,i⁻²) plus the mean base precision; the mean in the same way.

    With one base for all experts it is the printed Σβ_i s_i⁻² + (1 − Σβ_i) s_b⁻². It is positive by
    construction where β_i has the sign of its bracket, as 1 and ½ log(s_b² / s_i²) have.
    """
    own, base = 1.0 / marginals.variance, 1.0 / marginals.base_variance
    precision = (beta * (own - base)).sum(0) + base.mean(0)
    shift = base * marginals.base_mean
    weighted = (beta * (own * marginals.mean - shift)).sum(0) + shift.mean(0)
    return _from_precision(precision, weighted, marginals.base_variance.mean(0))


def _from_precision(precision: Tensor, weighted: Tensor, base: Tensor) -> Prediction:
    """N(weighted / precision, 1 / precision), with the precision at least ε / base variance."""
    precision = torch.maximum(precision, torch.finfo(precision.dtype).eps / base)
    return Prediction(weighted / precision, 1.0 / precision)


@dataclass(frozen=True)
class PoE(MarginalAggregator):
    """Product of experts, β_i = 1.

    It is overconfident: M experts that know nothing give the prior variance divided by M.

    Parameters
    ----------
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are combined, or observed ones, as in the paper's equation (4).
    """

    name: ClassVar[str] = "poe"
    space: Space = "latent"

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σ s_i⁻²."""
        return product(marginals, torch.ones_like(marginals.mean))


@dataclass(frozen=True)
class GPoE(MarginalAggregator):
    """Generalised product of experts.

    Parameters
    ----------
    weights : {"uniform", "normalised", "entropy"}, default="uniform"
        "uniform", β = 1/M, and "normalised", entropy gains divided by their sum, return to the prior
        far from the data. "entropy", the gains as the paper prints them, does not: its variance
        diverges there, up to the floor of the precision.
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are combined, or observed ones, as in the paper's equation (4).
    """

    name: ClassVar[str] = "gpoe"
    weights: Literal["uniform", "normalised", "entropy"] = "uniform"
    space: Space = "latent"

    def __post_init__(self) -> None:
        check_choice("weights", self.weights, ("uniform", "normalised", "entropy"))
        check_choice("space", self.space, ("latent", "observed"))

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σβ_i s_i⁻²."""
        if self.weights == "uniform":
            return product(marginals, torch.full_like(marginals.mean, 1.0 / len(marginals.mean)))
        gain = marginals.gain().clamp_min(0.0)
        if self.weights == "normalised":
            # Far from the data all gains vanish and 0/0 must be 1/M: the ε decides there alone.
            gain = gain + torch.finfo(gain.dtype).eps
            gain = gain / gain.sum(0)
        return product(marginals, gain)


@dataclass(frozen=True)
class SoftmaxPoE(MarginalAggregator):
    """Generalised product of experts with softmax weights, β_i ∝ exp(−T s_i² / s_**²), Σβ_i = 1.

    Cohen, Mbuvha, Marwala and Deisenroth (Healing Products of Gaussian Process Experts, ICML 2020).
    Their exponent is −T s_i² for targets scaled to unit variance; here variances are relative to the
    prior's, so that the units of y do not matter. Uncertain experts lose their say sooner than under
    `GPoE`; far from the data the weights are 1/M and the prior returns.

    Parameters
    ----------
    temperature : float, default=100
        T, as in the authors' program. 0 gives the uniform `GPoE`, and a large one `MinVariance`.
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are combined, as the authors do, or observed ones.
    """

    name: ClassVar[str] = "softmax-poe"
    temperature: float = 100.0
    space: Space = "latent"

    def __post_init__(self) -> None:
        check_not_negative("temperature", self.temperature)
        check_choice("space", self.space, ("latent", "observed"))

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σβ_i s_i⁻²."""
        return product(marginals, marginals.softmax(self.temperature))


@dataclass(frozen=True)
class BCM(MarginalAggregator):
    """Bayesian committee machine, β_i = 1.

    It is also the aggregation by equivalent observations of the library guepard (N. Durrande and others).
    Expert i's marginal at x is the prior after one observation of f(x), with noise variance
    r_i = 1 / (s_i⁻² − s_**⁻²) and value z_i = r_i μ_i s_i⁻²; the prior after all M of these, with
    independent noise, has precision s_**⁻² + Σ(s_i⁻² − s_**⁻²) and precision times mean Σ μ_i s_i⁻².

    Parameters
    ----------
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are combined, or observed ones, as in the paper's equation (4).
    """

    name: ClassVar[str] = "bcm"
    space: Space = "latent"

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σ s_i⁻² + (1 − M) s_**⁻²."""
        return committee(marginals, torch.ones_like(marginals.mean))


@dataclass(frozen=True)
class RBCM(MarginalAggregator):
    """Robust Bayesian committee machine, β_i = ½(log s_**² − log s_i²).

    Parameters
    ----------
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are combined, or observed ones, as in the paper's equation (4).
    """

    name: ClassVar[str] = "rbcm"
    space: Space = "latent"

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σβ_i s_i⁻² + (1 − Σβ_i) s_**⁻²."""
        return committee(marginals, marginals.gain())


@dataclass(frozen=True)
class GRBCM(MarginalAggregator):
    """Generalised robust Bayesian committee machine (Liu et al.).

    The first shard is the communication shard c: `with_communication` makes it a random one. Each
    other shard is joined with it to an augmented expert +i, and c's expert takes the prior's place.
    β = 1 for the first augmented expert, ½(log s_c² − log s_+i²) for the others. One shard alone is
    its own communication expert; two give the full GP.

    Parameters
    ----------
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are combined, or observed ones, as in the paper's equation (4).
    """

    name: ClassVar[str] = "grbcm"
    rows_needed: ClassVar[str] = "unless shared"
    joint: ClassVar[str] = ""
    needs_communication_shard: ClassVar[bool] = True
    space: Space = "latent"

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σβ_i s_+i⁻² − (Σβ_i − 1) s_c⁻²."""
        beta = marginals.gain()
        beta[0] = 1.0
        return committee(marginals, beta)

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Condition the augmented experts, each where its shard lives."""
        return AugmentedCombined(aggregator=self, augmented=augmented_experts(ensemble))


@dataclass(frozen=True)
class MinVariance(MarginalAggregator):
    """The mean and the variance of the expert with the smallest variance at each point.

    Rullière, Durrande, Bachoc and Chevalier (Nested Kriging predictions for datasets with a large
    number of observations, Statistics and Computing 2018) call it "smallest prediction variance". The
    choice depends on the inputs alone and not on y, so that the prediction is as certain as it says
    wherever the experts are. The mean jumps where another expert takes over; experts whose variances
    differ by rounding alone are tied, and their means averaged. Where hyperparameters differ, an expert
    with a small prior variance is chosen even where it knows nothing.

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
    It minimises Σβ_i W₂²(·, N(μ_i, s_i²)) with Σβ_i = 1, and W₂² = (μ − μ_i)² + (s − s_i)² between
    Gaussians in one dimension, so that its mean is Σβ_i μ_i and its standard deviation Σβ_i s_i. (The
    authors' program averages variances instead, which is larger.) It does not gain from experts that
    agree: its standard deviation is never smaller than the most certain expert's.

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
        check_not_negative("temperature", self.temperature)
        check_choice("space", self.space, ("latent", "observed"))

    def merge(self, marginals: Marginals) -> Prediction:
        """Mean Σβ_i μ_i and standard deviation Σβ_i s_i."""
        beta = marginals.softmax(self.temperature if self.weights == "softmax" else 0.0)
        deviation = (beta * marginals.variance.sqrt()).sum(0)
        return Prediction((beta * marginals.mean).sum(0), deviation.square())
