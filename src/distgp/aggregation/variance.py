"""Combinations with constant weights, g = Σβ_i μ_i, and the rules for their variance.

A rule is built once, when the experts are combined; `at` gives the latent variance at test points.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from distgp import linalg
from distgp._util.checks import warn_user
from distgp.aggregation.base import WIDE, Combined, Ensemble, joined, predictions
from distgp.aggregation.nested import moment_entries, moments
from distgp.data.shard import Shard
from distgp.engines import travels
from distgp.experts import (
    LinearPosterior,
    Parameters,
    Posterior,
    Prediction,
    SparsePosterior,
    SparseSums,
)
from distgp.experts.base import in_chunks, latent_variance
from distgp.experts.sums import inducing_factor, row_sums

LARGEST_RESIDUAL = 1.0
"""The value of tr(K − Q) / (nσ²) beyond which a central variance is reported."""
EXPERTS_AT_ONCE = 32
"""Experts whose sums on the central inputs are held at a time."""


class CentralWarning(UserWarning):
    """The central inputs are so few that standard deviations computed from them may be far off."""


@dataclass(frozen=True, eq=False)
class Basis:
    """The whitened kernel functions v_c(x) = L_c⁻¹k(X_c, x) of the central inputs X_c.

    θ is in float64, with X_c as its inducing inputs; L_c (m_c, m_c) is the factor of k(X_c, X_c).
    """

    travels_as: ClassVar[str] = "basis"
    parameters: Parameters
    L: Tensor

    @staticmethod
    def of(parameters: Parameters, inputs: Tensor | None = None) -> Basis:
        """Factorise k(X_c, X_c) in float64; X_c are θ's own inducing inputs where none are given."""
        inputs = parameters.inducing if inputs is None else inputs
        wide = Parameters(parameters.kernel, parameters.noise, inputs).to(dtype=WIDE)
        return Basis(wide, inducing_factor(wide))

    @property
    def inputs(self) -> Tensor:
        """The central inputs X_c, (m_c, d)."""
        assert self.parameters.inducing is not None
        return self.parameters.inducing

    def at(self, X: Tensor) -> Tensor:
        """v_c at the rows of X, (m_c, N)."""
        return linalg.solve_lower(self.L, self.parameters.kernel(X.to(WIDE), self.inputs).mT)

    def sums_by_expert(self, rows: Shard) -> Iterator[tuple[slice, SparseSums]]:
        """Yield the sums over each shard's rows on the central inputs, some experts at a time."""
        for start in range(0, rows.count, EXPERTS_AT_ONCE):
            some = slice(start, start + EXPERTS_AT_ONCE)
            yield some, row_sums(self.parameters, self.L, rows[some])


def central_variance(LB: Tensor, v: Tensor, prior: Tensor) -> Tensor:
    """s_c² = k − ‖v_c‖² + ‖L_B⁻¹v_c‖²: the sparse variance on the central inputs, given all rows."""
    explained = v.square().sum(0) - linalg.solve_lower(LB, v).square_().sum(0)
    return latent_variance(prior, explained.to(prior.dtype))


class AtPoints(NamedTuple):
    """The test points X (N, d), the experts, and what they and their combination predict there."""

    ensemble: Ensemble
    X: Tensor
    mean: Tensor  # (N,), of the combination
    experts: Prediction  # (M, N): what the rule's `experts` returned
    v: Tensor | None  # (m_c, N): the functions of the rule's basis, where the mean has needed them


