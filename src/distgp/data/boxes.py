"""Exact search for the nearest rows of very many points on a GPU, by boxes of rows that lie together.

Rows and points are divided at medians, over and over, into boxes of nearly equally many. A box of points
is first compared with the boxes of rows that are nearest to it. That gives every point a distance within
which its k nearest rows must lie. Then it is compared with all boxes of rows that are near enough to hold
one of these. Only the few pairs of a point and a row within that distance are put in order.

Most distances are only compared with that distance. They are computed in float32, from coordinates that
begin at the middle of the box of points, and what rounding may have done is added to the distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

BOX = 256
"""Rows, or points, in a box, at most."""
FIRST_BOXES = 8
"""Boxes of rows that a box of points is compared with first, at least."""
FIRST_ROWS = 8
"""Rows in these boxes, at least, in units of the number of neighbours."""
BOXES_AT_ONCE = 64
"""Boxes of points that are worked on at a time."""
PAIRS_AT_ONCE = {"cpu": 32, "cuda": 2048}
"""Pairs of boxes whose points' and rows' distances are held at a time."""
ROUNDING = 2.0**-22
"""Errors of a squared distance by products in float32, per coordinate, in units of both squared norms."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """Rows (n, q) in C boxes of at most L; -1 where a box has fewer."""

    index: Tensor  # (C, L): which rows
    low: Tensor  # (C, q): the lowest coordinates of a box's rows
    high: Tensor  # (C, q): the highest

    @staticmethod
    def of(rows: Tensor) -> Boxes:
        """Halve each box at the median of its widest coordinate, until all are small."""
        n, device = len(rows), rows.device
        order, sizes = torch.arange(n, device=device), torch.tensor([n], device=device)
        box = torch.zeros_like(order)
        while int(sizes.max()) > BOX:
            low, high = _corners(rows[order], box, len(sizes))
            value = rows[order].gather(1, (high - low).argmax(-1)[box][:, None])[:, 0]
            by_value = value.argsort()
            order = order[by_value[box[by_value].argsort(stable=True)]]
            sizes = torch.stack([sizes // 2, sizes - sizes // 2], -1).flatten()
            box = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        index = torch.full((len(sizes), int(sizes.max())), -1, device=device)
        index[box, torch.arange(n, device=device) - (sizes.cumsum(0) - sizes)[box]] = order
        return Boxes(index, *_corners(rows[order], box, len(sizes)))

    def __getitem__(self, which: slice) -> Boxes:
        return Boxes(self.index[which], self.low[which], self.high[which])


def _corners(rows: Tensor, box: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The lowest and the highest coordinates of each box's rows, (count, q)."""
    at, shape = box[:, None].expand_as(rows), (count, rows.shape[-1])
    low = rows.new_full(shape, torch.inf).scatter_reduce(0, at, rows, "amin")
    return low, rows.new_full(shape, -torch.inf).scatter_reduce(0, at, rows, "amax")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows (n, q) in boxes."""

    X: Tensor
    boxes: Boxes
    dtype: torch.dtype  # of products

    @cached_property
    def table(self) -> Tensor:
        """The rows of each box side by side, (C, q, L), with NaN, which is near to nothing, for none."""
        rows = F.pad(self.X, (0, 0, 0, 1), value=torch.nan)
        return rows[self.boxes.index].mT.contiguous()

    def products(self, boxes: Tensor, middle: Tensor) -> Tensor:
        """[−2r, ‖r‖²] of each box's rows r, measured from a point of its own, (P, q + 1, L)."""
        rows = self.table.index_select(0, boxes) - middle[..., None]
        return torch.cat([-2.0 * rows, rows.square().sum(1, keepdim=True)], 1).to(self.dtype)


def dtype_of_products(device: torch.device) -> torch.dtype:
    """float32, or float64 where PyTorch was told to compute products of float32 with fewer digits."""
    probe = torch.full((1, 64, 64), 1.0 + 2.0**-12, device=device)
    precise = float(torch.bmm(probe, probe)[0, 0, 0]) > 64.0 * (1.0 + 2.0**-11.1)
    return torch.float32 if precise else torch.float64


