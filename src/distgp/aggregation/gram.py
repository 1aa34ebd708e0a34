"""Sums over all rows: those behind optimal weights, and those that make the pooled posterior.

With ⟨g, h⟩ = g(X)ᵀh(X) + σ²⟨g, h⟩_H, the full GP's mean f* minimises R(g) = ‖y − g(X)‖² + σ²‖g‖²_H
and R(g) = R(f*) + ‖g − f*‖². So the best combination of functions f_i solves Gβ = b with
G_ij = ⟨f_i, f_j⟩ and b_i = ⟨f*, f_i⟩ = yᵀf_i(X). Every shard adds the part of its own rows; where rows
have weights, or noise of their own, each row is divided by the root of its noise in units of σ².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.base import (
    WIDE,
    Aggregator,
    Combined,
    Ensemble,
    predicted_parts,
    refusal,
)
from distgp.aggregation.variance import Basis
from distgp.engines import travels
from distgp.experts import LinearPosterior, Prediction, SparsePosterior, SparseSums
from distgp.experts.base import chunk_rows
from distgp.experts.linear import Means
from distgp.experts.sums import row_sums
from distgp.kernels import Kernel
from distgp.likelihoods.gaussian import in_noise_units


class NormalEquations(NamedTuple):
    """The system Gβ = b of optimal weights, G (M, M) and b (M,), in float64."""

    G: Tensor
    b: Tensor

    def weights(self, ridge: float) -> Tensor:
        """The weights β, with a ridge towards the best equal weights β₀ = Σb / ΣG.

        (G + ρ diag G)β = b + ρβ₀ diag G, solved on the scale of G's diagonal.
        """
        diagonal, total = self.G.diagonal(), self.G.sum()
        # Experts that cancel, or all vanish, have no best equal weights: pull towards 0 then.
        proper = float(total) > 1e-12 * float(diagonal.sum())
        equal = self.b.sum() / total if proper else total * 0.0
        left = linalg.add_diagonal(self.G, ridge * diagonal)
        return linalg.truncated_solve(left, self.b + ridge * equal * diagonal, diagonal)


def trial_equations(ensemble: Ensemble, basis: Basis | None = None) -> NormalEquations:
    """The normal equations of the experts' means and, where there is a basis, of its σ⁻¹v_c.

    G = SSᵀ + σ²⟨·,·⟩_H and b = Sy, with the functions' values S on the rows, one function per line; the
    data terms alone where experts have no common RKHS. With A = σ⁻¹v_c(X) and the means' values F on the
    rows and F_c on the central inputs, the blocks of the basis are AAᵀ + I and AFᵀ + σL_c⁻¹F_cᵀ.
    """
    means, M = means_of(ensemble), ensemble.size
    grams, rights, inner = zip(*ensemble.placement.map(_trial_sums, means, basis), strict=True)
    G, b = reduce(add, grams), reduce(add, rights)
    if not ensemble.shares_hyperparameters:
        return NormalEquations(G, b)
    noise = ensemble.noise().to(WIDE)
    G[:M, :M] += noise * symmetric(inner)
    if basis is not None:
        F_c = means_at(means, basis.inputs.to(ensemble.parameters.noise.dtype))
        coupling = noise.sqrt() * linalg.solve_lower(basis.L, F_c.mT)
        G[M:, :M] += coupling
        G[:M, M:] += coupling.mT
        G.diagonal()[M:] += 1.0
    return NormalEquations(G, b)


@travels("sums")
def _trial_sums(
    posterior: LinearPosterior, means: list[Means], basis: Basis | None
) -> tuple[Tensor, Tensor, Tensor]:
    """SSᵀ and Sy over a worker's rows in one pass, in chunks, and ⟨f_i, f_j⟩_H of its own experts i."""
    rows = posterior.rows_held()
    flat, M = rows.flatten(), sum(part.size for part in means)
    total = M + (0 if basis is None else len(basis.L))
    gram = flat.X.new_zeros(total, total, dtype=WIDE)
    right, inner = gram.new_zeros(total), gram.new_zeros(posterior.count, M)
    # Where means are represented on the rows, ⟨f_i, f_j⟩_H = α_iᵀf_j(X_i) comes along.
    on_rows = posterior.row_coefficients
    alpha = None if on_rows is None else on_rows.reshape(-1).to(WIDE)
    owner = torch.arange(posterior.count, device=inner.device).repeat_interleave(rows.n)
    for part in _slices(flat.n, chunk_rows(total + rows.d, flat.X.device)):
        chunk = flat.take(part)
        S = means_at(means, chunk.X)
        if alpha is not None:
            inner.index_add_(0, owner[part], (S * alpha[part]).mT)
        if basis is not None:
            S = torch.cat([S, basis.at(chunk.X) / basis.parameters.noise.sqrt()])
        if chunk.mask is not None:
            S = S * chunk.mask
        S, y = in_noise_units(chunk, S)
        gram += S @ S.mT
        right += S @ y
    return gram, right, rkhs_inner(posterior, means) if alpha is None else inner


def _slices(n: int, size: int) -> list[slice]:
    """Cut 0 … n − 1 into slices of at most this size."""
    return [slice(start, start + size) for start in range(0, n, size)]


def means_of(ensemble: Ensemble) -> list[Means]:
    """The means of every worker's experts, to be sent to all."""
    return ensemble.placement.map(_means)


