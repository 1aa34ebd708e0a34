"""Exact search for nearest rows on a CPU by looking at all of them, first in float32.

Squared distances come from one product in float32, which is fast and rounds. The k rows that seem nearest
give a distance within which k rows certainly lie; all rows that may lie within it, whatever was rounded,
are looked at again in float64. They are a few more than k.

With coordinates that begin at the rows' middle, the product gives s ≈ ‖x − r‖² − ‖x‖², wrong by at most
c(‖x‖² + ‖r‖²). Let ρ be s + ‖x‖² of the k-th row. Rows that are no farther than ρ have
‖r‖² ≤ 2‖x‖² + 2ρ, so that s is wrong by at most E = c(3‖x‖² + 2ρ) for each of the k rows and for each
that is nearer than one of these: none of them has more than s_k + 2E.

A sum of q + 1 products, of numbers that were rounded first, is wrong by (q + 4)u of the sum of their
absolute values, with u half of float32's ε. That is ‖x‖² + 2‖r‖² at most, so that c = (q + 4)ε would do
to first order in ε; 4ε more make up for the rest. Numbers below float32's smallest normal number t
may become 0, an error that ε does not bound. For coordinates up to 1 each product, of two such numbers
and itself rounded, is wrong by 4t at most because of it, and so E has 4(q + 8)t more; for larger ones the
bound above, with ε far above t, has room for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

GROUPS, FEWEST_GROUPS = 4, 512
"""Groups of rows whose smallest distances are compared to find the k-th: so many for each neighbour, and
at least. With more of them fewer rows are looked at again, with fewer the comparison is faster."""
LARGEST = 1e30
"""The largest squared norm that float32 has room for, with all its products."""
MOST_AGAIN = 2**20
"""Coordinates of rows that are looked at again at a time: more where thousands of rows are the same."""


@dataclass(frozen=True, eq=False)
class Scan:
    """Rows (n, q) to look for, measured from their middle."""

    centre: Tensor
    rows: Tensor
    table: Tensor  # (q + 1, n): −2r and ‖r‖²

    @staticmethod
    def of(rows: Tensor) -> Scan:
        """Find the middle, and what products need."""
        centre = rows.median(0).values
        rows = rows - centre
        norm = rows.square().sum(-1, keepdim=True)
        dtype = torch.float32 if bool(norm.max() < LARGEST) else torch.float64
        table = torch.cat([-2.0 * rows, norm], -1).to(dtype)
        return Scan(centre, rows, table.mT.contiguous())

    def queries_at_once(self, k: int) -> int:
        """The number of queries for which it is not too much to look again at 2k rows each."""
        return max(1, MOST_AGAIN // (2 * k * max(1, self.rows.shape[1])))

    def nearest(self, queries: Tensor, limit: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
        """Find the k nearest of the first limit[i] rows to every query i, k at most all rows.

        Returned are squared distances in increasing order, infinite where there are fewer, and places;
        None where too many rows are about as near as the k-th.
        """
        points = queries - self.centre
        norm = points.square().sum(-1)
        if not bool(norm.max() < LARGEST):
            return None
        near = self._products(points, limit, k)
        within = self._within(near, norm, k)
        size, found = self.queries_at_once(k), []
        for start in range(0, len(points), size):
            some = slice(start, start + size)
            part = self._again(points[some], near[some], within[some], k)
            if part is None:
                return None
            found.append(part)
        square, place = zip(*found, strict=True)
        return torch.cat(square), torch.cat(place)

    def _again(
        self, points: Tensor, near: Tensor, within: Tensor, k: int
    ) -> tuple[Tensor, Tensor] | None:
        """Find the k nearest of the rows that may be within a distance; None where these are too many."""
        last = near.shape[1]
        flat = np.flatnonzero(near.numpy() <= within.numpy()[:, None])
        if len(flat) * points.shape[1] > MOST_AGAIN:
            return None
        query = flat // last
        place = flat - query * last
        apart = np.take(self.rows.numpy(), place, axis=0)
        apart -= np.take(points.numpy(), query, axis=0)
        return _in_order(query, place, np.einsum("ij,ij->i", apart, apart), (len(points), k))

    def _products(self, points: Tensor, limit: Tensor, k: int) -> Tensor:
        """‖x − r‖² − ‖x‖² for all rows that one of the points may have; infinite where another may not."""
        first, last = int(limit.min()), max(k, int(limit.max()))
        left = F.pad(points, (0, 1), value=1.0).to(self.table.dtype)
        # By NumPy: PyTorch may have been told to compute products with fewer digits.
        near = torch.from_numpy(left.numpy() @ self.table[:, :last].numpy())
        late = torch.arange(first, last) >= limit[:, None]
        near[:, first:].masked_fill_(late, torch.inf)
        return near

    def _within(self, near: Tensor, norm: Tensor, k: int) -> Tensor:
        """s_k + 2E for every point, where s_k is no less than the k-th smallest of its entries.

        It is the k-th of the smallest entries of groups, of which the first k rows are in k different ones.
        """
        together = max(1, near.shape[1] // max(FEWEST_GROUPS, GROUPS * k))
        groups = near.shape[1] // together
        least = near[:, : together * groups].unflatten(-1, (together, groups)).amin(1)
        kth = torch.from_numpy(np.partition(least.numpy(), k - 1, axis=-1)[:, k - 1]).double()
        square = (kth + norm).clamp_min(0.0)
        wrong = rounding(norm, square, self.rows.shape[1], near.dtype)
        return (kth + 2.0 * wrong).clamp_max(torch.finfo(near.dtype).max).to(near.dtype)


def rounding(norm: Tensor, square: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """E: by how much ‖x − r‖² − ‖x‖² is wrong at most for rows r within √square of a point x."""
    digits, terms = torch.finfo(dtype), columns + 8
    return terms * digits.eps * (3.0 * norm + 2.0 * square) + 4.0 * terms * digits.tiny


def _in_order(
    query: np.ndarray, place: np.ndarray, square: np.ndarray, shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Put the rows found for each query, which are together, in the order of their distances."""
    count = np.bincount(query, minlength=shape[0])
    width = max(shape[1], int(count.max()))
    start = np.arange(shape[0]) * width
    at = np.arange(len(query)) + (start - (count.cumsum() - count))[query]
    table, places = np.full(shape[0] * width, np.inf), np.zeros(shape[0] * width, dtype=np.int64)
    table[at], places[at] = square, place
    order = np.argsort(table.reshape(-1, width), axis=-1)[:, : shape[1]] + start[:, None]
    return torch.from_numpy(table[order]), torch.from_numpy(places[order])