def nearest_in_boxes(rows: Tensor, points: Tensor, limit: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k nearest of the first limit[i] rows (n, q) to every point i of (N, q).

    Returned are squared distances (N, k) in increasing order, and places; infinity and -1 in all places of
    a point for which the boxes nearest to it hold fewer than k such rows.
    """
    among, boxes = Rows(rows, Boxes.of(rows), dtype_of_products(rows.device)), Boxes.of(points)
    square = points.new_full((len(points), k), torch.inf)
    index = torch.full((len(points), k), -1, device=points.device)
    for first in range(0, len(boxes.index), BOXES_AT_ONCE):
        some = boxes[first : first + BOXES_AT_ONCE]
        which, place = _candidates(among, points, some, limit, k)
        far = points.index_select(0, which).sub_(rows.index_select(0, place)).square_().sum(-1)
        order = far.argsort()
        order = order[which[order].argsort(stable=True)]
        which, place, far = which[order], place[order], far[order]
        rank = torch.arange(len(which), device=which.device) - torch.searchsorted(which, which)
        which, place, far, rank = (part[rank < k] for part in (which, place, far, rank))
        square[which, rank], index[which, rank] = far, place
    return square, index


def _candidates(
    among: Rows, points: Tensor, boxes: Boxes, limit: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Pairs of points of these boxes and rows, in which are all k nearest rows of each point."""
    others, index = among.boxes, among.boxes.index
    gap = torch.maximum(others.low - boxes.high[:, None], boxes.low[:, None] - others.high)
    bound = gap.clamp_min_(0.0).square_().sum(-1)  # (boxes of points, boxes of rows)
    at, middle = boxes.index.clamp_min(0), 0.5 * (boxes.low + boxes.high)
    allowed = torch.where(boxes.index >= 0, limit[at], 0)
    inside = points[at] - middle[:, None]
    left, norm = F.pad(inside, (0, 1), value=1.0).to(among.dtype), inside.square().sum(-1)
    reach = _reach(among, points[at], left, middle, allowed, bound, k)
    farthest = norm.sqrt() + reach.clamp_min(0.0).sqrt()  # such a row's distance from the middle
    error = ROUNDING * (points.shape[-1] + 8) * (norm + farthest.square())
    # −2xᵀr + ‖r‖² is the squared distance without ‖x‖².
    within = (reach - norm + error).to(among.dtype)
    found: list[tuple[Tensor, Tensor]] = []
    pairs = (bound <= reach.amax(-1, keepdim=True)).nonzero()
    for b, c in (part.unbind(-1) for part in pairs.split(PAIRS_AT_ONCE[points.device.type])):
        block = torch.bmm(left.index_select(0, b), among.products(c, middle[b]))
        pair, i, j = (block <= within[b][..., None]).nonzero(as_tuple=True)
        place, box = index[c[pair], j], b[pair]
        earlier = place < allowed[box, i]
        found.append((at[box, i][earlier], place[earlier]))
    if not found:
        return at.new_empty(0), at.new_empty(0)
    which, place = (torch.cat(part) for part in zip(*found, strict=True))
    return which, place


def _reach(
    among: Rows,
    points: Tensor,
    left: Tensor,
    middle: Tensor,
    allowed: Tensor,
    bound: Tensor,
    k: int,
) -> Tensor:
    """A squared distance (B, L) within which each point has k rows; −∞ where that is not known.

    They are about the nearest in the boxes nearest to the points' own. Points are (B, L, q).
    """
    index, L = among.boxes.index, among.boxes.index.shape[1]
    count = min(len(index), max(FIRST_BOXES, math.ceil(FIRST_ROWS * k / L)))
    near = bound.topk(count, -1, largest=False).indices
    place = index[near].flatten(1)
    right = among.products(near.flatten(), middle.repeat_interleave(count, 0))
    block = left @ right.unflatten(0, near.shape).transpose(1, 2).flatten(2)
    usable = (place >= 0)[:, None, :] & (place[:, None, :] < allowed[..., None])
    value, first = block.masked_fill_(~usable, torch.inf).topk(
        min(k, block.shape[-1]), -1, largest=False, sorted=False
    )
    rows = place[:, None, :].expand_as(block).gather(-1, first).clamp_min(0)
    far = (points[..., None, :] - among.X[rows]).square_().sum(-1).amax(-1)
    enough = torch.isfinite(value).all(-1) & (value.shape[-1] == k)
    return torch.where(enough, far, -torch.inf)
