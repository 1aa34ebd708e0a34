"""Pooled: the full sparse GP, exactly, by one reduction of m × m sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import ClassVar

from torch import Tensor

from distgp.aggregation.base import Aggregator, Combined, refusal
from distgp.aggregation.ensemble import Ensemble
from distgp.aggregation.gram import Basis
from distgp.experts import Prediction, SparsePosterior, SparseSums


@dataclass(frozen=True)
class Pooled(Aggregator):
    """The full sparse posterior of experts that share θ and Z.

    ΣAAᵀ and ΣAy over all shards are all that it needs: there is no aggregation error at all.
    """

    name: ClassVar[str] = "pooled"
    serves: ClassVar[tuple[str, ...]] = ("sparse",)
    rows_needed: ClassVar[str] = "unless shared"
    joint: ClassVar[str] = "always"
    needs_one_prior: ClassVar[bool] = True

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Add the sums of all shards."""
        if not ensemble.shares_inducing:
            raise refusal(
                self.name,
                "needs sparse experts that share hyperparameters and inducing inputs",
                "two-level for exact experts or own inducing inputs, opt for different hyperparameters",
            )
        total, basis = reduce(add, ensemble.placement.map(_total)), Basis.of_shared(ensemble)
        return PooledCombined(posterior=SparsePosterior.of(basis.parameters, basis.L, total))


@dataclass(frozen=True, eq=False, kw_only=True)
class PooledCombined(Combined):
    """One sparse posterior, given all rows."""

    posterior: SparsePosterior

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of its posterior, which asks no expert."""
        del ensemble
        return self.posterior.entries

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The posterior's covariance."""
        del ensemble
        return self.posterior.covariance(X)

    def mean_chunk(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The posterior's mean."""
        del ensemble
        return self.posterior.mean_chunk(X)

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """The posterior's prediction."""
        del ensemble
        return self.posterior.predict_chunk(X)


def _total(posterior: SparsePosterior) -> SparseSums:
    return posterior.sums.total()
