"""Recipes from which a worker builds, or after a crash rebuilds, its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from distgp.data.shard import Shard, stack
from distgp.engines import Engine, LocalPlacement, Placement


@dataclass(frozen=True, eq=False)
class MemorySource:
    """Shards of this process, which are sent to the worker once."""

    travels_as: ClassVar[str] = "rows"
    shards: tuple[Shard, ...]

    def __call__(self) -> Shard:
        """Stack them into one batch."""
        return stack(self.shards)


def place(engine: Engine, shards: Sequence[Shard]) -> Placement[Shard]:
    """Divide shards of this process over an engine's workers.

    Parameters
    ----------
    engine : Engine
        Where the shards are to live.
    shards : sequence of Shard
        One per expert.

    Returns
    -------
    Placement of Shard
        Each worker holds one batch with consecutive shards.
    """
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
    """What error messages call these shards."""
    return f"shard {part.start}" if len(part) == 1 else f"shards {part.start} to {part.stop - 1}"
