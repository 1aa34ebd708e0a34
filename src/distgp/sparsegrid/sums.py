"""What the rows contribute: sums, added over chunks and over workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import ClassVar

import torch
from torch import Tensor

from distgp.experts import SparseSums, base
from distgp.shards import Shard
from distgp.sparsegrid.basis import Basis
from distgp.workers import ShardGroup, Workers


@dataclass(frozen=True, eq=False)
class GridSums:
    """One entry a grid."""

    travels_as: ClassVar[str] = "sums"
    VV: tuple[Tensor, ...]
    """ΣvvT of each grid, (m_l, m_l)."""
    Vy: tuple[Tensor, ...]
    """Σvy of each grid, (m_l,)."""
    yy: Tensor
    prior: Tensor
    """Σk(x, x)."""
    n: Tensor

    def __add__(self, other: GridSums) -> GridSums:
        return GridSums(
            tuple(a + b for a, b in zip(self.VV, other.VV, strict=True)),
            tuple(a + b for a, b in zip(self.Vy, other.Vy, strict=True)),
            self.yy + other.yy,
            self.prior + other.prior,
            self.n + other.n,
        )

    def of_grid(self, which: int, noise: Tensor) -> SparseSums:
        """The sums of one grid's sparse GP."""
        return SparseSums(
            AAt=self.VV[which] / noise,
            Ay=self.Vy[which] / noise.sqrt(),
            yy=self.yy,
            trace=self.prior / noise,
            n=self.n,
        )


@dataclass(frozen=True, eq=False)
class MeanSums:
    """F = the grids' means on the rows: FᵀF (b, b) and Fᵀy (b,)."""

    travels_as: ClassVar[str] = "sums"
    FF: Tensor
    Fy: Tensor

    def __add__(self, other: MeanSums) -> MeanSums:
        return MeanSums(self.FF + other.FF, self.Fy + other.Fy)


def grid_sums(workers: Workers, basis: Basis) -> GridSums:
    """The first pass over all rows."""
    return reduce(add, workers.map(_group_sums, basis))


def mean_sums(workers: Workers, basis: Basis, W: Tensor) -> MeanSums:
    """The second pass, with the coefficients that came of the first."""
    return reduce(add, workers.map(_group_means, basis, W))


def _group_sums(group: ShardGroup, basis: Basis) -> GridSums:
    """In chunks of bounded memory, added in place."""
    rows = group.shards.flatten()
    wide = {"dtype": torch.float64, "device": rows.X.device}
    sizes = [len(which) for which in basis.grid.members]
    VV = tuple(torch.zeros(m, m, **wide) for m in sizes)
    Vy = tuple(torch.zeros(m, **wide) for m in sizes)
    yy, prior = torch.zeros((), **wide), torch.zeros((), **wide)
    for chunk in rows.chunks(base.chunk_rows(basis.columns, rows.X.device)):
        u, y = _at_rows(basis, chunk)
        for which, total in enumerate(VV):
            V = basis.whitened(u, which)
            total.addmm_(V, V.mT)
            Vy[which].addmv_(V, y)
        yy += y.square().sum()
        diagonal = basis.kernel.diag(chunk.X.to(torch.float64))
        prior += (diagonal if chunk.mask is None else diagonal * chunk.mask).sum()
    return GridSums(VV, Vy, yy, prior, rows.sizes.to(torch.float64))


def _group_means(group: ShardGroup, basis: Basis, W: Tensor) -> MeanSums:
    rows = group.shards.flatten()
    FF, Fy = W.new_zeros(W.shape[1], W.shape[1]), W.new_zeros(W.shape[1])
    for chunk in rows.chunks(base.chunk_rows(basis.columns, rows.X.device)):
        u, y = _at_rows(basis, chunk)
        F = W.mT @ u
        FF.addmm_(F, F.mT)
        Fy.addmv_(F, y)
    return MeanSums(FF, Fy)


def _at_rows(basis: Basis, chunk: Shard) -> tuple[Tensor, Tensor]:
    """u and y at the rows of a chunk; 0 in padding."""
    u, y = basis.at(chunk.X.to(torch.float64)), chunk.y.to(torch.float64)
    if chunk.mask is None:
        return u, y
    return u * chunk.mask, y * chunk.mask
