"""Random rows from shards, wherever those live.

Every row has a pseudo-random priority that depends on the seed and on the row's number in the data
set alone. Draws go by priority, so they are the same for any order of the shards, any division of
them over workers, and any engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from distgp.data.shard import Shard, concatenate, stack, unstack
from distgp.engines import Engine, LocalPlacement, Placement, travels


@dataclass(frozen=True, eq=False)
class MemorySource:
    """Shards of this process, which are sent to the worker once."""

    travels_as: ClassVar[str] = "rows"
    shards: tuple[Shard, ...]

    def __call__(self) -> Shard:
        """Stack them into one batch."""
        return stack(self.shards)


def place(engine: Engine, shards: Sequence[Shard]) -> Placement[Shard]:
    """Divide shards of this process over an engine's workers, in batches of consecutive shards."""
    parts = even_parts(len(shards), engine.workers)
    sources = [MemorySource(tuple(shards[part.start : part.stop])) for part in parts]
    return engine.scatter(sources, [named(part) for part in parts])


def placed(shards: Placement[Shard] | Sequence[Shard]) -> Placement[Shard]:
    """A placement as it is; a sequence of shards as one batch in this process."""
    return shards if isinstance(shards, Placement) else LocalPlacement((stack(shards),))


def even_parts(count: int, parts: int) -> list[range]:
    """Divide 0 … count − 1 into consecutive ranges, none empty, with sizes within one of each other."""
    parts = max(1, min(count, parts))
    return [range(i * count // parts, (i + 1) * count // parts) for i in range(parts)]


def named(part: range) -> str:
    """Name these shards for error messages."""
    return f"shard {part.start}" if len(part) == 1 else f"shards {part.start} to {part.stop - 1}"


class HoldsRows(Protocol):
    """Anything with a batch of shards: the shards themselves, or experts conditioned on them."""

    def rows_held(self) -> Shard:
        """The batch of shards."""
        ...


def counts(placement: Placement[Any]) -> list[int]:
    """The number of shards of each item of a placement."""
    return placement.map(_count)


def sizes(placement: Placement[Any]) -> Tensor:
    """The number n_i of rows of every shard, (M,)."""
    return torch.cat(placement.map(_sizes))


def split_each(values: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Cut a tensor (M, …) with one entry per expert into the parts of a placement's items."""
    return list(values.split(list(counts)))


def sampled(placement: Placement[Shard], share: float, seed: int) -> Placement[Shard]:
    """Keep a random share of every shard's rows, at least one row each; all of them from 1 on."""
    return placement if share >= 1.0 else placement.derive(_sampled, share, seed)


def central(placement: Placement[Any], size: int, seed: int) -> Shard:
    """Draw random rows evenly from all shards: every shard gives its first before any its second."""
    lengths = sizes(placement).long().cpu()
    size = min(size, int(lengths.sum()))
    offers = placement.map(_offer, _depth(lengths, size), seed)
    rows, ranks, priorities = zip(*offers, strict=True)
    by_priority = torch.cat(priorities).argsort(stable=True)
    order = by_priority[torch.cat(ranks)[by_priority].argsort(stable=True)][:size]
    return concatenate(rows).take(order)


def drawn(placement: Placement[Any], size: int, seed: int) -> Shard:
    """Draw random rows from all rows together: the same for any division of them into shards."""
    offers = concatenate(placement.map(_lowest, size, seed))
    return offers.take(row_priority(offers.rows, seed).argsort()[:size])


@travels("moments")
def target_moments(batch: Shard) -> Tensor:
    """n, Σy and Σy², of all copies. The targets are standardised, so that no digits are lost."""
    rows = batch.flatten().without_padding()
    y = rows.y.double()
    w = torch.ones_like(y) if rows.weight is None else rows.weight.double()
    return torch.stack([w.sum(), (w * y).sum(), (w * y.square()).sum()]).cpu()


def _lowest(item: HoldsRows, size: int, seed: int) -> Shard:
    rows = item.rows_held().flatten().without_padding()
    return rows.take(row_priority(rows.rows, seed).argsort()[:size])


def central_set(shards: Sequence[Shard], size: int, seed: int) -> Shard:
    """Draw rows as `central` does, from shards of this process; there must be as many."""
    n = sum(shard.without_padding().n for shard in shards)
    if not 1 <= size <= n:
        raise ValueError(f"expected a central set of 1 to {n} rows (all there are), got {size}")
    return central(LocalPlacement((stack(shards),)), size, seed)


def row_priority(rows: Tensor, seed: int) -> Tensor:
    """A pseudo-random number per row number: the SplitMix64 mixer of row and seed.

    The result is signed, in the order of the mixer's unsigned numbers.
    """

    def shifted(z: Tensor, bits: int) -> Tensor:  # of the unsigned number
        return (z >> bits) & ((1 << (64 - bits)) - 1)

    z = (rows + 1) * _signed(0x9E3779B97F4A7C15)
    z = z + _signed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))
    z = (z ^ shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return (z ^ shifted(z, 31)) ^ _signed(1 << 63)


def _signed(value: int) -> int:
    """The signed 64-bit number with the same bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _depth(lengths: Tensor, size: int) -> int:
    """The least r with Σ min(n_i, r) ≥ size: no shard is asked for more rows than that."""
    low, high = 1, int(lengths.max())
    while low < high:
        middle = (low + high) // 2
        enough = int(lengths.clamp_max(middle).sum()) >= size
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


@travels("counts")
def _count(item: HoldsRows) -> int:
    return item.rows_held().count


@travels("counts")
def _sizes(item: HoldsRows) -> Tensor:
    return item.rows_held().sizes


@travels("rows")
def _offer(item: HoldsRows, size: int, seed: int) -> tuple[Shard, Tensor, Tensor]:
    """Return the rows of a worker's shards that come first, the rank of each in its shard, its priority."""
    batch = item.rows_held()
    size = min(size, batch.n)
    priority = row_priority(batch.rows, seed)
    if batch.mask is not None:
        priority = torch.where(batch.mask, priority, torch.iinfo(torch.int64).max)
    best, which = priority.topk(size, -1, largest=False)
    rank = torch.arange(size, device=best.device).expand_as(best)
    start = torch.arange(best.shape[0], device=best.device)[:, None] * batch.n
    real = rank < batch.sizes.long()[:, None]
    chosen = batch.flatten().take((which + start)[real])
    return replace(chosen, mask=None), rank[real], best[real]


def _sampled(batch: Shard, share: float, seed: int) -> Shard:
    shards = unstack(batch)
    return stack([central_set([s], max(1, round(share * s.n)), seed) for s in shards])
