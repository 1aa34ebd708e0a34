"""The sums behind optimal weights: inner products of the experts' means over all rows.

With ⟨g, h⟩ = g(X)ᵀh(X) + σ²⟨g, h⟩_H, the full GP's mean f* minimises R(g) = ‖y − g(X)‖² + σ²‖g‖²_H
and R(g) = R(f*) + ‖g − f*‖². So the best combination of functions f_i solves Gβ = b with
G_ij = ⟨f_i, f_j⟩ and b_i = ⟨f*, f_i⟩ = yᵀf_i(X). Every shard adds its own rows' part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.ensemble import WIDE, Ensemble, Group
from distgp.experts import Parameters, SparsePosterior
from distgp.experts.base import Means, chunk_rows
from distgp.experts.sparse import inducing_factor


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """G (M, M) and b (M,), in float64."""

    G: Tensor
    b: Tensor


@dataclass(frozen=True, eq=False)
class Basis:
    """The whitened kernel functions v_c(x) = L_c⁻¹k(X_c, x) of the central inputs."""

    parameters: Parameters  # in float64, with the central inputs as its inducing inputs
    L: Tensor

    def at(self, X: Tensor) -> Tensor:
        """v_c at the rows of X, (m_c, N)."""
        Z = self.parameters.inducing
        assert Z is not None
        return linalg.solve_lower(self.L, self.parameters.kernel(X.to(WIDE), Z).mT)

    def prior(self, X: Tensor) -> Tensor:
        """k(x, x) in the dtype of X."""
        return self.parameters.kernel.diag(X.to(WIDE)).to(X.dtype)


@dataclass(frozen=True, eq=False)
class RowSums:
    """What a group's rows add: F = the means of all experts there, A = σ⁻¹v_c there."""

    travels_as: ClassVar[str] = "sums"
    FF: Tensor  # FᵀF, (M, M)
    Fy: Tensor  # Fᵀy, (M,)
    inner: Tensor  # ⟨f_i, f_j⟩_H of the group's experts i with all j, (size, M)
    AA: Tensor  # AAᵀ, (m_c, m_c)
    AF: Tensor  # AF, (m_c, M)
    Ay: Tensor  # Ay, (m_c,)


def means_at(means: list[Means], X: Tensor) -> Tensor:
    """F: all experts' means at the rows of X, (M, rows), in float64."""
    return torch.cat([part.mean(X) for part in means]).to(WIDE)


def row_sums(group: Group, means: list[Means], basis: Basis | None) -> RowSums:
    """One pass over a group's rows, in chunks."""
    shards, M = group.rows(), sum(part.size for part in means)
    flat = shards.flatten()
    points, coefficients = group.posterior.representer()
    on_rows = points is shards.X  # exact experts: the RKHS terms are on the rows themselves
    m = 0 if basis is None else basis.L.shape[-1]
    wide = {"dtype": WIDE, "device": shards.X.device}
    FF, Fy = torch.zeros(M, M, **wide), torch.zeros(M, **wide)
    inner = torch.zeros(group.size, M, **wide)
    AA, AF, Ay = torch.zeros(m, m, **wide), torch.zeros(m, M, **wide), torch.zeros(m, **wide)
    owner = torch.arange(group.size, device=FF.device).repeat_interleave(shards.n)
    alpha = coefficients.reshape(-1).to(WIDE)
    size = chunk_rows(M + m + shards.d, flat.X.device)
    for start in range(0, flat.n, size):
        part = slice(start, start + size)
        chunk = flat.take(part)
        F, y = means_at(means, chunk.X), chunk.y.to(WIDE)
        if on_rows:
            inner.index_add_(0, owner[part], (F * alpha[part]).mT)
        if chunk.mask is not None:
            F, y = F * chunk.mask, y * chunk.mask
        FF += F @ F.mT
        Fy += F @ y
        if basis is not None:
            A = basis.at(chunk.X) / basis.parameters.noise.sqrt()
            if chunk.mask is not None:
                A = A * chunk.mask
            AA += A @ A.mT
            AF += A @ F.mT
            Ay += A @ y
    if not on_rows:
        inner = rkhs_inner(group, means)
    return RowSums(FF, Fy, inner, AA, AF, Ay)


