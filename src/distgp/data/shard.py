"""Shards, the rows that experts see: one by one, in batches, on workers, and drawn at random.

Draws go by a pseudo-random priority of each row's number in the data set, so they are the same for any
order of the shards, any division of them over workers, and any engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from distgp.engines import Engine, LocalPlacement, Placement, travels

PADDING = {"y": 0.0, "rows": -1, "mask": False, "weight": 1.0, "noise": 1.0}
"""What fills a shard's tensors up; inputs repeat a real row, where any kernel is defined."""


@dataclass(frozen=True, eq=False)
class Shard:
    """Rows and their targets, of one expert or of a batch of experts.

    Parameters
    ----------
    X : Tensor of shape (*batch, n, d)
        The inputs. Leading batch dimensions hold several shards of equal length.
    y : Tensor of shape (*batch, n) or (*batch, n, T)
        The targets. Before one target is chosen with `target`, a shard may hold T of them.
    rows : Tensor of shape (*batch, n)
        The number of each row in the whole data set, -1 on padding. Random draws are tied to these
        numbers, so that they do not depend on how rows are divided or ordered.
    mask : Tensor of shape (*batch, n), optional
        False on padding. Shards of different lengths are padded by `stack`; padding changes no
        result.
    weight : Tensor of shape (*batch, n), optional
        How many copies each row counts as, positive; one by default.
    noise : Tensor of shape (*batch, n), optional
        The factor of the noise variance σ² in each row, positive; one by default.

    Examples
    --------
    >>> import torch
    >>> shard = Shard.of(torch.zeros(5, 2), torch.ones(5))
    >>> shard.n, shard.d
    (5, 2)
    """

    travels_as: ClassVar[str] = "rows"
    X: Tensor
    y: Tensor
    rows: Tensor
    mask: Tensor | None = None
    weight: Tensor | None = None
    noise: Tensor | None = None

    @staticmethod
    def of(
        X: Tensor | np.ndarray,
        y: Tensor | np.ndarray,
        rows: Tensor | None = None,
        weight: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Shard:
        """Build one shard from inputs (n, d) and targets (n,), checked.

        Parameters
        ----------
        X, y : Tensor or ndarray
            Finite floating-point values of one dtype on one device.
        rows : Tensor, optional
            The rows' numbers in the whole data set, 0 … n − 1 by default.
        weight, noise : Tensor, optional
            Copies that each row counts as, and factors of σ², both positive.
        """
        X, y = torch.as_tensor(X), torch.as_tensor(y)
        if X.ndim != 2 or y.shape != X.shape[:-1]:
            raise ValueError(
                f"expected X of shape (n, d) and y of shape (n,), got {tuple(X.shape)} and "
                f"{tuple(y.shape)}"
            )
        if X.numel() == 0:
            raise ValueError(f"a shard needs at least one row and one column, got {tuple(X.shape)}")
        if X.dtype != y.dtype or X.device != y.device or not X.is_floating_point():
            raise ValueError(
                "X and y must be floating-point tensors of one dtype on one device, got "
                f"{X.dtype} on {X.device} and {y.dtype} on {y.device}"
            )
        if not (_all_finite(X) and _all_finite(y)):
            raise ValueError(
                "X and y must be finite, found NaN or infinity: drop or fill those rows"
            )
        rows = torch.arange(len(y), device=X.device) if rows is None else rows
        return Shard(X, y, rows, None, weight, noise)

    @property
    def n(self) -> int:
        """The number of rows of the tensors, padding included."""
        return self.X.shape[-2]

    @property
    def d(self) -> int:
        """The number of input columns."""
        return self.X.shape[-1]

    @property
    def batch(self) -> torch.Size:
        """The leading batch dimensions."""
        return self.X.shape[:-2]

    @property
    def count(self) -> int:
        """The number of shards in a batch with one leading dimension."""
        return self.batch[0]

    @property
    def sizes(self) -> Tensor:
        """The number n_i of real rows of each shard, in the dtype of the data."""
        if self.mask is None:
            return self.X.new_full(self.batch, self.n)
        return self.mask.sum(-1).to(self.X.dtype)

    def rows_held(self) -> Shard:
        """Return the shard itself, as what rows are drawn from."""
        return self

    def target(self, column: int) -> Shard:
        """The same rows with one of several targets as their y; a shard with a single one as it is."""
        if self.y.ndim < self.X.ndim:
            return self
        return replace(self, y=self.y[..., column].contiguous())

    def __getitem__(self, index: int | slice | Tensor) -> Shard:
        """Shards of a batch, by their place in it, with their padding."""
        return _each(self, lambda values: values[index])

    def without_padding(self) -> Shard:
        """One shard's real rows alone."""
        return self if self.mask is None else replace(self.take(self.mask), mask=None)

    def flatten(self) -> Shard:
        """All rows of a batch as one shard, padding included."""
        k = len(self.batch)
        return _each(self, lambda values: values.flatten(0, k)) if k else self

    def join(self, batch: Shard) -> Shard:
        """A batch whose shards each begin with the rows of this one."""
        repeated = _each(self, lambda values: values.expand(batch.count, *values.shape))
        return _joined([repeated, batch], 1)

    def take(self, which: Tensor | slice) -> Shard:
        """The chosen rows, as a shard."""
        at = (*(slice(None) for _ in self.batch), which)
        return _each(self, lambda values: values[at])

    def chunks(self, size: int) -> Iterator[Shard]:
        """Consecutive views of at most `size` rows."""
        return (self.take(slice(start, start + size)) for start in range(0, self.n, size))

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Shard:
        """The same shard on another device or in another dtype."""
        return _each(self, lambda v: v.to(device, dtype if v.is_floating_point() else None))


def stack(shards: Sequence[Shard]) -> Shard:
    """Make one batch of shards of any lengths, padded at the end and masked where they differ.

    Parameters
    ----------
    shards : sequence of Shard
        Shards without batch dimensions.

    Returns
    -------
    Shard
        A batch with one leading dimension; `unstack` is the inverse.
    """
    if not shards:
        raise ValueError("expected at least one shard, got none")
    lengths = {shard.n for shard in shards}
    n, shards = max(lengths), _completed(shards, mask=len(lengths) > 1)

    def padded(values: Tensor, name: str) -> Tensor:
        more = (n - len(values), *values.shape[1:])
        fill = values[:1].expand(more) if name == "X" else values.new_full(more, PADDING[name])
        return torch.cat([values, fill]) if more[0] else values

    return _merged(shards, lambda name, parts: torch.stack([padded(part, name) for part in parts]))


def unstack(batch: Shard) -> list[Shard]:
    """The shards of a batch, without their padding: the inverse of `stack`."""
    if len(batch.batch) != 1:
        raise ValueError(f"expected a batch of shards, got batch dimensions {tuple(batch.batch)}")
    return [batch[i].without_padding() for i in range(batch.count)]


def concatenate(shards: Sequence[Shard]) -> Shard:
    """One shard with the rows of all, in order."""
    return _joined([shard.without_padding() for shard in shards], 0)


def _each(shard: Shard, change: Callable[[Tensor], Tensor]) -> Shard:
    """The same shard with every one of its tensors changed."""
    return _merged([shard], lambda _, parts: change(parts[0]))


def _joined(shards: Sequence[Shard], dim: int) -> Shard:
    """Shards one after the other, with one or no leading batch dimension."""
    return _merged(_completed(shards), lambda _, parts: torch.cat(parts, dim))


def _merged(shards: Sequence[Shard], merge: Callable[[str, list[Tensor]], Tensor]) -> Shard:
    """One shard, each of its tensors made of those that all the shards have by that name."""
    found = {spec.name: [getattr(shard, spec.name) for shard in shards] for spec in fields(Shard)}
    return Shard(**{k: merge(k, parts) for k, parts in found.items() if parts[0] is not None})


def _completed(shards: Sequence[Shard], mask: bool = False) -> Sequence[Shard]:
    """Give all shards the weight, noise or mask, of ones, that one of them has or that is asked for."""
    for name in ("mask", "weight", "noise"):
        lacking = [getattr(shard, name) is None for shard in shards]
        if not all(lacking) or (mask and name == "mask"):
            dtype = torch.bool if name == "mask" else None
            shards = [
                replace(shard, **{name: torch.ones_like(shard.X[..., 0], dtype=dtype)})
                if lacks
                else shard
                for shard, lacks in zip(shards, lacking, strict=True)
            ]
    return shards


def _all_finite(values: Tensor) -> bool:
    # A finite sum needs no second look, nor the memory for one.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


class _Source(NamedTuple):
    """Shards of this process, which are sent to a worker once and stacked there."""

    shards: Sequence[Shard]

    def __call__(self) -> Shard:
        return stack(self.shards)


def place(engine: Engine, shards: Sequence[Shard]) -> Placement[Shard]:
    """Divide shards of this process over an engine's workers, in batches of consecutive shards."""
    parts = even_parts(len(shards), engine.workers)
    sources = [_Source(shards[part.start : part.stop]) for part in parts]
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


def sampled(placement: Placement[Shard], share: float, seed: int) -> Placement[Shard]:
    """Keep a random share of every shard's rows, at least one row each; all of them from 1 on."""
    return placement if share >= 1.0 else placement.derive(_sampled, share, seed)


def divided(placement: Placement[Shard], size: int, most: int, seed: int) -> Placement[Shard]:
    """Divide the only shard at random into shards of so many rows each, and keep `most` of them."""
    return placement.derive(_divided, size, most, seed)


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
    """n, Σy, Σy² and the sum of rows' own noise variances, 1 where they have none, of all copies.

    The targets are standardised, so that no digits are lost.
    """
    rows = batch.flatten().without_padding()
    y = rows.y.double()
    w = torch.ones_like(y) if rows.weight is None else rows.weight.double()
    noise = w if rows.noise is None else w * rows.noise.double()
    return torch.stack([w.sum(), (w * y).sum(), (w * y.square()).sum(), noise.sum()]).cpu()


def _lowest(item: HoldsRows, size: int, seed: int) -> Shard:
    rows = item.rows_held().flatten().without_padding()
    return rows.take(row_priority(rows.rows, seed).argsort()[:size])


def central_set(shards: Sequence[Shard], size: int, seed: int) -> Shard:
    """Draw rows as `central` does, from shards of this process; there must be as many."""
    n = sum(shard.without_padding().n for shard in shards)
    if not 1 <= size <= n:
        raise ValueError(f"expected a central set of 1 to {n} rows (all there are), got {size}")
    return central(placed(shards), size, seed)


def row_priority(rows: Tensor, seed: int) -> Tensor:
    """The SplitMix64 mixer of each row's number and the seed, signed, in the order of unsigned numbers."""

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
    depths = range(1, int(lengths.max()))
    return 1 + bisect_left(depths, size, key=lambda r: int(lengths.clamp_max(r).sum()))


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


def _divided(batch: Shard, size: int, most: int, seed: int) -> Shard:
    rows = batch.flatten().without_padding()
    order = row_priority(rows.rows, seed).argsort()
    return stack([rows.take(some) for some in order.split(size)[:most] if len(some) == size])
