"""Products of experts: PoE and gPoE, equation (4) of the paper without the prior's correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.aggregation.base import (
    MarginalAggregator,
    Marginals,
    Space,
    check_choice,
    from_precision,
)
from distgp.experts.base import Prediction


def differential_entropy_gain(marginals: Marginals) -> Tensor:
    """½(log s_**² − log s_i²): what expert i learnt about f(x), in nats."""
    return 0.5 * (marginals.base_variance.log() - marginals.variance.log())


def product(marginals: Marginals, beta: Tensor) -> Prediction:
    """Precision Σβ_i s_i⁻², mean weighted by it."""
    parts = beta / marginals.variance
    weighted = (parts * marginals.mean).sum(0)
    return from_precision(parts.sum(0), weighted, marginals.base_variance.mean(0))


@dataclass(frozen=True)
class PoE(MarginalAggregator):
    """Product of experts, β_i = 1. Overconfident: M experts that know nothing give prior / M."""

    name: ClassVar[str] = "poe"
    space: Space = "latent"

    def __post_init__(self) -> None:
        check_choice("space", self.space, ("latent", "observed"))

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σ s_i⁻²."""
        return product(marginals, torch.ones_like(marginals.mean))


@dataclass(frozen=True)
class GPoE(MarginalAggregator):
    """Generalised product of experts.

    weights: "uniform", β = 1/M, and "normalised", entropy gains divided by their sum, return to the
    prior far from the data; "entropy", the gains as the paper prints them, does not: its variance
    diverges there, up to the floor of the precision.
    """

    name: ClassVar[str] = "gpoe"
    weights: Literal["uniform", "normalised", "entropy"] = "uniform"
    space: Space = "latent"

    def __post_init__(self) -> None:
        check_choice("weights", self.weights, ("uniform", "normalised", "entropy"))
        check_choice("space", self.space, ("latent", "observed"))

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σβ_i s_i⁻²."""
        return product(marginals, self._beta(marginals))

    def _beta(self, marginals: Marginals) -> Tensor:
        M = len(marginals.mean)
        if self.weights == "uniform":
            return torch.full_like(marginals.mean, 1.0 / M)
        gain = differential_entropy_gain(marginals).clamp_min(0.0)
        if self.weights == "entropy":
            return gain
        # Far from the data all gains vanish and 0/0 must be 1/M: the ε decides there alone.
        gain = gain + torch.finfo(gain.dtype).eps
        return gain / gain.sum(0)
