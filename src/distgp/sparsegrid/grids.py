"""Sparse grids as sets of points, and the grids that make them up.

The points of an axis are ordered by level: first those of level 1, then those that level 2 adds, and so
on. Level l of an axis is then its first points, and a grid Ω_l is made of whole blocks, one for each
k ≤ l: the points that k adds. So no point is ever looked up.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distgp.sparsegrid.indices import (
    axis_increment,
    axis_size,
    check,
    combination_coefficients,
    compositions,
    index_set,
)


def axis(level: int, boundary: bool = False) -> Tensor:
    """The points of one-dimensional level l in [0, 1], those of lower levels first."""
    check(level, 1)
    first = [0.5, 0.0, 1.0] if boundary else [0.5]
    parts = [torch.arange(1, 2**k, 2, dtype=torch.float64) / 2**k for k in range(2, level + 1)]
    return torch.cat([torch.tensor(first, dtype=torch.float64), *parts])


@dataclass(frozen=True, eq=False)
class Box:
    """[lower_j, upper_j] in each column."""

    lower: Tensor
    upper: Tensor

    @staticmethod
    def of(bounds: Any, d: int) -> Box:
        """From (d, 2) bounds, or two numbers for every column."""
        values = np.asarray(bounds, dtype=np.float64)
        if values.shape not in ((d, 2), (2,)) or not np.isfinite(values).all():
            raise ValueError(
                f"a box needs finite lower and upper bounds, shape ({d}, 2) or two numbers for all "
                f"columns, got shape {values.shape}"
            )
        values = np.broadcast_to(values, (d, 2))
        if not (values[:, 0] < values[:, 1]).all():
            raise ValueError(f"a box needs lower < upper in every column, got {values.tolist()}")
        lower, upper = torch.tensor(values.T.copy(), dtype=torch.float64)
        return Box(lower, upper)

    @property
    def d(self) -> int:
        """Columns."""
        return len(self.lower)

    def axis(self, column: int, level: int, boundary: bool) -> Tensor:
        """The points of a level in one column."""
        low, high = self.lower[column], self.upper[column]
        return low + (high - low) * axis(level, boundary).to(low)


@dataclass(frozen=True, eq=False)
class SparseGrid:
    """Ω_η^d: its points as positions on the axes, and which of them each grid Ω_l holds."""

    level: int
    boundary: bool
    positions: Tensor
    """(m, d): for each point and column, the place among the axis' points."""
    levels: Tensor
    """(b, d): the grids; all 0 for the sparse grid itself as the only one."""
    coefficients: Tensor
    """(b,): the classical combination coefficients."""
    members: tuple[Tensor, ...]
    """For each grid, which of the m points are its own."""

    @staticmethod
    def of(level: int, d: int, boundary: bool = False) -> SparseGrid:
        """All grids of the index set I(η, d)."""
        check(level, d)
        blocks: dict[tuple[int, ...], Tensor] = {}
        parts, start = [], 0
        for total in range(d, level + d):
            for block in compositions(total, d):
                positions = _block(block, boundary)
                blocks[block] = torch.arange(start, start + len(positions))
                parts.append(positions)
                start += len(positions)
        levels = index_set(level, d)
        return SparseGrid(
            level,
            boundary,
            torch.cat(parts),
            levels,
            combination_coefficients(levels, level),
            tuple(_members(tuple(index), blocks) for index in levels.tolist()),
        )

    def whole(self) -> SparseGrid:
        """The same points as one grid."""
        return SparseGrid(
            self.level,
            self.boundary,
            self.positions,
            torch.zeros_like(self.levels[:1]),
            torch.ones_like(self.coefficients[:1]),
            (torch.arange(len(self.positions), device=self.positions.device),),
        )

    def points(self, box: Box) -> Tensor:
        """The m points in a box, (m, d)."""
        axes = [box.axis(j, self.level, self.boundary) for j in range(box.d)]
        return torch.stack([axes[j][self.positions[:, j]] for j in range(box.d)], -1)

    def to(self, device: torch.device | str) -> SparseGrid:
        """The same sparse grid elsewhere."""
        return SparseGrid(
            self.level,
            self.boundary,
            self.positions.to(device),
            self.levels.to(device),
            self.coefficients.to(device),
            tuple(which.to(device) for which in self.members),
        )


def grid(levels: Sequence[int], box: Box, boundary: bool = False) -> Tensor:
    """The points of one grid Ω_l in a box, (m_l, d)."""
    if len(levels) != box.d:
        raise ValueError(f"a grid in {box.d} columns needs {box.d} levels, got {tuple(levels)}")
    axes = [box.axis(j, int(level), boundary) for j, level in enumerate(levels)]
    return torch.cartesian_prod(*axes).reshape(-1, box.d)


def sparse_grid(level: int, box: Box, boundary: bool = False) -> Tensor:
    """The points of the sparse grid Ω_η^d in a box, (m, d)."""
    return SparseGrid.of(level, box.d, boundary).points(box)


def _block(block: tuple[int, ...], boundary: bool) -> Tensor:
    """The positions that block k adds: on every axis those of level k_j and of no lower one."""
    ranges = []
    for level in block:
        new = axis_increment(level, boundary)
        size = axis_size(level, boundary)
        ranges.append(torch.arange(size - new, size))
    return torch.cartesian_prod(*ranges).reshape(-1, len(block))


def _members(index: tuple[int, ...], blocks: dict[tuple[int, ...], Tensor]) -> Tensor:
    below = itertools.product(*(range(1, level + 1) for level in index))
    return torch.cat([blocks[block] for block in below])
