"""Variances of a weighted combination g = Σβ_i μ_i of experts, each its own rule.

A rule is built once, when the experts are combined; `at` gives the latent variance at test points.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.ensemble import WIDE, Ensemble, Group
from distgp.aggregation.nested import moment_columns, moments, nested
from distgp.experts import Prediction, SparsePosterior
from distgp.experts.base import latent_variance


class VarianceRule(ABC):
    """The latent variance of a combination."""

    needs_experts: ClassVar[bool]
    """Whether `at` needs the experts' own means and variances."""

    @property
    @abstractmethod
    def columns(self) -> int:
        """Entries of temporary matrices for each test point."""

    @abstractmethod
    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """The variance at the rows of X, given the combined mean and the experts' predictions."""

    def between(self, X: Tensor) -> Tensor | None:
        """The covariance of f between all rows of X, up to its diagonal; None where there is none."""
        del X


@dataclass(frozen=True, eq=False)
class Weighted(VarianceRule):
    """Σβ_i² s_i², as section 4.3 of the paper means it: tends to s²/M, and so is overconfident."""

    needs_experts: ClassVar[bool] = True
    weights: Tensor

    @property
    def columns(self) -> int:
        """One entry an expert."""
        return len(self.weights)

    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """Σβ_i² s_i²."""
        del X, mean
        assert experts is not None
        floor = torch.finfo(experts.variance.dtype).eps * experts.variance.amin(0)
        return torch.maximum(self.weights.square().to(floor) @ experts.variance, floor)


@dataclass(frozen=True, eq=False)
class Printed(VarianceRule):
    """Σβ_i² K K̃_i⁻¹ K (exact), Σβ_i² K M_i⁻¹ K (sparse): algorithms 4 and 6 to the letter.

    The first is the variance *explained*, the second lacks k − Q: both go to 0 far from the data,
    where the variance should be the prior's. For comparison only.
    """

    needs_experts: ClassVar[bool] = False
    ensemble: Ensemble
    weights: Tensor

    @property
    def columns(self) -> int:
        """As many as the experts need."""
        return moment_columns(self.ensemble)

    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """Σβ_i² times the printed term of each expert, at least ε·k."""
        del mean, experts
        terms = torch.cat(self.ensemble.map(_printed_terms, X))
        prior = self.ensemble.prior(X)
        total = self.weights.square().to(terms) @ terms
        return torch.maximum(total, latent_variance(prior, prior))


def _printed_terms(group: Group, X: Tensor) -> Tensor:
    posterior = group.posterior
    if isinstance(posterior, SparsePosterior):
        v = posterior.whitened(X)
        return linalg.solve_lower(posterior.factors.LB, v).square().sum(-2).to(X.dtype)
    return posterior.prior(X) - posterior.predict_chunk(X).variance


@dataclass(frozen=True, eq=False)
class Mixture(VarianceRule):
    """mean_i(s_i² + (μ_i − μ)²): for experts with different hyperparameters, without common prior."""

    needs_experts: ClassVar[bool] = True
    size: int

    @property
    def columns(self) -> int:
        """One entry an expert."""
        return self.size

    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """The mean of the experts' variances and of their squared distances to the mean."""
        del X
        assert experts is not None
        return (experts.variance + (experts.mean - mean).square()).mean(0)


@dataclass(frozen=True, eq=False)
class Nested(VarianceRule):
    """NPAE's variance: the best that any combination of these experts could have."""

    needs_experts: ClassVar[bool] = False
    ensemble: Ensemble

    @property
    def columns(self) -> int:
        """As NPAE."""
        return max(1, moment_columns(self.ensemble) // 8)

    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """k − k_Aᵀ K_A⁻¹ k_A."""
        del mean, experts
        return nested(moments(self.ensemble, X)).variance.to(X.dtype)


def own_weights(group: Group, weights: Tensor) -> Tensor:
    """The weights of this group's experts."""
    return weights[group.first : group.first + group.size].to(WIDE)
