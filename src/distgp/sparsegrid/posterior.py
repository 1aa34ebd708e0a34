"""The combined posterior of all grids: algorithms 1 and 2.

The grids' sparse GPs need sums over the rows alone. One pass over the rows conditions all grids; a
second one, for OptiCom, gives the normal equations of the combination's coefficients. Each pass adds
over chunks of bounded memory, and over workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp.data.scaling import Scaling
from distgp.data.shard import Shard
from distgp.engines import Placement, travels
from distgp.experts import Parameters, SparseSums
from distgp.experts.base import chunk_rows, in_chunks
from distgp.experts.sums import factorised, negative_bound
from distgp.sparsegrid.basis import Basis, basis_of
from distgp.sparsegrid.grids import Box, Combination, SparseGrid


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """The equations Gc = b of OptiCom's coefficients c, with ⟨g, h⟩ = g(X)ᵀh(X) + σ²⟨g, h⟩_H.

    G_lk = ⟨f_l, f_k⟩, or f_l(X)ᵀf_k(X) of rows alone before `penalised`; b_l = ⟨f*, f_l⟩ = yᵀf_l(X); and
    yy = yᵀy, so that ‖y − Σc_l f_l(X)‖² + σ²‖Σc_l f_l‖²_H = yy − 2cᵀb + cᵀGc, the risk that c minimises.
    Grid l's mean f_l is the projection of the full GP's mean f* onto the grid's functions, so that
    yᵀf_l(X) = ⟨f*, f_l⟩ = ‖f_l‖² = G_ll: the paper's right-hand side and the normal equations' own
    are the same.
    """

    travels_as: ClassVar[str] = "sums"
    G: Tensor
    b: Tensor
    yy: Tensor

    def __add__(self, other: NormalEquations) -> NormalEquations:
        return NormalEquations(self.G + other.G, self.b + other.b, self.yy + other.yy)

    def penalised(self, penalty: Tensor) -> NormalEquations:
        """Return the equations with σ²⟨f_l, f_k⟩_H, (b, b), added to G."""
        G = self.G + penalty
        return NormalEquations(0.5 * (G + G.mT), self.b, self.yy)

    def opticom(self) -> Tensor:
        """Find the coefficients of least risk, (b,): algorithm 1."""
        if len(self.b) == 1:
            return self.b.new_ones(1)
        return linalg.truncated_solve(self.G, self.b, self.G.diagonal())


@dataclass(frozen=True, eq=False)
class GridPosterior:
    """f given n rows: the mean combines the grids with c (b,), the variance with the CT coefficients.

    Its `factors` are L_B of each grid's sparse GP, W (m, b) the grids' means in the basis, `bounds` (b,)
    each grid's lower bound of log p(y), and `equations` those that c solves where it is OptiCom's.
    """

    parameters: Parameters
    basis: Basis
    factors: tuple[Tensor, ...]
    W: Tensor
    c: Tensor
    equations: NormalEquations | None
    bounds: Tensor
    n: Tensor

    @staticmethod
    def of(
        parameters: Parameters, basis: Basis, shards: Placement[Shard], combination: Combination
    ) -> GridPosterior:
        """Condition every grid on all rows, which are read once, and combine them.

        With the `combination` "opticom" they are read a second time, for its coefficients; others take
        those of the grid itself.
        """
        with torch.no_grad():
            parameters = parameters.to(dtype=torch.float64)
            noise = parameters.noise
            sums = grid_sums(shards, basis, noise)
            found = [factorised(noise, own) for own in sums]
            bounds = [-negative_bound(noise, *pair) for pair in zip(sums, found, strict=True)]
            weights = [linalg.solve_upper(own.LB, own.c[:, None])[:, 0] for own in found]
            W, c, equations = basis.coefficients(weights), basis.grid.coefficients, None
            if combination == "opticom":
                rows = reduce(add, shards.map(_mean_products, basis, W))
                equations = rows.penalised(noise * basis.inner(W))
                c = equations.opticom()
            factors = tuple(own.LB for own in found)
            return GridPosterior(
                parameters, basis, factors, W, c, equations, torch.stack(bounds), sums[0].n
            )

    def mean(self, X: Tensor) -> Tensor:
        """Compute Σ_l c_l f_l(x) at the rows of X: one product with u(x), however many grids."""
        a = self.W @ self.c
        return torch.cat(in_chunks(lambda part: a @ self.basis.at(part), X, self.basis.entries))

    def variance(self, X: Tensor) -> Tensor:
        """Compute Σ_l c_l s_l²(x) with CT coefficients: equation (11). It may fall below `floor`."""
        return torch.cat(in_chunks(self._variance, X, self.basis.entries))

    def floor(self, X: Tensor) -> Tensor:
        """Compute kσ² / (σ² + nk): the variance that n rows would leave, were they all at x itself."""
        k, noise = self.parameters.kernel.diag(X), self.parameters.noise
        return k * noise / (noise + self.n * k)

    def covariance(self, X: Tensor) -> Tensor:
        """Compute Σ_l c_l s_l(x, x′) between all rows of X, with CT coefficients: algorithm 2."""
        with torch.no_grad():
            covariance = self.parameters.kernel(X)
            for weight, v, kept in self._grids(X):
                covariance = covariance - weight * (v.mT @ v - kept.mT @ kept)
            return 0.5 * (covariance + covariance.mT)

    def _variance(self, X: Tensor) -> Tensor:
        variance = self.parameters.kernel.diag(X)
        for weight, v, kept in self._grids(X):
            variance = variance - weight * (v.square().sum(0) - kept.square().sum(0))
        return variance

    def _grids(self, X: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Each grid's CT coefficient, v(x) and L_B⁻¹v(x): s_l² = k − ‖v‖² + ‖L_B⁻¹v‖²."""
        u = self.basis.at(X)
        for which, weight in enumerate(self.basis.grid.coefficients):
            v = self.basis.whitened(u, which)
            yield weight, v, linalg.solve_lower(self.factors[which], v)


