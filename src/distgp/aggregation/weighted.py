"""The posterior of aggregators that weigh expert means with constant weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distgp.aggregation.base import Combined
from distgp.aggregation.ensemble import Ensemble, Group
from distgp.aggregation.gram import Basis
from distgp.aggregation.variance import VarianceRule, own_weights
from distgp.experts import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightedCombined(Combined):
    """Mean Σβ_i μ_i(x), plus v_c(x)ᵀγ where there is a coarse part; the variance by its rule."""

    ensemble: Ensemble
    noise: Tensor
    weights: Tensor  # pyright: ignore[reportIncompatibleVariableOverride]
    rule: VarianceRule
    central: Tensor | None = None
    coarse: tuple[Basis, Tensor] | None = None

    @property
    def columns(self) -> int:
        """What the rule and the coarse part need."""
        m = 0 if self.coarse is None else len(self.coarse[1])
        return self.rule.columns + 2 * self.ensemble.size + m

    def mean_chunk(self, X: Tensor) -> Tensor:
        """One kernel-matrix product where the experts share θ."""
        parts = self.ensemble.map(_weighted_mean, X, self.weights)
        return torch.stack(parts).sum(0) + self._coarse(X)

    def predict_chunk(self, X: Tensor) -> Prediction:
        """The mean, and the variance that the rule gives it."""
        if not self.rule.needs_experts:
            mean = self.mean_chunk(X)
            return Prediction(mean, self.rule.at(X, mean, None))
        parts = self.ensemble.map(_predictions, X)
        experts = Prediction(
            torch.cat([part.mean for part in parts]), torch.cat([part.variance for part in parts])
        )
        mean = self.weights.to(X.dtype) @ experts.mean + self._coarse(X)
        return Prediction(mean, self.rule.at(X, mean, experts))

    def between(self, X: Tensor) -> Tensor | None:
        """The rule's, where it has one."""
        return self.rule.between(X)

    def _coarse(self, X: Tensor) -> Tensor:
        if self.coarse is None:
            return X.new_zeros(())
        basis, gamma = self.coarse
        return (gamma @ basis.at(X)).to(X.dtype)


def _weighted_mean(group: Group, X: Tensor, weights: Tensor) -> Tensor:
    return group.posterior.weighted_mean(X, own_weights(group, weights).to(X.dtype))


def _predictions(group: Group, X: Tensor) -> Prediction:
    return group.posterior.predict(X)
