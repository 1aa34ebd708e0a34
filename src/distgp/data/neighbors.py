"""Exact search for nearest rows, among all rows or among those that come before in an order.

Rows are points in the coordinates in which the Euclidean distance orders them by the kernel. A k-d
tree finds their neighbours where coordinates are few; elsewhere, and on a GPU, blocks of the distance
matrix do. Neighbours *before* row i are found in the shortest prefix of 2^j rows that holds them all:
at least half of such a prefix comes before i, so that little more than 2k of its nearest rows contain k
that do, and where they do not the search is repeated with twice as many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

TREE_COLUMNS = 16
"""Coordinates up to which a k-d tree on the CPU is faster than the distance matrix (30,000 rows)."""
GPU_TREE_COLUMNS, GPU_TREE_PAIRS = 6, 10**11
"""On a GPU the distance matrix is faster, except for few coordinates and so many pairs of points."""
BLOCK = {"cpu": 2**20, "cuda": 2**27}
"""Entries of the distance matrix that are held at a time."""
SMALLEST_PREFIX = 512
"""Rows before which a prefix is not made shorter: searching among so few costs nothing."""
SPARE = 8
"""Rows beyond those wanted that are looked at more closely where distances have rounding errors."""
TIE = 1e-7
"""By how much of a unit coordinates are moved, at random per row, so that no two distances are equal."""


def without_ties(coordinates: Tensor, priority: Tensor) -> Tensor:
    """Move every row by a tiny amount that depends on its priority alone.

    Rows at equal distances (duplicates, grids, categories) would otherwise be taken in an order that
    depends on how the search goes about it; so it depends on the rows.

    Parameters
    ----------
    coordinates : Tensor of shape (n, q)
        The rows.
    priority : Tensor of shape (n,)
        A pseudo-random 64-bit integer per row.

    Returns
    -------
    Tensor of shape (n, q)
    """
    column = torch.arange(1, coordinates.shape[-1] + 1, device=coordinates.device)
    mixed = (priority[:, None] ^ (priority[:, None] >> 29)) * (2 * column + 0x5851F42D) + column
    share = ((mixed >> 20) & ((1 << 40) - 1)).to(torch.float64) / (1 << 40)
    return coordinates.to(torch.float64) + TIE * (share - 0.5)


class Neighbors:
    """A search structure over rows in a fixed order.

    Parameters
    ----------
    coordinates : Tensor of shape (n, q)
        The rows, in float64, in the order in which "before" is meant.
    """

    def __init__(self, coordinates: Tensor) -> None:
        self.coordinates = coordinates
        self._trees: dict[int, KDTree] = {}

    def __len__(self) -> int:
        return len(self.coordinates)

    def nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest rows of every query.

        Parameters
        ----------
        queries : Tensor of shape (N, q)
            Points in the same coordinates.
        k : int
            How many; where there are fewer rows, all of them.

        Returns
        -------
        square : Tensor of shape (N, k)
            Squared distances, in increasing order; infinite where there is no row.
        index : Tensor of shape (N, k)
            The rows' places in the order; -1 where there is no row.
        """
        before = torch.full((len(queries),), len(self), device=queries.device)
        return self.nearest_before(queries, before, k)

    def nearest_before(self, queries: Tensor, before: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest rows of every query among those before a place in the order.

        Parameters
        ----------
        queries : Tensor of shape (N, q)
            Points in the same coordinates.
        before : Tensor of shape (N,)
            Row j may be a neighbour of query i if j < before[i].
        k : int
            How many.

        Returns
        -------
        square, index : Tensor of shape (N, k)
            As for `nearest`.
        """
        if k == 0 or not len(queries) or not len(self):
            shape = (len(queries), k)
            index = torch.full(shape, -1, device=queries.device)
            return torch.full(shape, torch.inf, dtype=torch.float64, device=queries.device), index
        queries = queries.to(torch.float64)
        if not self._by_tree(len(queries)):
            return self._block_search(queries, before, k)
        square, index = self._tree_search(queries.cpu(), before.cpu(), k)
        return square.to(queries.device), index.to(queries.device)

    def _by_tree(self, queries: int) -> bool:
        """Whether a tree on the CPU is faster: with few coordinates, and on a GPU for many pairs."""
        columns = self.coordinates.shape[-1]
        if self.coordinates.device.type == "cpu":
            return columns <= TREE_COLUMNS
        return columns <= GPU_TREE_COLUMNS and queries * len(self) >= GPU_TREE_PAIRS

    def _block_search(self, queries: Tensor, before: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """By blocks of the distance matrix, rows that come too late masked out.

        Distances by matrix products have rounding errors, so a few rows more than wanted are taken,
        and put in order by their differences.
        """
        n = len(self)
        kept, taken = min(k, n), min(k + SPARE, n)
        centre = self.coordinates.median(0).values
        rows = self.coordinates - centre
        norms, place = rows.square().sum(-1), torch.arange(n, device=rows.device)
        step = max(1, BLOCK[rows.device.type] // n)
        squares, indices = [], []
        for part, limit in zip(queries.split(step), before.split(step), strict=True):
            points = part - centre
            block = torch.addmm(norms, points, rows.mT, alpha=-2.0)
            if int(limit.min()) < n:
                block.masked_fill_(place >= limit[:, None], torch.inf)
            value, index = block.topk(taken, -1, largest=False, sorted=False)
            square = (points[:, None, :] - rows[index]).square_().sum(-1)
            square = torch.where(torch.isfinite(value), square, torch.inf)
            square, order = square.topk(kept, -1, largest=False)
            squares.append(square)
            indices.append(torch.where(torch.isfinite(square), index.gather(-1, order), -1))
        return _wide(torch.cat(squares), k, torch.inf), _wide(torch.cat(indices), k, -1)

    def _tree_search(self, queries: Tensor, before: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """By the tree of the shortest prefix of 2^j rows that holds all rows allowed."""
        points, limits, n = queries.numpy(), before.numpy(), len(self)
        square = np.full((len(points), k), np.inf)
        index = np.full((len(points), k), -1, dtype=np.int64)
        lengths = np.minimum(np.maximum(limits, SMALLEST_PREFIX), n)
        lengths = np.minimum(2 ** np.ceil(np.log2(lengths)).astype(np.int64), n)
        for length in np.unique(lengths):
            which = np.flatnonzero(lengths == length)
            tree, asked = self._tree(int(length)), k
            if (limits[which] < length).any():
                asked = int(2.2 * k) + 8
            while len(which):
                asked = min(asked, int(length))
                found = _query(tree, points[which], asked)
                done, best, at = _first_allowed(*found, limits[which], k, asked == length)
                square[which[done], : best.shape[1]] = best[done]
                index[which[done], : at.shape[1]] = at[done]
                which, asked = which[~done], 2 * asked
        return torch.from_numpy(np.square(square)), torch.from_numpy(index)

    def _tree(self, length: int) -> Any:
        """The tree of the first rows, built when it is first asked for."""
        if length not in self._trees:
            rows = self.coordinates[:length].cpu().numpy()
            # Split in the middle of a cell, not at a median: built 5 times faster, as fast to ask.
            self._trees[length] = KDTree(
                rows, leafsize=32, balanced_tree=False, compact_nodes=False
            )
        return self._trees[length]


def _query(tree: Any, points: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances and rows, (N, k) each, with as many threads as PyTorch uses."""
    distance, index = tree.query(points, k, workers=torch.get_num_threads())
    return distance.reshape(len(points), k), index.reshape(len(points), k)


def _first_allowed(
    distance: np.ndarray, index: np.ndarray, limits: np.ndarray, k: int, all_rows: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the rows found, sorted by distance, the first k allowed ones; and which queries have k."""
    allowed = index < limits[:, None]
    wanted = np.minimum(limits, k)
    done = (allowed.sum(-1) >= wanted) | all_rows
    k = min(k, index.shape[1])
    order = np.argsort(~allowed, axis=-1, kind="stable")[:, :k]
    best = np.take_along_axis(distance, order, -1)
    at = np.take_along_axis(index, order, -1)
    late = ~np.take_along_axis(allowed, order, -1)
    best[late], at[late] = np.inf, -1
    return done, best, at


def _wide(values: Tensor, k: int, fill: float) -> Tensor:
    """The values with `fill` appended along their last dimension, up to k."""
    return torch.nn.functional.pad(values, (0, k - values.shape[-1]), value=fill)


class CorrelationNeighbors:
    """The same search for kernels without coordinates: by the largest |correlation|, in blocks.

    Parameters
    ----------
    correlation : callable
        Maps points (N, d) and rows (n, d) to |k(x, x′)| / √(k(x, x) k(x′, x′)), (N, n).
    X : Tensor of shape (n, d)
        The rows, in the order in which "before" is meant.
    priority : Tensor of shape (n,)
        A pseudo-random 64-bit integer per row, which decides where correlations are equal.
    """

    def __init__(
        self, correlation: Callable[[Tensor, Tensor], Tensor], X: Tensor, priority: Tensor
    ) -> None:
        self.correlation, self.coordinates = correlation, X
        share = (priority >> 1).to(torch.float64) / float(1 << 62)
        self._tie = 1e-9 * share

    def __len__(self) -> int:
        return len(self.coordinates)

    def nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As `Neighbors.nearest`, with 1 − |correlation| in the place of squared distances."""
        before = torch.full((len(queries),), len(self), device=queries.device)
        return self.nearest_before(queries, before, k)

    def nearest_before(self, queries: Tensor, before: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As `Neighbors.nearest_before`, with 1 − |correlation| in the place of squared distances."""
        n, kept = len(self), min(k, len(self))
        place = torch.arange(n, device=queries.device)
        step = max(1, BLOCK[queries.device.type] // max(1, n))
        squares, indices = [], []
        for part, limit in zip(queries.split(step), before.split(step), strict=True):
            far = 1.0 - self.correlation(part, self.coordinates) + self._tie
            far = torch.where(place < limit[:, None], far, torch.inf)
            value, index = far.topk(kept, -1, largest=False)
            squares.append(value)
            indices.append(torch.where(torch.isfinite(value), index, -1))
        return _wide(torch.cat(squares), k, torch.inf), _wide(torch.cat(indices), k, -1)
