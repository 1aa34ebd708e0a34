"""Shards on workers: what training and conditioning start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from distgp.engines import Local, Placement
from distgp.partition import central_set, row_priority
from distgp.shards import Shard, concatenate, stack, unstack

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class ShardGroup:
    """Shards that live together, as a batch; `first` is the number of the first among all."""

    shards: Shard
    first: int = 0

    @property
    def size(self) -> int:
        """How many shards."""
        return self.shards.batch[0]

    def rows(self) -> Shard:
        """The shards."""
        return self.shards


class HasRows(Protocol):
    """Anything with a batch of shards."""

    def rows(self) -> Shard:
        """The shards."""
        ...


@dataclass(frozen=True, eq=False)
class Workers:
    """All shards, in groups, wherever they live. They are reached through functions of a group."""

    where: Placement[ShardGroup]

    def __init__(self, where: Placement[ShardGroup] | Sequence[ShardGroup]) -> None:
        placed = where if isinstance(where, Placement) else Local(tuple(where))
        object.__setattr__(self, "where", placed)

    @staticmethod
    def of(shards: Sequence[Shard]) -> Workers:
        """One group, in this process."""
        return Workers((ShardGroup(stack(shards)),))

    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """function(group, *arguments) for every group, in order."""
        return self.where.map(function, *arguments)

    def sizes(self) -> Tensor:
        """n_i of all shards, (M,)."""
        return torch.cat(self.map(sizes_of))

    def sampled(self, share: float, seed: int) -> Workers:
        """A random share of every shard's rows, one at least, by the rows' numbers alone."""
        return self if share >= 1.0 else Workers(self.where.derive(_sampled, share, seed))

    def central(self, size: int, seed: int) -> Shard:
        """Random rows, evenly from all shards."""
        return draw_central(self.where, self.sizes(), size, seed)


def draw_central(where: Placement[Any], sizes: Tensor, size: int, seed: int) -> Shard:
    """Random rows, evenly from all shards: the same for any order and any division into groups."""
    sizes = sizes.long().cpu()
    size = min(size, int(sizes.sum()))
    offers = where.map(_offers, _depth(sizes, size), seed)
    rank = torch.cat([offer.rank for offer in offers])
    priority = torch.cat([offer.priority for offer in offers])
    by_priority = priority.argsort(stable=True)
    order = by_priority[rank[by_priority].argsort(stable=True)][:size]
    return concatenate([offer.rows for offer in offers]).take(order)


def _depth(sizes: Tensor, size: int) -> int:
    """The least r with Σ min(n_i, r) ≥ size: no shard is asked for more rows than that."""
    low, high = 1, int(sizes.max())
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if int(sizes.clamp_max(middle).sum()) >= size else (middle + 1, high)
        )
    return low


def sizes_of(group: HasRows) -> Tensor:
    """n_i of a group's shards."""
    return group.rows().sizes


@dataclass(frozen=True, eq=False)
class Offer:
    """The rows of a group's shards that come first in the draw, and the place of each in its shard's."""

    rows: Shard
    rank: Tensor
    priority: Tensor


def _offers(group: HasRows, size: int, seed: int) -> Offer:
    """All shards at once, where they are: `central_set` of each."""
    batch = group.rows()
    size = min(size, batch.n)
    priority = row_priority(batch.rows, seed)
    if batch.mask is not None:
        priority = torch.where(batch.mask, priority, torch.iinfo(torch.int64).max)
    best, which = priority.topk(size, -1, largest=False)
    rank = torch.arange(size, device=best.device).expand_as(best)
    start = torch.arange(best.shape[0], device=best.device)[:, None] * batch.n
    real = rank < batch.sizes.long()[:, None]
    chosen = batch.flatten().take((which + start)[real])
    rows = Shard(chosen.X, chosen.y, chosen.rows)
    return Offer(rows, rank[real], best[real])


def _sampled(group: ShardGroup, share: float, seed: int) -> ShardGroup:
    shards = unstack(group.shards)
    return ShardGroup(
        stack([central_set([s], max(1, round(share * s.n)), seed) for s in shards]), group.first
    )