def rkhs_inner(group: Group, means: list[Means]) -> Tensor:
    """⟨f_i, f_j⟩_H = Σ_p c_p f_j(p) over the representer (p, c_p) of f_i, (size, M)."""
    points, coefficients = group.posterior.representer()
    F = means_at(means, points.reshape(-1, points.shape[-1]))
    return (F.reshape(len(F), *coefficients.shape) * coefficients.to(WIDE)).sum(-1).mT


def symmetric(inner: list[Tensor]) -> Tensor:
    """⟨f_i, f_j⟩_H of all experts from the groups' rows, with rounding made even."""
    whole = torch.cat(inner)
    return 0.5 * (whole + whole.mT)


def normal_equations(ensemble: Ensemble, sums: list[RowSums], common: bool) -> NormalEquations:
    """G = ΣFᵀF + σ²⟨·,·⟩_H and b = ΣFᵀy; without a `common` RKHS the data terms alone."""
    G, b = sum_of([s.FF for s in sums]), sum_of([s.Fy for s in sums])
    if common:
        G = G + ensemble.noise().to(WIDE) * symmetric([s.inner for s in sums])
    return NormalEquations(G, b)


def shared_inducing_equations(ensemble: Ensemble) -> NormalEquations:
    """Without a look at the rows: G_ij = σ² w_iᵀ(I + ΣAAᵀ)w_j and b_i = σ w_iᵀ ΣAy."""
    parts = ensemble.map(_weights_and_sums)
    W, noise = torch.cat([part[0] for part in parts]), ensemble.noise().to(WIDE)
    AAt, Ay = sum_of([part[1] for part in parts]), sum_of([part[2] for part in parts])
    G = noise * W @ linalg.add_diagonal(AAt, AAt.new_ones(())) @ W.mT
    return NormalEquations(0.5 * (G + G.mT), noise.sqrt() * W @ Ay)


def _weights_and_sums(group: Group) -> tuple[Tensor, Tensor, Tensor]:
    assert isinstance(group.posterior, SparsePosterior)
    sums = group.posterior.sums
    return group.posterior.weights, sums.AAt.sum(0), sums.Ay.sum(0)


def factor_of_K(group: Group) -> Tensor:
    """L_u of a group's inducing inputs."""
    assert isinstance(group.posterior, SparsePosterior)
    return group.posterior.Lu


def central_basis(parameters: Parameters, inputs: Tensor) -> Basis:
    """Factorise k(X_c, X_c) in float64."""
    wide = Parameters(parameters.kernel, parameters.noise, inputs).to(dtype=WIDE)
    return Basis(wide, inducing_factor(wide))


def solve(equations: NormalEquations, ridge: float) -> Tensor:
    """β of (G + ρ diag G)β = b + ρβ₀ diag G, β₀ = Σb / ΣG: a ridge towards the best equal weights."""
    G, b = equations.G, equations.b
    diagonal, total = G.diagonal(), G.sum()
    # Experts that cancel, or all vanish, have no best equal weights: pull towards 0 then.
    equal = b.sum() / total if float(total) > 1e-12 * float(diagonal.sum()) else total * 0.0
    return linalg.truncated_solve(
        linalg.add_diagonal(G, ridge * diagonal), b + ridge * equal * diagonal, diagonal
    )


def sum_of(tensors: list[Tensor]) -> Tensor:
    """The sum of equal-shaped tensors."""
    return torch.stack(tensors).sum(0)


def means_of(ensemble: Ensemble) -> list[Means]:
    """Every group's expert means, to be broadcast."""
    return ensemble.map(_means)


def _means(group: Group) -> Means:
    return group.posterior.means()
