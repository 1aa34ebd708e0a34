"""Nearest: every point is conditioned on its nearest rows of all shards, global sums are pooled.

The result does not depend on how rows are divided. In one process all rows are one set. On several
workers they are first moved into cells of nearby rows, one per worker, once. A point, or a row whose
sums are to be made, asks its home cell, and then those few cells that a bound (centre, radius) cannot
rule out; they answer with distances, and only the rows that win travel to the home cell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, cast

from torch import Tensor

from distgp.aggregation.base import Aggregator, Combined, refusal
from distgp.aggregation.cells import Cells
from distgp.aggregation.ensemble import Ensemble
from distgp.engines import travels
from distgp.experts import NearestExpert, NearestPosterior, Prediction
from distgp.experts.neighborhoods import GlobalPart, GlobalSums, joint_covariance


@dataclass(frozen=True)
class Nearest(Aggregator):
    """The posterior given the nearest rows of all shards, and the global part of all rows.

    It needs nearest experts that share θ. With as many neighbours as rows, or with all rows as inducing
    inputs, it is the exact GP; without inducing inputs it is Vecchia's approximation.
    """

    name: ClassVar[str] = "nearest"
    serves: ClassVar[tuple[str, ...]] = ("nearest",)
    joint: ClassVar[str] = "always"
    needs_one_prior: ClassVar[bool] = True

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Move rows into cells where there are several workers; add the sums of the global part."""
        if ensemble.parameters.inducing_batch:
            raise refusal(
                self.name,
                "needs nearest experts that share their hyperparameters",
                "pooled or two-level for other experts, opt-local where hyperparameters differ,",
            )
        cells = Cells.of(ensemble) if len(ensemble.placement) > 1 else None
        part = None
        if ensemble.parameters.inducing is not None:
            k = cast(NearestExpert, ensemble.expert).n_conditioning
            sums = ensemble.placement.on_first(_sums) if cells is None else cells.sums(k)
            part = GlobalPart.of(sums)
        return NearestCombined(part=part, cells=cells)


@dataclass(frozen=True, eq=False, kw_only=True)
class NearestCombined(Combined):
    """The posterior given nearest rows."""

    part: GlobalPart | None
    cells: Cells | None = None

    def entries(self, ensemble: Ensemble) -> int:
        """Few: neighbourhoods are worked on in chunks of their own, where the rows are."""
        del ensemble
        return 64

    def mean_chunk(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The mean, without variance work where all rows are one set."""
        if self.cells is None:
            return ensemble.placement.on_first(_mean, X, self.part)
        return self.predict_chunk(ensemble, X).mean

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Ask the one set of rows, or the cells."""
        if self.cells is None:
            return ensemble.placement.on_first(_predict, X, self.part)
        k = cast(NearestExpert, ensemble.expert).n_neighbors
        out = self.cells.conditional(X.double(), k).given(self.part)
        return Prediction(out.mean.to(X.dtype), out.variance.to(X.dtype))

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """Vecchia's approximation over the points, given the data, which are brought here."""
        return ensemble.gathered().placement.on_first(_between, X, self.part)

    def gathered(self) -> NearestCombined:
        """The same without cells, for rows that are in this process."""
        return replace(self, cells=None)


def _sums(posterior: NearestPosterior) -> GlobalSums:
    return posterior.flat.sums(posterior.expert.n_conditioning)


@travels("predictions", X="points")
def _predict(posterior: NearestPosterior, X: Tensor, part: GlobalPart | None) -> Prediction:
    return posterior.flat.predict(X, posterior.expert.n_neighbors, part)


@travels("predictions", X="points")
def _mean(posterior: NearestPosterior, X: Tensor, part: GlobalPart | None) -> Tensor:
    return posterior.flat.mean(X, posterior.expert.n_neighbors, part)


@travels("predictions", X="points")
def _between(posterior: NearestPosterior, X: Tensor, part: GlobalPart | None) -> Tensor:
    return joint_covariance(posterior.flat, X, posterior.expert.n_neighbors, part)
