"""Exact search for nearest rows, among all rows or among those that come before in an order.

Neighbours *before* row i are found in the shortest prefix of 2^j rows that holds them all: at least half
of it comes before i, so that little more than 2k of its nearest rows contain k that do, and where they
do not the search is repeated with twice as many.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from threading import Event
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial import KDTree
from torch import Tensor

from distgp._util.threads import blas_threads, on_threads
from distgp.data.boxes import dtype_of_products, nearest_in_boxes
from distgp.data.scan import LARGEST, Scan, rounding

TREE_COLUMNS = 16
"""Coordinates up to which a k-d tree on the CPU is faster than the distance matrix (30,000 rows)."""
SCANNED_ROWS = 40
"""Rows, for each coordinate of each neighbour, up to which looking at all of them is faster than a tree."""
LEAF = 64
"""Rows of a tree's leaves."""
BOXED_COLUMNS, BOXED_PAIRS, BOXED_ROWS = 6, 10**11, 2**16
"""On a GPU boxes of rows are faster than the distance matrix for few coordinates and so many pairs, among
so many rows: 7 times for 4 coordinates and 10⁶ rows. With 8 all boxes are near, and they are slower."""
BLOCK = {"cpu": 2**19, "cuda": 2**27}
"""Entries of the distance matrix, in float64, that are held at a time; twice as many in float32."""
SMALLEST_PREFIX = 512  # rows in the shortest prefix: searching among so few costs nothing
SPARE = 8  # rows beyond those wanted that are looked at, since distances have rounding errors
SMALLEST_GROUP = 4  # entries of the groups whose smallest are compared first
TIE = 1e-7  # the part of a unit by which coordinates are moved, so that distances differ


def without_ties(coordinates: Tensor, priority: Tensor) -> Tensor:
    """Move every row (n, q) by a tiny amount that depends on its priority alone, a random 64-bit integer.

    Otherwise rows at equal distances would be taken in an order that depends on the kind of search.
    """
    column = torch.arange(1, coordinates.shape[-1] + 1, device=coordinates.device)
    mixed = (priority[:, None] ^ (priority[:, None] >> 29)) * (2 * column + 0x5851F42D) + column
    share = ((mixed >> 20) & ((1 << 40) - 1)).to(torch.float64) / (1 << 40)
    return coordinates.to(torch.float64) + TIE * (share - 0.5)


