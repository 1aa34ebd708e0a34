"""The combined posterior: algorithms 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from distgp import linalg
from distgp.experts import Parameters, base
from distgp.experts.sparse import SparseFactors, negative_bound
from distgp.sparsegrid.basis import Basis
from distgp.sparsegrid.combination import NormalEquations
from distgp.sparsegrid.sums import grid_sums, mean_sums
from distgp.workers import Workers

Combination: TypeAlias = Literal["opticom", "ct", "full"]


@dataclass(frozen=True, eq=False)
class GridPosterior:
    """f given all rows. The mean combines the grids with c, the variance with the CT coefficients."""

    parameters: Parameters
    basis: Basis
    factors: tuple[Tensor, ...]
    """L_B of each grid."""
    W: Tensor
    """Coefficients of the grids' means in the basis, (m, b)."""
    c: Tensor
    """The combination's coefficients, (b,)."""
    equations: NormalEquations | None
    """Where c is OptiCom's: what it solves."""
    bounds: Tensor
    """Each grid's lower bound of log p(y), (b,)."""
    n: Tensor

    @staticmethod
    def of(
        parameters: Parameters, basis: Basis, workers: Workers, combination: Combination
    ) -> GridPosterior:
        """Condition every grid on all rows, then combine. One pass for CT, a second for OptiCom."""
        with torch.no_grad():
            parameters = parameters.to(dtype=torch.float64)
            noise = parameters.noise
            sums = grid_sums(workers, basis)
            LB, weights, bounds = [], [], []
            for which in range(len(basis.grid.members)):
                own = sums.of_grid(which, noise)
                found = SparseFactors.of(noise, own)
                LB.append(found.LB)
                weights.append(linalg.solve_upper(found.LB, found.c[:, None])[:, 0])
                bounds.append(-negative_bound(noise, own, found))
            W, c, equations = basis.coefficients(weights), basis.grid.coefficients, None
            if combination == "opticom":
                means = mean_sums(workers, basis, W)
                G = means.FF + noise * basis.inner(W)
                equations = NormalEquations(0.5 * (G + G.mT), means.Fy, sums.yy)
                c = equations.opticom()
            return GridPosterior(
                parameters, basis, tuple(LB), W, c, equations, torch.stack(bounds), sums.n
            )

    def mean(self, X: Tensor) -> Tensor:
        """Σ_l c_l f_l(x): one product with u(x), whatever b is."""
        a = self.W @ self.c
        with torch.no_grad():
            return torch.cat([a @ self.basis.at(part) for part in self._chunks(X)])

    def variance(self, X: Tensor) -> Tensor:
        """Σ_l c_l s_l²(x) with CT coefficients: equation (11). It may fall below what is possible."""
        with torch.no_grad():
            return torch.cat([self._variance(part) for part in self._chunks(X)])

    def floor(self, X: Tensor) -> Tensor:
        """kσ² / (σ² + nk): what n rows leave of k at the least, all of them at x itself."""
        k, noise = self.parameters.kernel.diag(X), self.parameters.noise
        return k * noise / (noise + self.n * k)

    def covariance(self, X: Tensor) -> Tensor:
        """Σ_l c_l s_l(x, x′), between all rows of X: algorithm 2."""
        with torch.no_grad():
            u = self.basis.at(X)
            covariance = self.parameters.kernel(X)
            for which, weight in enumerate(self.basis.grid.coefficients):
                v = self.basis.whitened(u, which)
                kept = linalg.solve_lower(self.factors[which], v)
                covariance = covariance - weight * (v.mT @ v - kept.mT @ kept)
            return 0.5 * (covariance + covariance.mT)

    def _variance(self, X: Tensor) -> Tensor:
        u = self.basis.at(X)
        variance = self.parameters.kernel.diag(X)
        for which, weight in enumerate(self.basis.grid.coefficients):
            v = self.basis.whitened(u, which)
            kept = linalg.solve_lower(self.factors[which], v)
            variance = variance - weight * (v.square().sum(0) - kept.square().sum(0))
        return variance

    def _chunks(self, X: Tensor) -> tuple[Tensor, ...]:
        return X.split(base.chunk_rows(self.basis.columns, X.device))
