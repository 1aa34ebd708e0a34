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
)
from distgp.aggregation.basis import Basis, factor_of_B, sum_of
from distgp.aggregation.ensemble import WIDE, Ensemble
from distgp.aggregation.gram import (
    TrialSums,
    means_at,
    means_of,
    normal_equations,
    trial_sums,
)
from distgp.aggregation.variance import Central, Nested, VarianceRule, WeightedCombined
from distgp.engines import travels
from distgp.experts import Posterior
from distgp.likelihoods import noise_factor


@dataclass(frozen=True)
class TwoLevel(Aggregator):
    """Σβ_i μ_i + v_cᵀγ, the best in R(g) over experts and central kernel functions together.

    The coarse space of a two-level Schwarz method: the experts know their shards, the central inputs
    tie them together. Σ|β| says nothing here, since the central functions can express the same, so
    there is no warning about it.

    Parameters
    ----------
    n_central : int, default=512
        The number of central inputs, drawn evenly from all shards.
    variance : {"central", "nested"}, default="central"
        "central": min(s_c², min s_i²) with the sparse variance s_c² on the central inputs. "nested":
        NPAE's upper bound.
    seed : int, default=0
        The seed of the draw.
    central : Tensor of shape (m_c, d), optional
        The central inputs, where they are not to be drawn.
    """

    name: ClassVar[str] = "two-level"
    joint: ClassVar[str] = "with variance='central'"
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

    @property
    def needs_one_prior(self) -> bool:
        """Whether the experts must share their hyperparameters: always."""
        return True

    def posterior(self, ensemble: Ensemble) -> Combined:
        """One round over the shards for all sums, then the eliminated, whitened solve."""
        inputs = self.central
        if inputs is None:
            inputs = ensemble.central(self.n_central, self.seed).X
        basis, means = Basis.of(ensemble.parameters, inputs), means_of(ensemble)
        sums = ensemble.map(trial_sums, means, basis)
        beta, gamma, LB = eliminate(ensemble, sums, basis, means_at(means, inputs))
        rule = self._variance(ensemble, basis, LB, sums)
        return WeightedCombined(weights=beta, central=inputs, rule=rule, coarse=(basis, gamma))

    def _variance(
        self, ensemble: Ensemble, basis: Basis, LB: Tensor, sums: list[TrialSums]
    ) -> VarianceRule:
        if self.variance == "nested":
            return Nested()
        M, n = ensemble.size, ensemble.sizes().sum().to(WIDE)
        trace = sum_of(ensemble.map(_prior_trace)) / ensemble.noise().to(WIDE)
        explained = sum_of([s.gram.diagonal()[M:].sum() for s in sums])
        return Central.of(basis, LB, float((trace - explained) / n))


def eliminate(
    ensemble: Ensemble, sums: list[TrialSums], basis: Basis, F_c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve the joint normal equations without ever forming their singular matrix.

    In the whitened central functions v_c the joint Gram matrix has the block σ²B, B = I + AAᵀ, which is
    well conditioned whatever the central inputs are. Eliminating it leaves, with
    C = L_B⁻¹(AF + σL_c⁻¹F_c) and t = L_B⁻¹Ay: (G − CᵀC)β = b − Cᵀt, solved on the scale of G, and
    γ = σ⁻¹L_B⁻ᵀ(t − Cβ).

    Parameters
    ----------
    ensemble : Ensemble
        The experts.
    sums : list of TrialSums
        The sums over the workers' rows.
    basis : Basis
        The central functions.
    F_c : Tensor of shape (M, m_c)
        The experts' means at the central inputs.

    Returns
    -------
    tuple of Tensor
        β, γ and L_B.
    """
    equations, M = normal_equations(ensemble, sums), ensemble.size
    sigma = ensemble.noise().to(WIDE).sqrt()
    gram, right = sum_of([s.gram[M:] for s in sums]), sum_of([s.right[M:] for s in sums])
    LB = factor_of_B(gram[:, M:])
    coupling = gram[:, :M] + sigma * linalg.solve_lower(basis.L, F_c.mT)
    C = linalg.solve_lower(LB, coupling)
    t = linalg.solve_lower(LB, right[:, None])[:, 0]
    schur = equations.G - C.mT @ C
    beta = linalg.truncated_solve(
        0.5 * (schur + schur.mT), equations.b - C.mT @ t, equations.G.diagonal()
    )
    gamma = linalg.solve_upper(LB, (t - C @ beta)[:, None])[:, 0] / sigma
    return beta, gamma, LB


@travels("sums")
def _prior_trace(posterior: Posterior) -> Tensor:
    """Σ k(x, x) over a worker's rows, each in units of its own noise."""
    rows = posterior.rows_held()
    prior = posterior.prior(rows.X)
    factor = noise_factor(rows)
    prior = prior if factor is None else prior / factor
    real = prior if rows.mask is None else torch.where(rows.mask, prior, 0.0)
    return real.sum(dtype=WIDE)
