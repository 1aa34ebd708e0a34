"""Sparse grids as sets of points, and the regular grids that they are made of.

One-dimensional level l has the 2^l − 1 interior points i / 2^l (the paper's 2^{l−1} is a slip), or
with the boundary the 2^l + 1 points i = 0 … 2^l. The levels are nested, so the points of an axis are
ordered by level: first those of level 1, then those that level 2 adds, and so on. Level l of an axis
is then its first points, and a grid Ω_l is made of whole blocks, one for each k ≤ l: the points that
block k adds. So no point is ever looked up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

Combination: TypeAlias = Literal["opticom", "ct", "full"]
"""How the grids make one posterior: optimal coefficients, classical ones, or their union as one grid."""
HIGHEST = 1_000
"""The highest level whose size is counted at all; far lower ones are refused for want of memory."""


def check_size(level: int, d: int) -> None:
    """Raise a ValueError where there is no sparse grid of this level in d columns."""
    if not 1 <= level <= HIGHEST or d < 1:
        raise ValueError(
            f"a sparse grid needs level ≥ 1, at most {HIGHEST}, and d ≥ 1, got level {level} and d = {d}"
        )


def axis_size(level: int, boundary: bool = False) -> int:
    """Count the points of one-dimensional level l."""
    return 2**level + (1 if boundary else -1)


def axis_increment(level: int, boundary: bool = False) -> int:
    """Count the points that level l has and level l − 1 has not."""
    return axis_size(1, boundary) if level == 1 else 2 ** (level - 1)


def axis(level: int, boundary: bool = False) -> Tensor:
    """List the points of one-dimensional level l in [0, 1], those of lower levels first.

    With `boundary`, 0 and 1 are among them.

    Examples
    --------
    >>> axis(2).tolist()
    [0.5, 0.25, 0.75]
    """
    check_size(level, 1)
    coarsest = [0.5, 0.0, 1.0] if boundary else [0.5]
    finer = [torch.arange(1, 2**k, 2, dtype=torch.float64) / 2**k for k in range(2, level + 1)]
    return torch.cat([torch.tensor(coarsest, dtype=torch.float64), *finer])


def index_set(level: int, d: int) -> Tensor:
    """List the grids that equation (8) combines: I(η, d) = {l ∈ ℕ₊^d : η ≤ |l|₁ ≤ η + d − 1}.

    Parameters
    ----------
    level, d : int
        The level η of the sparse grid, and the number of columns.

    Returns
    -------
    Tensor of shape (b, d)
        The levels of each grid in every column.

    Examples
    --------
    >>> index_set(2, 2).tolist()
    [[1, 1], [1, 2], [2, 1]]
    """
    check_size(level, d)
    found = [index for total in range(max(level, d), level + d) for index in compositions(total, d)]
    return torch.tensor(found)


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """List all ways to write `total` as an ordered sum of this many positive integers."""
    for cuts in combinations(range(1, total), parts - 1):
        yield tuple(after - before for before, after in pairwise((0, *cuts, total)))


def combination_coefficients(levels: Tensor, level: int) -> Tensor:
    """Compute the coefficients (−1)^{η+d−1−|l|₁} C(d−1, |l|₁−η) of equation (8). They sum to 1.

    Parameters
    ----------
    levels : Tensor of shape (b, d)
        The grids, as `index_set` lists them.
    level : int
        The level η of the sparse grid.

    Returns
    -------
    Tensor of shape (b,)
    """
    top, above = levels.shape[-1] - 1, (levels.sum(-1) - level).tolist()
    values = [(-1.0) ** (top - more) * math.comb(top, more) for more in above]
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Box:
    """The box in which grids lie: the interval [lower_j, upper_j] in each of d columns."""

    lower: Tensor
    upper: Tensor

    @staticmethod
    def of(bounds: ArrayLike, d: int) -> Box:
        """Build a box from bounds, checked.

        Parameters
        ----------
        bounds : array-like of shape (d, 2) or (2,)
            Lower and upper bound of each column, or of all.
        d : int
            The number of columns.

        Raises
        ------
        ValueError
            Where the bounds are not finite, have another shape, or do not increase.
        """
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

    @staticmethod
    def around(X: np.ndarray) -> Box:
        """Take the range of the rows of X (n, d); a column that does not vary gets length 1."""
        low, high = X.min(0).astype(np.float64), X.max(0).astype(np.float64)
        margin = np.where(high <= low, 0.5, 0.0)
        return Box(torch.as_tensor(low - margin), torch.as_tensor(high + margin))

    @property
    def d(self) -> int:
        """The number of columns."""
        return len(self.lower)

    def axis(self, column: int, level: int, boundary: bool) -> Tensor:
        """List the points of one-dimensional level l in one column of the box."""
        low, high = self.lower[column], self.upper[column]
        return low + (high - low) * axis(level, boundary).to(low)


@dataclass(frozen=True, eq=False)
class SparseGrid:
    """A sparse grid Ω_η^d: its m points, and which of them each of its b grids Ω_l holds.

    With `boundary` there are points on the faces of the box. `positions` (m, d) tells, for each point and
    column, the place among the points of that column's axis. `levels` (b, d) names the grids, all 0 where
    the sparse grid itself is the only one, `coefficients` (b,) are the classical ones of their
    combination, and `members` the numbers of each grid's points.

    Examples
    --------
    >>> grid = SparseGrid.of(level=3, d=2)
    >>> grid.coefficients.tolist(), len(grid.positions)
    ([-1.0, -1.0, 1.0, 1.0, 1.0], 17)
    """

    level: int
    boundary: bool
    positions: Tensor
    levels: Tensor
    coefficients: Tensor
    members: tuple[Tensor, ...]

    @staticmethod
    def of(level: int, d: int, boundary: bool = False) -> SparseGrid:
        """Build the sparse grid of level η in d columns, with all grids of the index set I(η, d)."""
        check_size(level, d)
        blocks = [block for total in range(d, level + d) for block in compositions(total, d)]
        parts = [_block(block, boundary) for block in blocks]
        positions, sizes = torch.cat(parts), [len(part) for part in parts]
        places = dict(zip(blocks, torch.arange(len(positions)).split(sizes), strict=True))
        levels = index_set(level, d)
        coefficients = combination_coefficients(levels, level)
        members = tuple(_members(index, places) for index in levels.tolist())
        return SparseGrid(level, boundary, positions, levels, coefficients, members)

    def whole(self) -> SparseGrid:
        """Return the same points as one single grid."""
        return replace(
            self,
            levels=torch.zeros_like(self.levels[:1]),
            coefficients=torch.ones_like(self.coefficients[:1]),
            members=(torch.arange(len(self.positions), device=self.positions.device),),
        )

    def points(self, box: Box) -> Tensor:
        """List the m points in a box, (m, d)."""
        axes = [box.axis(j, self.level, self.boundary) for j in range(box.d)]
        return torch.stack([axes[j][self.positions[:, j]] for j in range(box.d)], -1)

    def to(self, device: torch.device | str) -> SparseGrid:
        """Return the same sparse grid on another device."""
        return replace(
            self,
            positions=self.positions.to(device),
            levels=self.levels.to(device),
            coefficients=self.coefficients.to(device),
            members=tuple(which.to(device) for which in self.members),
        )


def grid(levels: Sequence[int], box: Box, boundary: bool = False) -> Tensor:
    """List the points of one regular grid Ω_l in a box.

    Parameters
    ----------
    levels, box : sequence of int, Box
        The level l_j of each column, and where the grid lies.
    boundary : bool, default=False
        Whether it has points on the faces of the box.

    Returns
    -------
    Tensor of shape (m_l, d)
    """
    if len(levels) != box.d:
        raise ValueError(f"a grid in {box.d} columns needs {box.d} levels, got {tuple(levels)}")
    axes = [box.axis(j, int(level), boundary) for j, level in enumerate(levels)]
    return torch.cartesian_prod(*axes).reshape(-1, box.d)


def sparse_grid(level: int, box: Box, boundary: bool = False) -> Tensor:
    """List the points of the sparse grid Ω_η^d in a box, (m, d)."""
    return SparseGrid.of(level, box.d, boundary).to(box.lower.device).points(box)


def _block(block: tuple[int, ...], boundary: bool) -> Tensor:
    """The positions that block k adds: on every axis those of level k_j and of no lower one."""
    ends = [(axis_size(level, boundary), axis_increment(level, boundary)) for level in block]
    ranges = [torch.arange(size - added, size) for size, added in ends]
    return torch.cartesian_prod(*ranges).reshape(-1, len(block))


def _members(index: Sequence[int], blocks: Mapping[tuple[int, ...], Tensor]) -> Tensor:
    """The points of grid l: those of all blocks k ≤ l."""
    return torch.cat([blocks[block] for block in product(*(range(1, k + 1) for k in index))])
