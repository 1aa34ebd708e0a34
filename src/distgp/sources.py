"""Where the rows of a group of shards come from, so that a worker can make them, and make them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from distgp.engines import Engine, Placement
from distgp.shards import Shard, stack
from distgp.workers import ShardGroup, Workers


@dataclass(frozen=True, eq=False)
class Rows:
    """A group of shards with all targets (size, n, T); the shards' own y is still zero."""

    group: ShardGroup
    targets: Tensor


@dataclass(frozen=True, eq=False)
class FromMemory:
    """Shards of this process, and their targets (n_i, T): shipped once."""

    travels_as: ClassVar[str] = "rows"
    shards: tuple[Shard, ...]
    targets: tuple[Tensor, ...]
    first: int

    def __call__(self) -> Rows:
        """Stack them."""
        batch = stack(self.shards)
        targets = torch.nn.utils.rnn.pad_sequence(list(self.targets), batch_first=True)
        return Rows(ShardGroup(batch, self.first), targets)


def place(engine: Engine, shards: Sequence[Shard], targets: Tensor) -> Placement[Rows]:
    """Divide shards of this process over an engine's workers; targets (n, T) go with their rows."""
    sources, names = [], []
    for part in even_parts(len(shards), engine.workers):
        own = tuple(shards[part.start : part.stop])
        sources.append(FromMemory(own, tuple(targets[s.rows] for s in own), part.start))
        names.append(named(part))
    return engine.scatter(sources, names)


def with_target(where: Placement[Rows], column: int) -> Workers:
    """The shards with one of the targets as their y."""
    return Workers(where.derive(_with_target, column))


def even_parts(count: int, parts: int) -> list[range]:
    """Consecutive ranges of 0 … count − 1, sizes within one of each other, none empty."""
    parts = max(1, min(count, parts))
    return [range(i * count // parts, (i + 1) * count // parts) for i in range(parts)]


def named(part: range) -> str:
    """How an error calls these shards."""
    return f"shard {part.start}" if len(part) == 1 else f"shards {part.start} to {part.stop - 1}"


def _with_target(rows: Rows, column: int) -> ShardGroup:
    shards = replace(rows.group.shards, y=rows.targets[..., column].contiguous())
    return ShardGroup(shards, rows.group.first)