def grid_sums(shards: Placement[Shard], basis: Basis, noise: Tensor) -> list[SparseSums]:
    """Add up what each grid's sparse GP needs of the rows: the first pass."""
    parts = shards.map(_worker_sums, basis, noise)
    return [reduce(add, own) for own in zip(*parts, strict=True)]


@travels("sums", noise="parameters")
def _worker_sums(shard: Shard, basis: Basis, noise: Tensor) -> list[SparseSums]:
    """The sums over a worker's rows, in chunks and in place: with V = σA, ΣVVᵀ, ΣVy, Σy², Σk(x, x)."""
    rows, sizes = shard.flatten(), [len(which) for which in basis.grid.members]
    VV, Vy = [noise.new_zeros(m, m) for m in sizes], [noise.new_zeros(m) for m in sizes]
    yy, prior = noise.new_zeros(()), noise.new_zeros(())
    for chunk, u, y in _in_parts(rows, basis):
        for which, total in enumerate(VV):
            V = basis.whitened(u, which)
            total.addmm_(V, V.mT)
            Vy[which].addmv_(V, y)
        yy += y.square().sum()
        diagonal = basis.kernel.diag(chunk.X.to(torch.float64))
        prior += (diagonal if chunk.mask is None else diagonal * chunk.mask).sum()
    n = rows.sizes.to(torch.float64)
    return [
        SparseSums(AAt=a.div_(noise), Ay=b.div_(noise.sqrt()), yy=yy, trace=prior / noise, n=n)
        for a, b in zip(VV, Vy, strict=True)
    ]


@travels("sums", W="means")
def _mean_products(shard: Shard, basis: Basis, W: Tensor) -> NormalEquations:
    """The products of the grids' means F = WᵀU on a worker's rows, FFᵀ and Fy: the second pass."""
    b = W.shape[1]
    FF, Fy, yy = W.new_zeros(b, b), W.new_zeros(b), W.new_zeros(())
    for _, u, y in _in_parts(shard.flatten(), basis):
        F = W.mT @ u
        FF.addmm_(F, F.mT)
        Fy.addmv_(F, y)
        yy += y.square().sum()
    return NormalEquations(FF, Fy, yy)


