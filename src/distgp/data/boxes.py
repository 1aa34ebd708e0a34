"""Exact search for the nearest rows of very many points on a GPU, by boxes of rows that lie together.

Rows and points are divided at medians, over and over, into boxes of nearly equally many. A box of points
is first compared with the boxes of rows that are nearest to it. That gives every point a distance within
which its k nearest rows must lie. Then it is compared with all other boxes of rows that are near enough to
hold one of these. Only the few pairs of a point and a row within that distance are put in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

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
ROUNDING = 1e-12
"""The error of a squared distance by products, at most, in units of the squared norms of both."""
SPARE = 8
"""Rows beyond those wanted that are taken at first, since distances by products have rounding errors."""


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


class Rows(NamedTuple):
    """Rows and their boxes; [−2r, ‖r‖²] of each box's rows, (C, q + 1, L), for distances by products."""

    X: Tensor
    boxes: Boxes
    right: Tensor
    largest: float  # the largest ‖r‖²

    @staticmethod
    def of(X: Tensor) -> Rows:
        """Divide rows into boxes; what is no row is infinitely far away from every point."""
        boxes, norm = Boxes.of(X), X.square().sum(-1, keepdim=True)
        right = F.pad(torch.cat([-2.0 * X, norm], -1), (0, 0, 0, 1))
        right[-1, -1] = torch.inf
        return Rows(X, boxes, right[boxes.index].mT.contiguous(), float(norm.max()))


def nearest_in_boxes(rows: Tensor, points: Tensor, limit: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k nearest of the first limit[i] rows (n, q) to every point i of (N, q).

    Returned are squared distances (N, k) in increasing order, and places; infinity and -1 in all places of
    a point for which the boxes nearest to it hold hardly more than k such rows, or fewer.
    """
    centre = rows.median(0).values
    among, points = Rows.of(rows - centre), points - centre
    square = points.new_full((len(points), k), torch.inf)
    index = torch.full((len(points), k), -1, device=points.device)
    boxes = Boxes.of(points)
    for first in range(0, len(boxes.index), BOXES_AT_ONCE):
        some = boxes[first : first + BOXES_AT_ONCE]
        which, place = _candidates(among, points, some, limit, k)
        far = (points[which] - among.X[place]).square_().sum(-1)
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
    real, at = boxes.index >= 0, boxes.index.clamp_min(0)
    inside = points[at]
    left, norm = F.pad(inside, (0, 1), value=1.0), inside.square().sum(-1)
    allowed = torch.where(real, limit[at], 0)
    # The k nearest rows of the nearest boxes; −2xᵀr + ‖r‖² is the squared distance without ‖x‖².
    count = min(len(index), max(FIRST_BOXES, math.ceil(FIRST_ROWS * k / index.shape[1])))
    near = bound.topk(count, -1, largest=False).indices
    place = index[near].flatten(1)
    block = left @ among.right[near].transpose(1, 2).flatten(2)
    block.masked_fill_(place[:, None, :] >= allowed[..., None], torch.inf)
    asked = k + SPARE
    value, first = block.topk(min(asked, block.shape[-1]), -1, largest=False, sorted=False)
    reach, error = value.amax(-1), ROUNDING * (norm + among.largest)
    enough = torch.isfinite(reach) & (value.shape[-1] == asked)
    reach = torch.where(enough, reach, -torch.inf) + error
    taken = place[:, None, :].expand_as(block).gather(-1, first)[enough]
    found = [(at[..., None].expand_as(first)[enough].flatten(), taken.flatten())]
    # Rows of other boxes that are as near.
    other = bound <= (reach + norm + error).amax(-1, keepdim=True)
    pairs = other.scatter_(1, near, False).nonzero()
    for b, c in (part.unbind(-1) for part in pairs.split(PAIRS_AT_ONCE[points.device.type])):
        block = torch.bmm(left.index_select(0, b), among.right.index_select(0, c))
        pair, i, j = (block <= reach[b][..., None]).nonzero(as_tuple=True)
        place, box = index[c[pair], j], b[pair]
        earlier = place < allowed[box, i]
        found.append((at[box, i][earlier], place[earlier]))
    which, place = (torch.cat(part) for part in zip(*found, strict=True))
    return which, place
