"""Optimal weights: `opt`, the paper's idea with the inner products over all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.aggregation.base import (
    Aggregator,
    Combined,
    check_choice,
    check_count,
    require,
    warn_of_large_weights,
)
from distgp.aggregation.central import Central
from distgp.aggregation.ensemble import Ensemble
from distgp.aggregation.gram import (
    WIDE,
    Basis,
    NormalEquations,
    central_basis,
    means_at,
    means_of,
    normal_equations,
    rkhs_inner,
    row_sums,
    shared_inducing_equations,
    solve,
    symmetric,
)
from distgp.aggregation.own import OwnExact, OwnNystrom, OwnShared
from distgp.aggregation.variance import Mixture, Nested, VarianceRule, Weighted
from distgp.aggregation.weighted import WeightedCombined

SMALL_NORM, LARGEST_NORM = 10.0, 1e3
"""Σ|β| beyond which weights are reported. Over all rows large weights come from experts that span
nearly the same functions, and do little harm: measured RMSE within 2 % of the full GP's at 210."""
MARGINAL = "poe, gpoe, bcm, rbcm, grbcm, or opt with variance='own' or 'weighted'"


@dataclass(frozen=True)
class Opt(Aggregator):
    """Σβ_i μ_i with the weights that bring it closest to the full GP's mean, in R(g).

    ridge: ρ of the pull towards equal weights; None for 0, or 0.1 where it is needed: with `n_eval`
    or different hyperparameters. n_eval: use a sample of rows instead of all (which only pays for
    sparse experts with their own inducing inputs; take 40 M at least). variance: "own", the mean
    squared error of this combination under the prior, at most min s_i² (a mixture's where
    hyperparameters differ);
    "weighted", Σβ²s²; "central"; "nested". cross: how "own" gets the covariances between experts:
    "nystrom", through n_central central inputs, or "exact", O(n²) a test point, for exact experts;
    sparse ones know theirs, O((Mm)²) a test point with their own inducing inputs, O(m²) with shared.
    """

    name: ClassVar[str] = "opt"
    ridge: float | None = None
    n_eval: int | None = None
    variance: Literal["own", "weighted", "central", "nested"] = "own"
    cross: Literal["nystrom", "exact"] = "nystrom"
    n_central: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("variance", self.variance, ("own", "weighted", "central", "nested"))
        check_choice("cross", self.cross, ("nystrom", "exact"))
        if self.ridge is not None and not 0 <= self.ridge < float("inf"):
            raise ValueError(f"ridge must be finite and not negative, got {self.ridge}")
        check_count("n_eval", self.n_eval)
        check_count("n_central", self.n_central)

    def combine(self, ensemble: Ensemble) -> Combined:
        """One round over the shards for the weights, one for the variance where it needs it."""
        with torch.no_grad():
            # Over all rows and in a common RKHS the weights are held by the data; else by a ridge.
            whole = self.n_eval is None or ensemble.shares_inducing
            sure = ensemble.shares_hyperparameters and whole
            default = 0.0 if sure else 0.1
            ridge = default if self.ridge is None else self.ridge
            beta = solve(self.equations(ensemble), ridge)
            warn_of_large_weights(self.name, beta, LARGEST_NORM if sure else SMALL_NORM)
            rule, basis = self._variance(ensemble, beta)
        central = None if basis is None else basis.parameters.inducing
        return WeightedCombined(
            ensemble=ensemble, noise=ensemble.noise(), weights=beta, rule=rule, central=central
        )

    def equations(self, ensemble: Ensemble) -> NormalEquations:
        """G and b: over all rows, over a sample, or from the sums of experts that share Z."""
        if ensemble.shares_inducing:
            return shared_inducing_equations(ensemble)
        if self.n_eval is not None:
            return self._sampled(ensemble, self.n_eval)
        sums = ensemble.map(row_sums, means_of(ensemble), None)
        return normal_equations(ensemble, sums, ensemble.shares_hyperparameters)

    def _sampled(self, ensemble: Ensemble, size: int) -> NormalEquations:
        means, sample = means_of(ensemble), ensemble.central(size, self.seed)
        F, scale = means_at(means, sample.X), float(ensemble.sizes().sum()) / sample.n
        G, b = scale * F @ F.mT, scale * F @ sample.y.to(WIDE)
        if ensemble.shares_hyperparameters:
            inner = ensemble.map(rkhs_inner, means)
            G = G + ensemble.noise().to(WIDE) * symmetric(inner)
        return NormalEquations(G, b)

    def _variance(self, ensemble: Ensemble, beta: Tensor) -> tuple[VarianceRule, Basis | None]:
        if self.variance == "weighted":
            return Weighted(beta), None
        if not ensemble.shares_hyperparameters:
            why = f"with variance={self.variance!r} needs one prior for all experts"
            require(self.variance == "own", self.name, why, MARGINAL)
            return Mixture(ensemble.size), None
        if self.variance == "nested":
            return Nested(ensemble), None
        if self.variance == "own" and ensemble.shares_inducing:
            return OwnShared.of(ensemble, beta), None
        if self.variance == "own" and (self.cross == "exact" or not ensemble.exact):
            return OwnExact(ensemble, beta), None
        central = ensemble.central(self.n_central, self.seed)
        basis = central_basis(ensemble.parameters, central.X)
        if self.variance == "own":
            return OwnNystrom.of(ensemble, beta, basis), basis
        return Central.of(ensemble, basis), basis