def _in_parts(rows: Shard, basis: Basis) -> Iterator[tuple[Shard, Tensor, Tensor]]:
    """Chunks of a worker's rows, with u and y at them, in float64; 0 in padding."""
    for chunk in rows.chunks(chunk_rows(basis.entries, rows.X.device)):
        u, y = basis.at(chunk.X.to(torch.float64)), chunk.y.to(torch.float64)
        if chunk.mask is not None:
            u, y = u * chunk.mask, y * chunk.mask
        yield chunk, u, y


GAIN = 1e-3
"""Nats per row by which the bound must rise to make a higher level worth while."""


class VarianceWarning(UserWarning):
    """The combination's variance fell below its lower bound, and was set to it."""


def condition(
    parameters: Parameters,
    shards: Placement[Shard],
    box: Box,
    level: int,
    combination: Combination,
    boundary: bool = False,
) -> GridPosterior:
    """Condition the grids of a sparse grid, or with "full" itself, on all rows, and combine them."""
    grid = SparseGrid.of(level, box.d, boundary).to(box.lower.device)
    basis = basis_of(parameters.kernel, grid.whole() if combination == "full" else grid, box)
    return GridPosterior.of(parameters, basis, shards, combination)


def choose_level(
    parameters: Parameters,
    shards: Placement[Shard],
    box: Box,
    highest: int,
    boundary: bool = False,
) -> int:
    """Find the level after which the bound of the whole sparse grid gains less than 0.001 nats per row."""
    best = -float("inf")
    for level in range(1, highest + 1):
        posterior = condition(parameters, shards, box, level, "full", boundary)
        bound = float(posterior.bounds[0] / posterior.n)
        if bound < best + GAIN and level > 2:
            return level - 1
        best = max(best, bound)
    return highest


@dataclass(frozen=True, eq=False)
class SparseGridModel:
    """The model of one target, which predicts in the target's units; its box is in standardised ones."""

    scaling: Scaling
    box: Box
    posterior: GridPosterior
    training: Any  # sparse grids know nothing of training, and only hand its result on, if any

    @property
    def parameters(self) -> Parameters:
        """Kernel and noise."""
        return self.posterior.parameters

    def gathered(self) -> SparseGridModel:
        """Return the model itself: workers hold rows alone, and all else is in this process."""
        return self

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Predict the mean alone."""
        return self.scaling.mean(self.posterior.mean(self._inputs(X)), X)

    def predict(self, X: np.ndarray, latent: bool) -> tuple[np.ndarray, np.ndarray, int]:
        """Predict mean and variance of y, or of the latent f, and count the variances floored."""
        inputs = self._inputs(X)
        variance, floored = self._floored(self.posterior.variance(inputs), inputs)
        if not latent:
            variance = variance + self.parameters.noise
        return self.mean(X), self.scaling.variance(variance), floored

    def covariance(self, X: np.ndarray, latent: bool) -> tuple[np.ndarray, np.ndarray, int]:
        """Predict mean and covariance between the rows of X, its diagonal floored as the variance is."""
        inputs = self._inputs(X)
        covariance = self.posterior.covariance(inputs)
        diagonal = covariance.diagonal()
        variance, floored = self._floored(diagonal, inputs)
        lifted = variance - diagonal + (0.0 if latent else self.parameters.noise)
        covariance = linalg.add_diagonal(covariance, lifted)
        return self.mean(X), self.scaling.variance(covariance), floored

    def _floored(self, variance: Tensor, inputs: Tensor) -> tuple[Tensor, int]:
        floor = self.posterior.floor(inputs)
        return torch.maximum(variance, floor), int((variance < floor).sum())

    def _inputs(self, X: np.ndarray) -> Tensor:
        return self.scaling.inputs(X, self.parameters.noise)
