"""Bayesian committee machines: BCM, rBCM and grBCM, equations (4) and (5) of the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from distgp.aggregation.base import (
    Combined,
    MarginalAggregator,
    Marginals,
    Pointwise,
    Space,
    check_choice,
    from_precision,
    group_marginals,
    merge_parts,
)
from distgp.aggregation.ensemble import Ensemble, Group
from distgp.aggregation.product import differential_entropy_gain
from distgp.experts import ExactExpert, Posterior, Prediction, SparsePosterior
from distgp.experts.sparse import SparseSums, row_sums
from distgp.shards import Shard, unstack


def committee(marginals: Marginals, beta: Tensor) -> Prediction:
    """Σβ_i(s_i⁻² − s_b,i⁻²) plus the mean base precision, and the mean weighted in the same way.

    The base is the prior, each expert's own where hyperparameters differ, or the communication
    expert. With one base for all it is the printed Σβ_i s_i⁻² + (1 − Σβ_i) s_b⁻². It is positive by
    construction where β_i has the sign of its bracket, as 1 and ½ log(s_b² / s_i²) have.
    """
    own, base = 1.0 / marginals.variance, 1.0 / marginals.base_variance
    precision = (beta * (own - base)).sum(0) + base.mean(0)
    shift = base * marginals.base_mean
    weighted = (beta * (own * marginals.mean - shift)).sum(0) + shift.mean(0)
    return from_precision(precision, weighted, marginals.base_variance.mean(0))


@dataclass(frozen=True)
class BCM(MarginalAggregator):
    """Bayesian committee machine, β_i = 1."""

    name: ClassVar[str] = "bcm"
    space: Space = "latent"

    def __post_init__(self) -> None:
        check_choice("space", self.space, ("latent", "observed"))

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σ s_i⁻² + (1 − M) s_**⁻²."""
        return committee(marginals, torch.ones_like(marginals.mean))


@dataclass(frozen=True)
class RBCM(MarginalAggregator):
    """Robust Bayesian committee machine, β_i = ½(log s_**² − log s_i²)."""

    name: ClassVar[str] = "rbcm"
    space: Space = "latent"

    def __post_init__(self) -> None:
        check_choice("space", self.space, ("latent", "observed"))

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σβ_i s_i⁻² + (1 − Σβ_i) s_**⁻²."""
        return committee(marginals, differential_entropy_gain(marginals))


@dataclass(frozen=True)
class GRBCM(MarginalAggregator):
    """Generalised robust Bayesian committee machine (Liu et al.).

    The first shard is the communication shard c: `with_communication` makes it a random one. Each
    other shard is joined with it to an augmented expert +i; c's expert takes the prior's place.
    β = 1 for the first augmented expert, ½(log s_c² − log s_+i²) for the others. One shard alone is
    its own communication expert; two give the full GP.
    """

    name: ClassVar[str] = "grbcm"
    space: Space = "latent"

    def __post_init__(self) -> None:
        check_choice("space", self.space, ("latent", "observed"))

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σβ_i s_+i⁻² − (Σβ_i − 1) s_c⁻²."""
        beta = differential_entropy_gain(marginals)
        beta[0] = 1.0
        return committee(marginals, beta)

    def combine(self, ensemble: Ensemble) -> Combined:
        """Condition the augmented experts, each where its shard lives."""
        if ensemble.size == 1:
            return AugmentedCombined(self, ensemble, ensemble.noise(), self.space)
        if ensemble.shares_inducing:
            message: Shard | SparseSums = ensemble.first(_first_sums)
        else:
            message = ensemble.first(_first_shard)
        augmented = ensemble.derive(augment, message)
        return AugmentedCombined(self, augmented, ensemble.noise(), self.space)


@dataclass(frozen=True, eq=False)
class AugmentedGroup(Group):
    """Augmented experts, and the communication expert as their base."""

    base: Posterior | None = None


@dataclass(frozen=True, eq=False)
class AugmentedCombined(Pointwise):
    """The posterior of grBCM."""

    aggregator: GRBCM
    ensemble: Ensemble
    noise: Tensor
    space: Space

    def predict_chunk(self, X: Tensor) -> Prediction:
        """Ask every augmented expert, then apply the formula."""
        return merge_parts(self.aggregator, self.ensemble.map(augmented_marginals, X))


def augmented_marginals(group: Group, X: Tensor) -> Marginals:
    """Marginals whose base is the communication expert; alone, it is its own augmented expert."""
    marginals = group_marginals(group, X)
    base = group.base if isinstance(group, AugmentedGroup) else None
    if base is None:
        return replace(marginals, base_mean=marginals.mean, base_variance=marginals.variance)
    out = base.predict(X)
    return replace(
        marginals,
        base_mean=out.mean.expand_as(marginals.mean),
        base_variance=out.variance.expand_as(marginals.mean),
    )


def _first_sums(group: Group) -> SparseSums:
    assert isinstance(group.posterior, SparsePosterior)
    return group.posterior.sums[0]


def _first_shard(group: Group) -> Shard:
    return unstack(group.rows())[0]


def augment(group: Group, message: Shard | SparseSums) -> Group | None:
    """The group's experts joined with the communication shard, or with its sums where that does."""
    skip = 1 if group.first == 0 else 0
    if group.size == skip:
        return None
    theta = group.posterior.parameters[skip:]
    if isinstance(group.posterior, SparsePosterior):
        posterior, base = _augment_sparse(group.posterior, skip, message)
        return AugmentedGroup(posterior, None, group.first, base)
    assert isinstance(message, Shard)
    rows = group.rows().take_batch(slice(skip, None))
    expert = ExactExpert()
    joined = expert.condition(theta, message.join(rows))
    # Where hyperparameters differ the communication shard is seen through each expert's own.
    base = expert.condition(theta, message)
    return AugmentedGroup(joined, None, group.first, base)


def _augment_sparse(
    posterior: SparsePosterior, skip: int, message: Shard | SparseSums
) -> tuple[SparsePosterior, SparsePosterior]:
    theta, sums = posterior.parameters[skip:], posterior.sums[skip:]
    Lu = posterior.Lu[skip:] if posterior.Lu.ndim > 2 else posterior.Lu
    common = row_sums(theta, Lu, message) if isinstance(message, Shard) else message
    return SparsePosterior.of(theta, Lu, common + sums), SparsePosterior.of(theta, Lu, common)
