"""Two-level aggregation: the experts, and a coarse space of kernel functions at central inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.base import (
    Aggregator,
    Combined,
    check_choice,
    check_count,
    require_one_prior,
)
from distgp.aggregation.central import Central, factor_of_B
from distgp.aggregation.ensemble import Ensemble, Group
from distgp.aggregation.gram import (
    WIDE,
    Basis,
    RowSums,
    central_basis,
    means_at,
    means_of,
    normal_equations,
    row_sums,
    sum_of,
)
from distgp.aggregation.variance import Nested, VarianceRule
from distgp.aggregation.weighted import WeightedCombined


@dataclass(frozen=True)
class TwoLevel(Aggregator):
    """Σβ_i μ_i + v_cᵀγ, the best in R(g) over experts and central kernel functions together.

    The coarse space of a two-level Schwarz method: the experts know their shards, the central inputs
    tie them together. n_central: how many inputs, drawn evenly from all shards; `central` gives them
    instead. variance: "central", min(s_c², min s_i²), or "nested", NPAE's upper bound. Σ|β| says nothing
    here (the central functions can express the same), so there is no warning about it.
    """

    name: ClassVar[str] = "two-level"
    n_central: int = 512
    variance: Literal["central", "nested"] = "central"
    seed: int = 0
    central: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_choice("variance", self.variance, ("central", "nested"))
        check_count("n_central", self.n_central)
        if self.central is not None:
            given = torch.as_tensor(self.central)
            if given.ndim != 2 or not given.numel() or not bool(torch.isfinite(given).all()):
                raise ValueError(
                    f"central must be finite, of shape (m, d), got {tuple(given.shape)}"
                )
            object.__setattr__(self, "central", given)

    def combine(self, ensemble: Ensemble) -> Combined:
        """One round over the shards for all sums, then the eliminated, whitened solve."""
        require_one_prior(ensemble, self.name)
        with torch.no_grad():
            inputs = self.central
            if inputs is None:
                inputs = ensemble.central(self.n_central, self.seed).X
            basis, means = central_basis(ensemble.parameters, inputs), means_of(ensemble)
            sums = ensemble.map(row_sums, means, basis)
            F_c = means_at(means, inputs)
            beta, gamma, LB = eliminate(ensemble, sums, basis, F_c)
            rule = self._variance(ensemble, basis, LB, sums)
        return WeightedCombined(
            ensemble=ensemble,
            noise=ensemble.noise(),
            weights=beta,
            rule=rule,
            central=inputs,
            coarse=(basis, gamma),
        )

    def _variance(
        self, ensemble: Ensemble, basis: Basis, LB: Tensor, sums: list[RowSums]
    ) -> VarianceRule:
        if self.variance == "nested":
            return Nested(ensemble)
        noise = ensemble.noise().to(WIDE)
        trace = sum_of(ensemble.map(_prior_trace)) / noise
        n = ensemble.sizes().sum().to(WIDE)
        explained = sum_of([s.AA for s in sums]).diagonal().sum()
        residual = float((trace - explained) / n)
        return Central(basis, LB, residual)


def eliminate(
    ensemble: Ensemble, sums: list[RowSums], basis: Basis, F_c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """β, γ and L_B of the joint normal equations, without ever forming their singular matrix.

    In the whitened central functions v_c the joint Gram matrix has the block σ²B, B = I + AAᵀ, which is
    well conditioned whatever the central inputs are. Eliminating it leaves, with
    C = L_B⁻¹(AF + σL_c⁻¹F_c) and t = L_B⁻¹Ay: (G − CᵀC)β = b − Cᵀt, solved on the scale of G, and
    γ = σ⁻¹L_B⁻ᵀ(t − Cβ).
    """
    equations = normal_equations(ensemble, sums, common=True)
    sigma = ensemble.noise().to(WIDE).sqrt()
    AA = sum_of([s.AA for s in sums])
    LB = factor_of_B(AA)
    coupling = sum_of([s.AF for s in sums]) + sigma * linalg.solve_lower(basis.L, F_c.mT)
    C = linalg.solve_lower(LB, coupling)
    t = linalg.solve_lower(LB, sum_of([s.Ay for s in sums])[:, None])[:, 0]
    schur = equations.G - C.mT @ C
    beta = linalg.truncated_solve(
        0.5 * (schur + schur.mT), equations.b - C.mT @ t, equations.G.diagonal()
    )
    gamma = linalg.solve_upper(LB, (t - C @ beta)[:, None])[:, 0] / sigma
    return beta, gamma, LB


def _prior_trace(group: Group) -> Tensor:
    shards = group.rows()
    prior = group.posterior.prior(shards.X)
    real = prior if shards.mask is None else torch.where(shards.mask, prior, 0.0)
    return real.sum(dtype=WIDE)