def _means(posterior: LinearPosterior) -> Means:
    return posterior.means()


def means_at(means: list[Means], X: Tensor) -> Tensor:
    """The values F of all experts' means at the rows of X, (M, N), in float64."""
    return torch.cat([part.mean(X) for part in means]).to(WIDE)


@travels("sums")
def rkhs_inner(posterior: LinearPosterior, means: list[Means]) -> Tensor:
    """⟨f_i, f_j⟩_H = Σ_p c_p f_j(p) over the representer (p, c_p) of f_i, (count, M)."""
    points, coefficients = posterior.representer()
    F = means_at(means, points.reshape(-1, points.shape[-1]))
    return (F.reshape(len(F), *coefficients.shape) * coefficients.to(WIDE)).sum(-1).mT


def symmetric(inner: Sequence[Tensor]) -> Tensor:
    """⟨f_i, f_j⟩_H of all experts from the workers' lines, with rounding made even."""
    whole = torch.cat(list(inner))
    return 0.5 * (whole + whole.mT)


def sampled_equations(ensemble: Ensemble, size: int, seed: int) -> NormalEquations:
    """The normal equations from a sample of rows: data terms scaled up, the RKHS term whole."""
    means, sample = means_of(ensemble), ensemble.central(size, seed)
    F, y = in_noise_units(sample, means_at(means, sample.X))
    scale = float(ensemble.sizes().sum()) / sample.n
    G, b = scale * F @ F.mT, scale * F @ y
    if ensemble.shares_hyperparameters:
        inner = ensemble.placement.map(rkhs_inner, means)
        G = G + ensemble.noise().to(WIDE) * symmetric(inner)
    return NormalEquations(G, b)


def shared_equations(ensemble: Ensemble) -> NormalEquations:
    """The normal equations of sparse experts that share Z, without a look at the rows.

    With μ_i(x) = v(x)ᵀw_i: G_ij = σ² w_iᵀ(I + ΣAAᵀ)w_j and b_i = σ w_iᵀ ΣAy.
    """
    return _equations_on_basis(ensemble, ensemble.placement.map(_weights_and_sums))


def projected_equations(ensemble: Ensemble, basis: Basis) -> NormalEquations:
    """The normal equations of the means' projections on central functions: no n² kernel values.

    With μ_i(x) = Σ_p k(x, p)c_p the projection in the RKHS is v_c(x)ᵀw_i with w_i = Σ_p v_c(p)c_p.
    """
    return _equations_on_basis(ensemble, ensemble.placement.map(_projections_and_sums, basis))


def _equations_on_basis(
    ensemble: Ensemble, parts: list[tuple[Tensor, Tensor, Tensor]]
) -> NormalEquations:
    """From every worker's w_i, ΣAAᵀ and ΣAy on one basis."""
    weights, AAts, Ays = zip(*parts, strict=True)
    W, noise = torch.cat(weights), ensemble.noise().to(WIDE)
    AAt, Ay = reduce(add, AAts), reduce(add, Ays)
    G = noise * W @ linalg.add_diagonal(AAt, AAt.new_ones(())) @ W.mT
    return NormalEquations(0.5 * (G + G.mT), noise.sqrt() * W @ Ay)


@travels("sums")
def _projections_and_sums(
    posterior: LinearPosterior, basis: Basis
) -> tuple[Tensor, Tensor, Tensor]:
    """w_i of a worker's experts, and AAᵀ and Ay of its rows, on the central functions."""
    points, coefficients = posterior.representer()
    flat, c = points.reshape(-1, points.shape[-1]), coefficients.reshape(-1).to(WIDE)
    owner = torch.arange(posterior.count, device=c.device).repeat_interleave(points.shape[-2])
    W = c.new_zeros(posterior.count, len(basis.L))
    for part in _slices(len(flat), chunk_rows(len(basis.L), flat.device)):
        W.index_add_(0, owner[part], (basis.at(flat[part]) * c[part]).mT)
    sums = row_sums(basis.parameters, basis.L, posterior.rows_held().flatten().without_padding())
    return W, sums.AAt, sums.Ay


@travels("sums")
def _weights_and_sums(posterior: SparsePosterior) -> tuple[Tensor, Tensor, Tensor]:
    return posterior.weights, posterior.sums.AAt.sum(0), posterior.sums.Ay.sum(0)


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
        total, basis = reduce(add, ensemble.placement.map(_total)), Basis.of(ensemble.parameters)
        return PooledCombined(posterior=SparsePosterior.of(basis.parameters, basis.L, total))


@dataclass(frozen=True, eq=False, kw_only=True)
class PooledCombined(Combined):
    """One posterior, given all rows."""

    posterior: LinearPosterior

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of its posterior, which asks no expert."""
        del ensemble
        return self.posterior.entries

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The posterior's covariance."""
        del ensemble
        return self.posterior.covariance(X)

    def draws(self, ensemble: Ensemble, X: Tensor, size: int, seed: int) -> Tensor | None:
        """The posterior's draws."""
        del ensemble
        return self.posterior.draws(X, size, seed)

    def parts(
        self, ensemble: Ensemble, X: Tensor, kernels: Sequence[Kernel]
    ) -> list[Prediction] | None:
        """Those of the posterior, if it knows them."""
        del ensemble
        return predicted_parts(self.posterior, X, kernels)

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
