"""Variances of a weighted combination g = Σβ_i μ_i of experts, each its own rule.

A rule is built once, when the experts are combined; `at` gives the latent variance at test points.

The "own" rules estimate k − 2βᵀk_A + βᵀK_Aβ, the mean squared error of this very combination under the
prior, β taken as fixed. But β was fitted to the data: where it is large that error is far too
pessimistic, while the fit guarantees R(g) ≤ R(f_i) for every expert i. So it is cut off at min_i s_i²,
which also bounds the full GP's variance from above.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.ensemble import Ensemble, Group
from distgp.aggregation.gram import WIDE, Basis, factor_of_K, sum_of
from distgp.aggregation.nested import moment_columns, moments, nested
from distgp.experts import Prediction, SparsePosterior, sparse
from distgp.experts.base import latent_variance

EXPERTS_AT_ONCE = 32
LARGEST_RESIDUAL = 1.0
"""tr(K − Q) / (nσ²) beyond which a central variance is reported."""


class CentralWarning(UserWarning):
    """The central inputs are too few for the central variance to be trusted."""


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
    for start in range(0, group.size, EXPERTS_AT_ONCE):
        some = slice(start, start + EXPERTS_AT_ONCE)
        shards = group.rows().take_batch(some)
        sums = sparse.row_sums(basis.parameters, basis.L, shards)
        R = SparsePosterior.of(basis.parameters, basis.L, sums).shrinkage()
        b = beta[some, None, None]
        T += (b * R).sum(0)
        U -= (b.square() * (R @ R) + 2.0 * b * (total - b) * R).sum(0)
        AA += sums.AAt.sum(0)
    return T, U, AA


def central_variance(LB: Tensor, v: Tensor, prior: Tensor) -> Tensor:
    """s_c² = k − ‖v_c‖² + ‖L_B⁻¹v_c‖²: the sparse variance on the central inputs, given all rows."""
    explained = v.square().sum(0) - linalg.solve_lower(LB, v).square_().sum(0)
    return latent_variance(prior, explained.to(prior.dtype))


def factor_of_B(AA: Tensor) -> Tensor:
    """L_B of B = I + AAᵀ."""
    return linalg.cholesky(linalg.add_diagonal(AA, AA.new_ones(())), "I + AAᵀ")


@dataclass(frozen=True, eq=False)
class Central(VarianceRule):
    """min(s_c², min_i s_i²), with s_c² the sparse variance on the central inputs from all rows.

    s_c² = k − ‖v_c‖² + ‖L_B⁻¹v_c‖² approximates the full GP's variance. It is not a bound: at a central
    input it lies below. `residual`, tr(K − Q) / (nσ²), says how much the central inputs leave out.
    """

    needs_experts: ClassVar[bool] = True
    basis: Basis
    LB: Tensor
    residual: float

    @property
    def columns(self) -> int:
        """v_c(x) and its image."""
        return 2 * len(self.LB)

    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """The smaller of the central and the experts' variances."""
        del mean
        assert experts is not None
        v = self.basis.at(X)
        central = central_variance(self.LB, v, self.basis.prior(X))
        return torch.minimum(central, experts.variance.amin(0))

    def between(self, X: Tensor) -> Tensor:
        """k(x, x′) − v_cᵀv_c′ + (L_B⁻¹v_c)ᵀ(L_B⁻¹v_c′): the central inputs' sparse posterior."""
        v = self.basis.at(X)
        kept = linalg.solve_lower(self.LB, v)
        prior = self.basis.parameters.kernel(X.to(v.dtype))
        return (prior - v.mT @ v + kept.mT @ kept).to(X.dtype)

    def __post_init__(self) -> None:
        if self.residual > LARGEST_RESIDUAL:
            warnings.warn(
                f"the central inputs leave {self.residual:.2g} noise variances of each row "
                "unexplained, so the central variance is not to be trusted: raise n_central, or use "
                "variance='nested'",
                CentralWarning,
                stacklevel=5,
            )

    @staticmethod
    def of(ensemble: Ensemble, basis: Basis) -> Central:
        """From one pass over the rows."""
        total = sum_sparse(ensemble.map(_central_sums, basis))
        posterior = SparsePosterior.of(basis.parameters, basis.L, total)
        return Central(basis, posterior.factors.LB, float(posterior.residual()))


def _central_sums(group: Group, basis: Basis) -> sparse.SparseSums:
    parts = [
        sparse.row_sums(
            basis.parameters,
            basis.L,
            group.rows().take_batch(slice(start, start + EXPERTS_AT_ONCE)),
        ).total()
        for start in range(0, group.size, EXPERTS_AT_ONCE)
    ]
    return sum_sparse(parts)


def sum_sparse(parts: list[sparse.SparseSums]) -> sparse.SparseSums:
    """The sums of several sets of rows."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def own_weights(group: Group, weights: Tensor) -> Tensor:
    """The weights of this group's experts."""
    return weights[group.first : group.first + group.size].to(WIDE)
