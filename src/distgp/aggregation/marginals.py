"""Aggregators from marginals: products of experts, Bayesian committee machines, and averages.

They need the experts' means and variances at the test points, no more. Equations (4) and (5) of the paper:
the precision is Σβ_i s_i⁻² for the products and Σβ_i s_i⁻² + (1 − Σβ_i) s_**⁻² for the committee machines;
the mean is weighted by precisions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from distgp.aggregation.base import (
    WIDE,
    Aggregator,
    Combined,
    Ensemble,
    check_choice,
    check_not_negative,
    predicted_parts,
)
from distgp.engines import travels
from distgp.experts import Posterior, Prediction
from distgp.experts.base import latent_variance
from distgp.kernels import Kernel
from distgp.likelihoods.gaussian import Space


class Marginals(NamedTuple):
    """Predictions of M experts at N points, (M, N), and noise variances, (M, 1).

    The base that they are compared with is each expert's prior, or for grBCM the communication expert.
    """

    mean: Tensor
    variance: Tensor
    base_mean: Tensor
    base_variance: Tensor
    noise: Tensor
    travels_as = "predictions"

    def observed(self) -> Marginals:
        """The same with the noise inside every variance."""
        variance, base = self.variance + self.noise, self.base_variance + self.noise
        return self._replace(variance=variance, base_variance=base)

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
    keeps_mean: ClassVar[bool] = False
    """Whether the mean of a single expert stays as it is, so that it takes no variance."""
    space: Space

    def __post_init__(self) -> None:
        check_choice("space", self.space, ("latent", "observed"))

    @abstractmethod
    def merge(self, marginals: Marginals) -> Prediction:
        """The aggregator's formula, in the space that the marginals are in."""

    def merged(self, parts: list[Marginals]) -> Prediction:
        """The formula for the marginals of all workers, in the aggregator's space."""
        found = Marginals(*map(torch.cat, zip(*parts, strict=True)))
        return self.merge(found.observed() if self.space == "observed" else found)

    def keeps_one(self) -> bool:
        """Tell whether the formula leaves the prediction of a single expert as it is, by trying."""
        mean, variance, base, noise = torch.tensor([0.5, 0.2, 1.0, 0.1], dtype=WIDE)[:, None, None]
        tried = Marginals(mean, variance, torch.zeros_like(base), base, noise)
        kept = tried.observed() if self.space == "observed" else tried
        one = self.merge(kept)
        return all(map(torch.allclose, (one.mean, one.variance), (kept.mean[0], kept.variance[0])))

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
        """Ask every expert, those of this process directly, then apply the formula."""
        here = [marginals(one, one.predict_chunk(X), X) for one in ensemble.here]
        parts = here or ensemble.placement.map(expert_marginals, X)
        found = self.aggregator.merged(parts)
        # To the last bit the mean that `mean_chunk` has, which no formula has passed.
        return Prediction(parts[0].mean[0], found.variance) if self._keeps(ensemble) else found

    def _keeps(self, ensemble: Ensemble) -> bool:
        """Whether there is a single expert, whose mean stays as it is."""
        return ensemble.size == 1 and self.aggregator.keeps_mean

    def mean_chunk(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The mean of a single expert where it stays as it is, else with all variances."""
        if not self._keeps(ensemble):
            return self.predict_chunk(ensemble, X).mean
        here = [one.mean_chunk(X) for one in ensemble.here]
        return (here or ensemble.placement.map(_means, X))[0][0]

    def prepare(self, ensemble: Ensemble) -> None:
        """Every expert is asked for its variance."""
        for one in ensemble.here:
            one.prepare()

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor | None:
        """The covariance of a single expert."""
        return ensemble.placement.on_first(_covariance, X) if ensemble.size == 1 else None

    def draws(self, ensemble: Ensemble, X: Tensor, size: int, seed: int) -> Tensor | None:
        """The draws of a single expert, if the formula leaves it as it is."""
        if ensemble.size > 1 or not self.aggregator.keeps_one():
            return None
        return ensemble.placement.on_first(_draws, X, size, seed)

    def parts(
        self, ensemble: Ensemble, X: Tensor, kernels: Sequence[Kernel]
    ) -> list[Prediction] | None:
        """Those of a single expert, if the formula leaves it as it is."""
        if ensemble.size > 1 or not self.aggregator.keeps_one():
            return None
        return ensemble.placement.on_first(_parts, X, kernels)


@travels("predictions", X="points")
def expert_marginals(posterior: Posterior, X: Tensor) -> Marginals:
    """Means, variances and priors of a worker's experts at X."""
    return marginals(posterior, posterior.predict(X), X)


def marginals(posterior: Posterior, out: Prediction, X: Tensor) -> Marginals:
    """The predictions of experts with their priors, floored as the variances are."""
    prior = latent_variance(posterior.prior(X)).expand_as(out.mean)
    noise = posterior.parameters.noise.to(X.dtype).expand(posterior.count)[:, None]
    return Marginals(out.mean, out.variance, torch.zeros_like(prior), prior, noise)


@travels("predictions", X="points")
def _means(posterior: Posterior, X: Tensor) -> Tensor:
    return posterior.mean(X)


@travels("predictions", X="points")
def _covariance(posterior: Posterior, X: Tensor) -> Tensor:
    return posterior.covariance(X)[0]


@travels("predictions", X="points")
def _draws(posterior: Posterior, X: Tensor, size: int, seed: int) -> Tensor | None:
    return posterior.chosen(torch.tensor(0)).draws(X, size, seed)


@travels("predictions", X="points", kernels="parameters")
def _parts(posterior: Posterior, X: Tensor, kernels: Sequence[Kernel]) -> list[Prediction] | None:
    found = predicted_parts(posterior, X, kernels)
    return found and [Prediction(one.mean[0], one.variance[0]) for one in found]


def product(marginals: Marginals, beta: Tensor) -> Prediction:
    """Precision Σβ_i s_i⁻², and the mean weighted by it."""
    parts = beta / marginals.variance
    weighted = (parts * marginals.mean).sum(0)
    return _from_precision(parts.sum(0), weighted, marginals.base_variance.mean(0))


def committee(marginals: Marginals, beta: Tensor) -> Prediction:
    """Precision Σβ_i(s_i⁻² − s_b,i⁻²) plus the mean base precision; the mean in the same way.

    It is positive where β_i has the sign of its bracket, as 1 and ½ log(s_b² / s_i²) have.
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
    keeps_mean: ClassVar[bool] = True
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
    Variances are relative to the prior's, so that the units of y do not matter. Uncertain experts lose
    their say sooner than under `GPoE`; far from the data the weights are 1/M and the prior returns.

    Parameters
    ----------
    temperature : float, default=100
        T, as in the authors' program. 0 gives the uniform `GPoE`, and a large one `MinVariance`.
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are combined, as the authors do, or observed ones.
    """

    name: ClassVar[str] = "softmax-poe"
    keeps_mean: ClassVar[bool] = True
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
    keeps_mean: ClassVar[bool] = True
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
class MinVariance(MarginalAggregator):
    """The mean and the variance of the expert with the smallest variance at each point.

    Rullière, Durrande, Bachoc and Chevalier (Nested Kriging predictions for datasets with a large
    number of observations, Statistics and Computing 2018) call it "smallest prediction variance". The
    choice depends on the inputs alone and not on y, so that the prediction is as certain as it says. The
    mean jumps where another expert takes over; ties are averaged. Where hyperparameters differ, an
    expert with a small prior variance is chosen even where it knows nothing.

    Parameters
    ----------
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are compared, or observed ones.
    """

    name: ClassVar[str] = "min-variance"
    keeps_mean: ClassVar[bool] = True
    space: Space = "latent"

    def merge(self, marginals: Marginals) -> Prediction:
        """μ_i and s_i² of the smallest s_i², the mean averaged over ties."""
        smallest = marginals.variance.amin(0)
        # Half of the digits: rounding spoils the last ones of a variance.
        tied = marginals.variance <= smallest * (1.0 + torch.finfo(smallest.dtype).eps ** 0.5)
        weights = tied.to(smallest.dtype)
        return Prediction((weights * marginals.mean).sum(0) / weights.sum(0), smallest)


@dataclass(frozen=True)
class Barycentre(MarginalAggregator):
    """The Wasserstein barycentre of the experts: means and standard deviations are averaged.

    Cohen, Mbuvha, Marwala and Deisenroth (Healing Products of Gaussian Process Experts, ICML 2020).
    It minimises Σβ_i W₂²(·, N(μ_i, s_i²)) with Σβ_i = 1: its mean is Σβ_i μ_i and its standard deviation
    Σβ_i s_i, never smaller than the most certain expert's. (The authors' program averages variances.)

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
    keeps_mean: ClassVar[bool] = True
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
