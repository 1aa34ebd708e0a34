"""Variances of opt's own: the mean squared error of this very combination.

They estimate k − 2βᵀk_A + βᵀK_Aβ, that error under the prior, β taken as fixed. But β was fitted to the
data: where it is large that error is far too pessimistic, while the fit guarantees R(g) ≤ R(f_i) for
every expert i. So it is cut off at min_i s_i², which also bounds the full GP's variance from above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp.aggregation.central import central_variance, factor_of_B, sums_by_expert
from distgp.aggregation.ensemble import Ensemble, Group
from distgp.aggregation.gram import Basis, factor_of_K, sum_of
from distgp.aggregation.nested import moment_columns, moments
from distgp.aggregation.variance import VarianceRule, own_weights
from distgp.experts import Prediction, SparsePosterior
from distgp.experts.base import latent_variance


@dataclass(frozen=True, eq=False)
class OwnExact(VarianceRule):
    """min(k − 2βᵀk_A + βᵀK_Aβ, min_i s_i²), with exact moments."""

    needs_experts: ClassVar[bool] = True
    ensemble: Ensemble
    weights: Tensor

    @property
    def columns(self) -> int:
        """As NPAE."""
        return max(1, moment_columns(self.ensemble) // 8)

    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """From the moments of all experts: O(n²) a test point for exact ones."""
        del mean
        assert experts is not None
        m = moments(self.ensemble, X)
        beta = self.weights.to(m.between.dtype)
        quadratic = torch.einsum("i,nij,j->n", beta, m.between, beta)
        own = latent_variance(m.prior, 2.0 * (beta @ m.to_f) - quadratic).to(X.dtype)
        return torch.minimum(own, experts.variance.amin(0))


@dataclass(frozen=True, eq=False)
class OwnShared(VarianceRule):
    """The same for sparse experts that share Z, in O(m²) a test point whatever M is.

    With r_i = R_i v, k_A = vᵀR_i v and K_A,ij = vᵀR_i R_j v for i ≠ j, all of it is one quadratic
    form: k + vᵀ(T² + Σβ_i²(R_i − R_i²) − 2T)v with T = Σβ_i R_i.
    """

    needs_experts: ClassVar[bool] = True
    basis: Basis  # of the shared inducing inputs
    form: Tensor

    @property
    def columns(self) -> int:
        """v(x) and its image."""
        return 2 * len(self.form)

    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """k + vᵀ form v, at most min_i s_i²."""
        del mean
        assert experts is not None
        v = self.basis.at(X)
        change = (v * (self.form @ v)).sum(0)
        own = latent_variance(self.basis.prior(X), -change.to(X.dtype))
        return torch.minimum(own, experts.variance.amin(0))

    def between(self, X: Tensor) -> Tensor:
        """k(x, x′) + v(x)ᵀ form v(x′): the covariance of the combination's error under the prior."""
        v = self.basis.at(X)
        prior = self.basis.parameters.kernel(X.to(v.dtype))
        return (prior + v.mT @ self.form @ v).to(X.dtype)

    @staticmethod
    def of(ensemble: Ensemble, weights: Tensor) -> OwnShared:
        """Sum the experts' parts."""
        parts = ensemble.map(_shared_parts, weights)
        T, S = (sum_of([part[i] for part in parts]) for i in range(2))
        return OwnShared(
            Basis(ensemble.parameters, ensemble.first(factor_of_K)), T @ T + S - 2.0 * T
        )


def _shared_parts(group: Group, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Σβ_i R_i and Σβ_i²(R_i − R_i²)."""
    assert isinstance(group.posterior, SparsePosterior)
    beta = own_weights(group, weights)[:, None, None]
    R = group.posterior.shrinkage()
    return (beta * R).sum(0), (beta.square() * (R - R @ R)).sum(0)


@dataclass(frozen=True, eq=False)
class OwnNystrom(VarianceRule):
    """The same with only the covariances *between* experts taken through the central inputs.

    With e_i = f − μ_i, E[e_i²] = E[f e_i] = s_i² is known exactly, and f − g = (1 − Σβ)f + Σβ_i e_i, so
    the error is (1 − Σβ)²k + 2(1 − Σβ)Σβ_i s_i² + Σβ_i²s_i² + Σ_{i≠j} β_iβ_j E[e_i e_j]. Only the last sum
    is approximated, each expert in it seen through the central inputs; it is one quadratic form in
    v_c. For exact experts; with one of them, or all rows central, nothing is approximated. Where the
    weights are large so is its error: the result is kept between s_c², which stands for the full GP's
    variance that no combination can beat, and min_i s_i².
    """

    needs_experts: ClassVar[bool] = True
    weights: Tensor
    basis: Basis
    form: Tensor
    LB: Tensor  # of all rows on the central inputs

    @property
    def columns(self) -> int:
        """v_c(x), its images, and the experts."""
        return 3 * len(self.form) + len(self.weights)

    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """The sum above, between s_c² and min_i s_i²."""
        del mean
        assert experts is not None
        prior, v = self.basis.prior(X), self.basis.at(X)
        beta = self.weights.to(X.dtype)
        missing = 1.0 - beta.sum()
        pairs = (beta.sum().square() - beta.square().sum()) * prior
        pairs = pairs + (v * (self.form @ v)).sum(0).to(X.dtype)
        alone = (beta.square() + 2.0 * missing * beta) @ experts.variance
        total = missing.square() * prior + alone + pairs
        least = central_variance(self.LB, v, prior)
        return torch.minimum(torch.maximum(total, least), experts.variance.amin(0))

    @staticmethod
    def of(ensemble: Ensemble, weights: Tensor, basis: Basis) -> OwnNystrom:
        """Sum the experts' parts: T² − Σβ_i²R_i² − 2Σβ_i(Σβ − β_i)R_i, with T = Σβ_i R_i."""
        parts = ensemble.map(_central_parts, weights, basis)
        T, U, AA = (sum_of([part[i] for part in parts]) for i in range(3))
        return OwnNystrom(weights, basis, T @ T + U, factor_of_B(AA))


def _central_parts(group: Group, weights: Tensor, basis: Basis) -> tuple[Tensor, Tensor, Tensor]:
    """Σβ_i R_i, −Σβ_i²R_i² − 2Σβ_i(Σβ − β_i)R_i and ΣAAᵀ, with R_i and A on the central inputs."""
    beta, total = own_weights(group, weights), weights.sum()
    T, U, AA = (torch.zeros_like(basis.L) for _ in range(3))
    for some, sums in sums_by_expert(group, basis):
        R = SparsePosterior.of(basis.parameters, basis.L, sums).shrinkage()
        b = beta[some, None, None]
        T += (b * R).sum(0)
        U -= (b.square() * (R @ R) + 2.0 * b * (total - b) * R).sum(0)
        AA += sums.AAt.sum(0)
    return T, U, AA
