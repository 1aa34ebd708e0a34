"""Pooled: the full sparse GP, exactly, by one reduction of m × m sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp.aggregation.base import Aggregator, Combined, require
from distgp.aggregation.central import sum_sparse
from distgp.aggregation.ensemble import Ensemble, Group
from distgp.aggregation.gram import factor_of_K
from distgp.experts import Prediction, SparsePosterior
from distgp.experts.sparse import SparseSums


@dataclass(frozen=True)
class Pooled(Aggregator):
    """Sparse experts that share θ and Z: ΣAAᵀ and ΣAy give the full posterior, no error at all."""

    name: ClassVar[str] = "pooled"

    def combine(self, ensemble: Ensemble) -> Combined:
        """Add the sums of all shards."""
        require(
            ensemble.shares_inducing,
            self.name,
            "needs sparse experts that share hyperparameters and inducing inputs",
            "two-level for exact experts or own inducing inputs, opt for different hyperparameters",
        )
        with torch.no_grad():
            total = sum_sparse(ensemble.map(_total))
            Lu = ensemble.first(factor_of_K)
            posterior = SparsePosterior.of(ensemble.parameters, Lu, total)
        return PooledCombined(posterior, ensemble.noise())


@dataclass(frozen=True, eq=False)
class PooledCombined(Combined):
    """One sparse posterior, given all rows."""

    posterior: SparsePosterior
    noise: Tensor

    @property
    def columns(self) -> int:
        """As its posterior."""
        return self.posterior.columns

    def between(self, X: Tensor) -> Tensor:
        """The posterior's covariance."""
        return self.posterior.covariance(X)

    def mean_chunk(self, X: Tensor) -> Tensor:
        """The posterior's mean."""
        return self.posterior.mean_chunk(X)

    def predict_chunk(self, X: Tensor) -> Prediction:
        """The posterior's prediction."""
        return self.posterior.predict_chunk(X)


def _total(group: Group) -> SparseSums:
    assert isinstance(group.posterior, SparsePosterior)
    return group.posterior.sums.total()