class VarianceRule(ABC):
    """A rule for the latent variance of a combination of experts."""

    def experts(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Ask the experts for their means and variances, those of this process directly."""
        here = [posterior.predict_chunk(X) for posterior in ensemble.here]
        return joined(here or ensemble.placement.map(predictions, X))

    @abstractmethod
    def at(self, points: AtPoints) -> Tensor:
        """The variance at test points."""

    def between(self, X: Tensor) -> Tensor | None:
        """The covariance of f between all rows of X, up to its diagonal; None where there is none."""
        del X

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of temporary matrices per test point: by default the experts'."""
        return ensemble.entries


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightedCombined(Combined):
    """Mean Σβ_i μ_i(x), plus v_c(x)ᵀγ where there is a coarse part; the variance by its rule."""

    weights: Tensor  # pyright: ignore[reportGeneralTypeIssues]
    rule: VarianceRule
    coarse: tuple[Basis, Tensor] | None = None

    def entries(self, ensemble: Ensemble) -> int:
        """Entries that the rule, with the experts, and the coarse part need."""
        m = 0 if self.coarse is None else len(self.coarse[1])
        return self.rule.entries(ensemble) + m

    def mean_chunk(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """One kernel-matrix product where the experts share θ."""
        weights = self.weights.to(X.dtype)
        parts = ensemble.placement.map(_weighted_mean, X, each=ensemble.split(weights))
        mean = reduce(add, parts)
        if self.coarse is None:
            return mean
        basis, gamma = self.coarse
        return mean + (gamma @ basis.at(X)).to(X.dtype)

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """The mean, and the variance that the rule gives it."""
        experts = self.rule.experts(ensemble, X)
        mean, v = self.weights.to(X.dtype) @ experts.mean, None
        if self.coarse is not None:
            basis, gamma = self.coarse
            v = basis.at(X)
            mean = mean + (gamma @ v).to(X.dtype)
        return Prediction(mean, self.rule.at(AtPoints(ensemble, X, mean, experts, v)))

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor | None:
        """The covariance of the rule, where it has one."""
        del ensemble
        return self.rule.between(X)


@travels("predictions", X="points", weights="weights")
def _weighted_mean(posterior: LinearPosterior, X: Tensor, weights: Tensor) -> Tensor:
    return posterior.weighted_mean(X, weights)


@dataclass(frozen=True, eq=False)
class Weighted(VarianceRule):
    """Σβ_i² s_i², as section 4.3 of the paper means it: tends to s²/M, and so is overconfident."""

    weights: Tensor

    def at(self, points: AtPoints) -> Tensor:
        """Σβ_i² s_i², at least ε·min_i s_i²."""
        variance = points.experts.variance
        floor = torch.finfo(variance.dtype).eps * variance.amin(0)
        return torch.maximum(self.weights.square().to(floor) @ variance, floor)


@dataclass(frozen=True, eq=False)
class Printed(VarianceRule):
    """Σβ_i² K K̃_i⁻¹ K (exact) or Σβ_i² K M_i⁻¹ K (sparse): algorithms 4 and 6, for comparison only."""

    weights: Tensor

    def experts(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Ask the experts for their means, and the printed terms in the place of their variances."""
        return joined(ensemble.placement.map(printed_terms, X))

    def at(self, points: AtPoints) -> Tensor:
        """Σβ_i² times the printed term of each expert, at least ε·k."""
        theta, X = points.ensemble.parameters, points.X
        prior = theta.kernel.diag(X.to(theta.noise.dtype)).to(X.dtype)
        total = self.weights.square().to(X.dtype) @ points.experts.variance
        return torch.maximum(total, latent_variance(prior, prior))


@travels("predictions", X="points")
def printed_terms(posterior: LinearPosterior, X: Tensor) -> Prediction:
    """The means of a worker's experts, and the printed terms in the place of their variances."""
    parts = in_chunks(posterior.printed_variance, X, posterior.entries)
    return Prediction(posterior.mean(X), torch.cat(parts, -1))


class Mixture(VarianceRule):
    """mean_i(s_i² + (μ_i − μ)²): for experts with different hyperparameters, without common prior."""

    def at(self, points: AtPoints) -> Tensor:
        """Return the formula."""
        experts = points.experts
        return (experts.variance + (experts.mean - points.mean).square()).mean(0)


class Nested(VarianceRule):
    """NPAE's variance: the best that any combination of these experts could have."""

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of the moments of all experts."""
        return moment_entries(ensemble)

    def at(self, points: AtPoints) -> Tensor:
        """k − k_Aᵀ K_A⁻¹ k_A."""
        return moments(points.ensemble, points.X).nested().variance.to(points.X.dtype)


@dataclass(frozen=True, eq=False)
class OwnExact(VarianceRule):
    """min(k − 2βᵀk_A + βᵀK_Aβ, min_i s_i²): the mean squared error of this very combination.

    That is its error under the prior, with β taken as fixed. But β was fitted to the data: where it is
    large the error is far too pessimistic. So it is cut off at min_i s_i², since R(g) ≤ R(f_i) for all i.
    """

    weights: Tensor

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of the moments of all experts."""
        return moment_entries(ensemble)

    def at(self, points: AtPoints) -> Tensor:
        """From the moments of all experts: O(n²) per test point for exact ones."""
        own = moments(points.ensemble, points.X).error(self.weights.to(WIDE)).to(points.X.dtype)
        return torch.minimum(own, points.experts.variance.amin(0))


@dataclass(frozen=True, eq=False)
class BasisRule(VarianceRule):
    """A rule that works with the functions v_c of some basis."""

    basis: Basis

    def entries(self, ensemble: Ensemble) -> int:
        """The experts', and v_c(x) and its images."""
        return ensemble.entries + 3 * len(self.basis.L)

    def at_basis(self, points: AtPoints) -> tuple[Tensor, Tensor]:
        """The functions v_c of the basis at test points, and the prior variance there."""
        v = self.basis.at(points.X) if points.v is None else points.v
        return v, self.basis.parameters.kernel.diag(points.X.to(WIDE)).to(points.X.dtype)


@dataclass(frozen=True, eq=False)
class OwnShared(BasisRule):
    """`OwnExact` for sparse experts that share Z, in O(m²) per test point whatever M is.

    With r_i = R_i v, k_A = vᵀR_i v and K_A,ij = vᵀR_i R_j v for i ≠ j, all of it is one quadratic
    form: k + vᵀ(T² + Σβ_i²(R_i − R_i²) − 2T)v with T = Σβ_i R_i.
    """

    form: Tensor

    @staticmethod
    def of(ensemble: Ensemble, weights: Tensor) -> OwnShared:
        """Sum the experts' parts of the form."""
        parts = ensemble.placement.map(_shared_parts, each=ensemble.split(weights.to(WIDE)))
        T, S = (reduce(add, part) for part in zip(*parts, strict=True))
        return OwnShared(Basis.of(ensemble.parameters), T @ T + S - 2.0 * T)

    def at(self, points: AtPoints) -> Tensor:
        """k + vᵀ form v, at most min_i s_i²."""
        v, prior = self.at_basis(points)
        change = (v * (self.form @ v)).sum(0)
        own = latent_variance(prior, -change.to(prior.dtype))
        return torch.minimum(own, points.experts.variance.amin(0))

    def between(self, X: Tensor) -> Tensor:
        """k(x, x′) + v(x)ᵀ form v(x′): the covariance of the combination's error under the prior."""
        v = self.basis.at(X)
        prior = self.basis.parameters.kernel(X.to(v.dtype))
        return (prior + v.mT @ self.form @ v).to(X.dtype)


@travels("sums", weights="weights")
def _shared_parts(posterior: SparsePosterior, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Σβ_i R_i and Σβ_i²(R_i − R_i²)."""
    beta, R = weights[:, None, None], posterior.shrinkage()
    return (beta * R).sum(0), (beta.square() * (R - R @ R)).sum(0)


@dataclass(frozen=True, eq=False)
class OwnNystrom(BasisRule):
    """`OwnExact` with the covariances *between* experts taken through the central inputs.

    With e_i = f − μ_i, E[e_i²] = E[f e_i] = s_i² is known exactly, and f − g = (1 − Σβ)f + Σβ_i e_i, so
    the error is (1 − Σβ)²k + 2(1 − Σβ)Σβ_i s_i² + Σβ_i²s_i² + Σ_{i≠j} β_iβ_j E[e_i e_j]. Only the last sum
    is approximated, as one quadratic form in v_c. Where the weights are large so is its error: the result
    is kept between s_c², which stands for the full GP's variance, and min_i s_i².
    """

    weights: Tensor
    form: Tensor
    LB: Tensor  # of all rows on the central inputs

    @staticmethod
    def of(ensemble: Ensemble, weights: Tensor, basis: Basis) -> OwnNystrom:
        """Sum the experts' parts: T² − Σβ_i²R_i² − 2Σβ_i(Σβ − β_i)R_i, with T = Σβ_i R_i."""
        each = ensemble.split(weights.to(WIDE))
        parts = ensemble.placement.map(_central_parts, basis, weights.sum(), each=each)
        T, U, AA = (reduce(add, part) for part in zip(*parts, strict=True))
        LB = linalg.cholesky(linalg.add_diagonal(AA, AA.new_ones(())), "I + AAᵀ")
        return OwnNystrom(basis, weights, T @ T + U, LB)

    def at(self, points: AtPoints) -> Tensor:
        """The sum above, between s_c² and min_i s_i²."""
        (v, prior), variance = self.at_basis(points), points.experts.variance
        beta = self.weights.to(prior.dtype)
        missing = 1.0 - beta.sum()
        pairs = (beta.sum().square() - beta.square().sum()) * prior
        pairs = pairs + (v * (self.form @ v)).sum(0).to(prior.dtype)
        alone = (beta.square() + 2.0 * missing * beta) @ variance
        total = missing.square() * prior + alone + pairs
        least = central_variance(self.LB, v, prior)
        return torch.minimum(torch.maximum(total, least), variance.amin(0))


@travels("sums", total="weights", weights="weights")
def _central_parts(
    posterior: Posterior, basis: Basis, total: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Σβ_i R_i, −Σβ_i²R_i² − 2Σβ_i(Σβ − β_i)R_i and ΣAAᵀ, with R_i and A on the central inputs."""
    T, U, AA = (torch.zeros_like(basis.L) for _ in range(3))
    for some, sums in basis.sums_by_expert(posterior.rows_held()):
        R = SparsePosterior.of(basis.parameters, basis.L, sums).shrinkage()
        beta = weights[some, None, None]
        T += (beta * R).sum(0)
        U -= (beta.square() * (R @ R) + 2.0 * beta * (total - beta) * R).sum(0)
        AA += sums.AAt.sum(0)
    return T, U, AA


@dataclass(frozen=True, eq=False)
class Central(BasisRule):
    """min(s_c², min_i s_i²), with s_c² the sparse variance on the central inputs from all rows.

    s_c² = k − ‖v_c‖² + ‖L_B⁻¹v_c‖² approximates the full GP's variance; it is no bound. `residual`,
    tr(K − Q) / (nσ²), says how much the central inputs leave out.
    """

    LB: Tensor
    residual: float

    @staticmethod
    def of(basis: Basis, LB: Tensor, residual: float) -> Central:
        """Build the rule, with a warning where the central inputs leave out too much."""
        if residual > LARGEST_RESIDUAL:
            warn_user(
                "the central inputs are too few to follow the function: what they leave out of each row is "
                f"{residual:.2g} times the noise variance, so standard deviations may be far off, though "
                "not means; raise n_central, or use variance='nested'",
                CentralWarning,
            )
        return Central(basis, LB, residual)

    @staticmethod
    def of_rows(ensemble: Ensemble, basis: Basis) -> Central:
        """Build the rule from one pass over the rows."""
        total = reduce(add, ensemble.placement.map(_central_sums, basis))
        posterior = SparsePosterior.of(basis.parameters, basis.L, total)
        return Central.of(basis, posterior.factors.LB, float(posterior.residual()))

    def at(self, points: AtPoints) -> Tensor:
        """The smaller of the central and the experts' variances."""
        central = central_variance(self.LB, *self.at_basis(points))
        return torch.minimum(central, points.experts.variance.amin(0))

    def between(self, X: Tensor) -> Tensor:
        """k(x, x′) − v_cᵀv_c′ + (L_B⁻¹v_c)ᵀ(L_B⁻¹v_c′): the central inputs' sparse posterior."""
        v = self.basis.at(X)
        kept = linalg.solve_lower(self.LB, v)
        prior = self.basis.parameters.kernel(X.to(v.dtype))
        return (prior - v.mT @ v + kept.mT @ kept).to(X.dtype)


def _central_sums(posterior: Posterior, basis: Basis) -> SparseSums:
    return reduce(add, (sums.total() for _, sums in basis.sums_by_expert(posterior.rows_held())))