class Search(ABC):
    """A search structure over rows (n, q) in a fixed order, in which "before" is meant."""

    def __init__(self, coordinates: Tensor) -> None:
        self.coordinates = coordinates

    def __len__(self) -> int:
        return len(self.coordinates)

    def nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the k nearest rows of every query, as `nearest_before` does among all rows."""
        before = torch.full((len(queries),), len(self), device=queries.device)
        return self.nearest_before(queries, before, k)

    @abstractmethod
    def nearest_before(self, queries: Tensor, before: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the k nearest rows of every query (N, q) among those before a place in the order.

        Row j may be a neighbour of query i if j < before[i]. Returned are the squared distances, (N, k),
        in increasing order, and the rows' places in the order; infinity and -1 where there is no row.
        """

    def _by_blocks(
        self,
        search: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        queries: Tensor,
        before: Tensor,
        k: int,
        entries: int,
        held: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Search for some queries at a time, so that so many pairs of them and rows are held at most.

        No more numbers are held for them either, `held` for each: the coordinates of the rows found, unless
        the search says otherwise. They are taken in the order of their places, so that rows after all of a
        block's need no look.
        """
        order = before.argsort()
        if held is None:
            held = min(k + SPARE, len(self)) * self.coordinates.shape[-1]
        sizes = _sizes(before[order].tolist(), entries, held)
        parts = [(queries[some], before[some]) for some in order.split(sizes)]
        together = on_threads if queries.device.type == "cpu" else map  # a GPU needs no threads
        found = list(together(lambda part: search(*part), parts))
        square, index = (torch.cat(part)[order.argsort()] for part in zip(*found, strict=True))
        index = torch.where(torch.isfinite(square), index, -1)
        fewer = (0, k - square.shape[-1])
        return F.pad(square, fewer, value=torch.inf), F.pad(index, fewer, value=-1)


class Neighbors(Search):
    """A search by the Euclidean distance of coordinates in float64."""

    def __init__(self, coordinates: Tensor) -> None:
        super().__init__(coordinates)
        self._trees: dict[int, tuple[Any, np.ndarray]] = {}

    def nearest_before(self, queries: Tensor, before: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the nearest rows by a tree, boxes or blocks of the distance matrix, whichever is fastest."""
        if k == 0 or not len(queries) or not len(self):
            shape = (len(queries), k)
            index = torch.full(shape, -1, device=queries.device)
            return torch.full(shape, torch.inf, dtype=torch.float64, device=queries.device), index
        queries = queries.to(torch.float64)
        columns, on_gpu = self.coordinates.shape[-1], queries.device.type == "cuda"
        if on_gpu and columns <= BOXED_COLUMNS and len(queries) * len(self) >= BOXED_PAIRS:
            return self._box_search(queries, before, k)
        if on_gpu:
            return self._block_search(queries, before, k, dtype_of_products(queries.device))
        if columns > TREE_COLUMNS or len(self) <= SCANNED_ROWS * columns * k:
            return self._scan_search(queries, before, k)
        return self._tree_search(queries.numpy(), before.numpy(), k)

    def _box_search(self, queries: Tensor, before: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Search the boxes of the shortest prefix of 2^j rows that holds all rows allowed."""
        square = queries.new_full((len(queries), k), torch.inf)
        index = torch.full((len(queries), k), -1, device=queries.device)
        lengths = _prefixes(before, BOXED_ROWS // 2, len(self))
        for length in lengths.unique().tolist():
            which = (lengths == length).nonzero()[:, 0]
            if length >= BOXED_ROWS:
                some = (self.coordinates[:length], queries[which], before[which], k)
                square[which], index[which] = nearest_in_boxes(*some)
                which = which[index[which, 0] < 0]  # fewer than k were near
            if len(which):
                some = (queries[which], before[which], k, dtype_of_products(queries.device))
                square[which], index[which] = self._block_search(*some)
        return square, index

    def _scan_search(self, queries: Tensor, before: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Search blocks of the distance matrix in float32, and again in float64 where that may matter.

        Where one block has too many rows that are as near, those after it may too: a tree searches them.
        """
        scan, kept, crowded = self._scan, min(k, len(self)), Event()

        def search(part: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
            found = None if crowded.is_set() else scan.nearest(part, limit, kept)
            if found is not None:
                return found
            if self.coordinates.shape[-1] > TREE_COLUMNS:
                return self._block_search(part, limit, kept)
            crowded.set()
            return self._tree_search(part.numpy(), limit.numpy(), kept)

        with blas_threads(1):  # entries are of half the width
            return self._by_blocks(search, queries, before, k, 2 * BLOCK["cpu"], held=0)

    @cached_property
    def _scan(self) -> Scan:
        return Scan.of(self.coordinates)

    def _block_search(
        self, queries: Tensor, before: Tensor, k: int, dtype: torch.dtype = torch.float64
    ) -> tuple[Tensor, Tensor]:
        """Search blocks of the distance matrix, rows that come too late masked out.

        Products in float32 take half the time; queries of which rounding may have hidden a nearest row
        are searched again in float64. Where these are most of a block, so they are of those after it.
        """
        # Distances by matrix products have rounding errors, so a few rows more than wanted are taken, and
        # put in order by their differences.
        n = len(self)
        kept, taken = min(k, n), min(k + SPARE, n)
        centre = self.coordinates.median(0).values
        rows, place = self.coordinates - centre, torch.arange(n, device=self.coordinates.device)
        norms = rows.square().sum(-1, keepdim=True)
        if max(norms.max(), (queries - centre).square().sum(-1).max()) > LARGEST:
            dtype = torch.float64
        # One product for −2xᵀr + ‖r‖²: to add the norms would be another pass over the block.
        table, crowded = torch.cat([-2.0 * rows, norms], -1).mT.contiguous(), Event()
        rough = table.to(dtype)

        def search(part: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
            first, last = int(limit.min()), max(taken, int(limit.max()))
            points, right = part - centre, table if crowded.is_set() else rough
            block = F.pad(points, (0, 1), value=1.0).to(right.dtype) @ right[:, :last]
            block[:, first:].masked_fill_(place[first:last] >= limit[:, None], torch.inf)
            value, index = smallest(block, taken)
            square = (points[:, None, :] - rows[index]).square_().sum(-1)
            square = torch.where(torch.isfinite(value), square, torch.inf)
            square, order = square.topk(kept, -1, largest=False)
            if right.dtype != torch.float64 and taken < last:
                hidden = _hidden(points, square[:, -1], value)
                square[hidden] = torch.nan
                if 2 * int(hidden.sum()) > len(hidden):
                    crowded.set()
            return square, index.gather(-1, order)

        entries = BLOCK[queries.device.type] * 8 // rough.itemsize
        square, index = self._by_blocks(search, queries, before, k, entries)
        if len(again := square.isnan().any(-1).nonzero()[:, 0]):
            square[again], index[again] = self._block_search(queries[again], before[again], k)
        return square, index

    def _tree_search(self, points: np.ndarray, limits: np.ndarray, k: int) -> tuple[Tensor, Tensor]:
        """Search the tree of the shortest prefix of 2^j rows that holds all rows allowed."""
        n, distance = len(self), np.full((len(points), k), np.inf)
        index = np.full((len(points), k), -1, dtype=np.int64)
        lengths = _prefixes(torch.from_numpy(limits), SMALLEST_PREFIX, n).numpy()
        for length in np.unique(lengths):
            which = np.flatnonzero(lengths == length)
            (tree, order), asked = self._tree(int(length)), k
            if (limits[which] < length).any():
                asked = int(2.2 * k) + 8
            while len(which):
                asked = min(asked, int(length))
                ranks, threads = np.arange(1, asked + 1), torch.get_num_threads()
                found, place = tree.query(points[which], ranks, workers=threads)
                given = (found, order[place], limits[which])
                done, best, at = _first_allowed(*given, k, asked == length)
                distance[which[done], : best.shape[1]] = best[done]
                index[which[done], : at.shape[1]] = at[done]
                which, asked = which[~done], 2 * asked
        return torch.from_numpy(np.square(distance)), torch.from_numpy(index)

    def _tree(self, length: int) -> tuple[Any, np.ndarray]:
        """Return the tree of the first rows, built when it is first asked for, and their order in it."""
        if length not in self._trees:
            rows = self.coordinates[:length].cpu().numpy()
            # Of rows in the order of a first tree's leaves, so that those of a leaf lie side by side.
            order = _tree_of(rows).indices
            self._trees[length] = _tree_of(rows[order]), order
        return self._trees[length]


def _prefixes(limits: Tensor, least: int, n: int) -> Tensor:
    """Lengths of the shortest prefixes of 2^j rows, `least` or more and n at most, that hold so many."""
    powers = limits.clamp(least, n).double().log2().ceil()
    return (2.0**powers).long().clamp_max(n)


def _tree_of(rows: np.ndarray) -> Any:
    """Split in the middle of a cell, not at a median: built 5 times faster, as fast to ask."""
    return KDTree(rows, leafsize=LEAF, balanced_tree=False, compact_nodes=False)


def _hidden(points: Tensor, kth: Tensor, value: Tensor) -> Tensor:
    """Whether a row that was not taken may be nearer than the k-th of those that were.

    Such a row's −2xᵀr + ‖r‖², as computed, would be no less than the largest of the values taken.
    """
    norm = points.square().sum(-1)
    return kth - norm + rounding(norm, kth, points.shape[-1], value.dtype) > value.amax(-1)


def smallest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k smallest entries of each row (N, n), in no order, and their places.

    They lie in the k groups whose smallest entries are smallest: fewer than k entries are smaller than
    one of them, and so are fewer than k groups' smallest. With g entries in a group, only n / g + gk
    entries have to be put in order, which takes far longer than to find the smallest of a group.
    """
    n = values.shape[-1]
    g = int(math.sqrt(n / k)) if k else 0
    if g < SMALLEST_GROUP:
        return values.topk(k, -1, largest=False, sorted=False)
    groups = n // g
    least = values[:, : g * groups].unflatten(-1, (g, groups)).amin(1)
    chosen = least.topk(k, -1, largest=False, sorted=False).indices
    start = groups * torch.arange(g, device=values.device)
    rest = torch.arange(g * groups, n, device=values.device).expand(len(values), -1)
    place = torch.cat([(chosen[:, None, :] + start[:, None]).flatten(1), rest], -1)
    value, order = values.gather(-1, place).topk(k, -1, largest=False, sorted=False)
    return value, place.gather(-1, order)


class CorrelationNeighbors(Search):
    """A search by 1 − |k(x, x′)| / √(k(x, x) k(x′, x′)), (N, n), for kernels without coordinates.

    Where correlations are equal, the rows' priorities decide.
    """

    def __init__(
        self, correlation: Callable[[Tensor, Tensor], Tensor], X: Tensor, priority: Tensor
    ) -> None:
        super().__init__(X)
        self.correlation = correlation
        self._tie = 1e-9 * ((priority >> 1).to(torch.float64) / float(1 << 62))

    def nearest_before(self, queries: Tensor, before: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the nearest rows by blocks of the correlation matrix."""
        n, kept = len(self), min(k, len(self))
        place = torch.arange(n, device=queries.device)

        def search(part: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
            last = max(kept, int(limit.max()))
            far = 1.0 - self.correlation(part, self.coordinates[:last]) + self._tie[:last]
            far = torch.where(place[:last] < limit[:, None], far, torch.inf)
            value, index = smallest(far, kept)
            value, order = value.sort(-1)
            return value, index.gather(-1, order)

        return self._by_blocks(search, queries, before, k, BLOCK[queries.device.type])


def _sizes(limits: list[int], block: int, least: int) -> list[int]:
    """Divide queries, by the increasing numbers of rows that they may see, into blocks of so many pairs."""
    sizes, done, most = [], 0, len(limits)
    while done < most:
        size = 1 + block // max(1, least, limits[done])  # too many where the others see more
        size = block // max(1, least, limits[min(most, done + size) - 1])
        sizes.append(min(max(1, size), most - done))
        done += sizes[-1]
    return sizes


def _first_allowed(
    distance: np.ndarray, index: np.ndarray, limits: np.ndarray, k: int, all_rows: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tell which queries have k allowed rows among those found, sorted by distance, and the first k."""
    allowed = index < limits[:, None]
    done = (allowed.sum(-1) >= np.minimum(limits, k)) | all_rows
    order = np.argsort(~allowed, axis=-1, kind="stable")[:, :k]
    best = np.take_along_axis(distance, order, -1)
    at = np.take_along_axis(index, order, -1)
    late = ~np.take_along_axis(allowed, order, -1)
    best[late], at[late] = np.inf, -1
    return done, best, at
