"""Optimal weights for experts that differ: `opt-local`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.base import (
    Aggregator,
    Combined,
    check_count,
    check_not_negative,
    joined,
)
from distgp.aggregation.ensemble import WIDE, Ensemble
from distgp.engines import travels
from distgp.experts import Posterior, Prediction
from distgp.likelihoods.gaussian import in_noise_units

ROWS_PER_EXPERT = 10
"""Rows that the weights are fitted on, for each expert: few, beside the rows that are predicted."""


@dataclass(frozen=True)
class OptLocal(Aggregator):
    """Optimal weights on experts times their share of the precision.

    Σβ_i g_i with g_i(x) = M π_i(x) μ_i(x) and π_i = s_i⁻² / Σ_j s_j⁻². Experts with hyperparameters of
    their own share no RKHS, and one number per expert cannot tell where each is good: away from its
    rows an expert may be far off, and says so by its variance. The weights minimise
    ‖y − Σβ_i g_i(X)‖² on a sample of rows, subject to Σβ_i = 1, with a ridge ρ Σ G_ii(β_i − 1/M)²: equal
    weights are the mean of PoE. The variance is the mixture's, Σπ_i (s_i² + (μ_i − μ)²), which grows
    where the experts disagree.

    Parameters
    ----------
    ridge : float, default=10.0
        ρ of the pull towards equal weights.
    n_eval : int, optional
        The number of rows in the sample, 10 M by default.
    seed : int, default=0
        The seed of the sample.
    """

    name: ClassVar[str] = "opt-local"
    serves: ClassVar[tuple[str, ...]] = ("exact", "sparse", "nearest")
    ridge: float = 10.0
    n_eval: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_not_negative("ridge", self.ridge)
        check_count("n_eval", self.n_eval)

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Fit the weights on a sample of rows."""
        M = ensemble.size
        if M == 1:
            return LocalCombined(weights=ensemble.noise().new_ones(1).to(WIDE))
        sample = ensemble.central(self.n_eval or ROWS_PER_EXPERT * M, self.seed)
        out = joined(ensemble.placement.map(_predictions, sample.X))
        g = (M * precision_shares(out.variance) * out.mean).to(WIDE)
        g, y = in_noise_units(sample, g)
        # A system of M + 1 unknowns: small, and fastest where no kernel has to be launched.
        sums = (g @ torch.cat([g, y[None]]).mT).cpu()
        return LocalCombined(weights=constrained(sums[:, :M], sums[:, M], self.ridge).to(g.device))


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalCombined(Combined):
    """The posterior of `opt-local`."""

    weights: Tensor  # pyright: ignore[reportGeneralTypeIssues]

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Σβ_i M π_i μ_i, and the mixture's variance."""
        out = joined(ensemble.placement.map(_predictions, X))
        shares = precision_shares(out.variance)
        mean = ensemble.size * self.weights.to(X) @ (shares * out.mean)
        spread = out.variance + (out.mean - mean).square()
        return Prediction(mean, (shares * spread).sum(0))


@travels("predictions", X="points")
def _predictions(posterior: Posterior, X: Tensor) -> Prediction:
    return posterior.predict(X)


def precision_shares(variance: Tensor) -> Tensor:
    """The shares π_i = s_i⁻² / Σ_j s_j⁻² of the experts in the precision, (M, N)."""
    precision = 1.0 / variance
    return precision / precision.sum(0)


def constrained(G: Tensor, b: Tensor, ridge: float) -> Tensor:
    """Minimise βᵀGβ − 2βᵀb + ρ Σ G_ii(β_i − 1/M)² subject to Σβ = 1.

    With β = 1/M + δ, Σδ = 0: δ = H⁻¹(r − λ1) with H = G + ρ diag G, r = b − G1/M, λ = 1ᵀH⁻¹r / 1ᵀH⁻¹1.
    """
    M, diagonal = len(b), G.diagonal()
    if not float(diagonal.max()) > 0.0:  # no expert says anything on these rows
        return torch.full_like(b, 1.0 / M)
    H = linalg.add_diagonal(G, ridge * diagonal)
    both = torch.stack([b - G.mean(-1), torch.ones_like(b)], -1)
    if ridge > 0.0:
        scale = H.diagonal().clamp_min(torch.finfo(H.dtype).eps * float(diagonal.max())).rsqrt()
        L = linalg.cholesky(scale[:, None] * H * scale, "the Gram matrix of opt-local")
        solved = scale[:, None] * linalg.cholesky_solve(L, scale[:, None] * both)
    else:
        solved = linalg.truncated_solve(H, both, H.diagonal())
    a, c = solved.unbind(-1)
    return 1.0 / M + a - c * (a.sum() / c.sum())
