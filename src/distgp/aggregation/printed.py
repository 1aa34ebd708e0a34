"""Optimal weights as the paper prints them: `opt-printed`, algorithms 3 to 6, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from distgp import linalg
from distgp.aggregation.base import (
    Aggregator,
    Combined,
    check_choice,
    require_one_prior,
    warn_of_large_weights,
)
from distgp.aggregation.ensemble import Ensemble
from distgp.aggregation.gram import (
    WIDE,
    NormalEquations,
    means_at,
    means_of,
    rkhs_inner,
    symmetric,
)
from distgp.aggregation.variance import Printed, Weighted
from distgp.aggregation.weighted import WeightedCombined


@dataclass(frozen=True)
class OptPrinted(Aggregator):
    """The paper's weights: G over one central row a shard, b = diag G, and a jitter.

    b = diag G holds for projections of f* onto subspaces, which posteriors on different shards are
    not, and M rows cannot tell M functions apart: as M grows the weights explode. `opt` is what
    works. lam: λ of the inner product, σ² by default, 1 as algorithm 5 has it. jitter: of G's mean
    diagonal. variance: "printed", which goes to 0 far from the data, or "weighted", Σβ²s².
    """

    name: ClassVar[str] = "opt-printed"
    lam: float | None = None
    jitter: float = 1e-6
    variance: Literal["printed", "weighted"] = "printed"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("variance", self.variance, ("printed", "weighted"))
        if self.jitter < 0 or (self.lam is not None and not self.lam > 0):
            raise ValueError(
                f"expected jitter ≥ 0 and lam > 0 (or None), got {self.jitter} and {self.lam}"
            )

    def combine(self, ensemble: Ensemble) -> Combined:
        """Solve (G + jitter·mean(diag G)·I)β = diag G."""
        require_one_prior(ensemble, self.name)
        with torch.no_grad():
            equations, inputs = self.equations(ensemble)
            G = linalg.add_diagonal(equations.G, self.jitter * equations.G.diagonal().mean())
            L = linalg.cholesky(G, "the printed Gram matrix")
            beta = linalg.cholesky_solve(L, equations.b[:, None])[:, 0]
        warn_of_large_weights(self.name, beta, 10.0)
        rule = Printed(ensemble, beta) if self.variance == "printed" else Weighted(beta)
        return WeightedCombined(
            ensemble=ensemble, noise=ensemble.noise(), weights=beta, rule=rule, central=inputs
        )

    def equations(self, ensemble: Ensemble) -> tuple[NormalEquations, torch.Tensor]:
        """G_lk = Σ_c f_l(x_c)f_k(x_c) + λ⟨f_l, f_k⟩_H and b = diag G, and the central inputs X_c."""
        central, means = ensemble.central(ensemble.size, self.seed), means_of(ensemble)
        F = means_at(means, central.X)
        inner = ensemble.map(rkhs_inner, means)
        lam = ensemble.noise().to(WIDE) if self.lam is None else self.lam
        G = F @ F.mT + lam * symmetric(inner)
        return NormalEquations(G, G.diagonal()), central.X
