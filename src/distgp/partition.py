"""Which row goes to which expert, and the rows that experts share.

A partition gives every row a label 0 … M−1; `split` turns labels into shards. Labels depend on
the seed and the data only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from distgp.clustering import kmeans_centres
from distgp.shards import Shard, concatenate

BLOCK = 2**22
"""Entries of the distance matrix held at a time when rows are assigned to centres."""


class Partition(ABC):
    """A way to divide rows over experts."""

    name: ClassVar[str]

    @abstractmethod
    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """One label in 0 … n_experts − 1 for each row of X, every label used."""


@dataclass(frozen=True)
class RandomPartition(Partition):
    """Rows at random, sizes within one row of each other."""

    name: ClassVar[str] = "random"

    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """A random permutation, dealt out."""
        _check_experts(len(X), n_experts)
        labels = _balanced_labels(len(X), n_experts)
        return np.random.default_rng(seed).permutation(labels)


@dataclass(frozen=True)
class ContiguousPartition(Partition):
    """Blocks of consecutive rows, as they come or ordered by a column (time), sizes within one."""

    name: ClassVar[str] = "contiguous"
    column: int | None = None

    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """Consecutive blocks; the seed plays no part."""
        del seed
        _check_experts(len(X), n_experts)
        labels = np.empty(len(X), dtype=np.int64)
        order = slice(None) if self.column is None else np.argsort(X[:, self.column], kind="stable")
        labels[order] = _balanced_labels(len(X), n_experts)
        return labels


@dataclass(frozen=True)
class ColumnPartition(Partition):
    """By a column's value: rows with one value stay together.

    With as many experts as values each value is an expert; with fewer, values are packed, the
    most frequent first, each into the expert with the fewest rows so far.
    """

    name: ClassVar[str] = "column"
    column: int = 0

    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """One label a value; the seed plays no part."""
        del seed
        values, group, counts = np.unique(
            X[:, self.column], return_inverse=True, return_counts=True
        )
        if not 1 <= n_experts <= len(values):
            raise ValueError(
                f"column {self.column} has {len(values)} distinct values, so it divides rows among "
                f"1 to {len(values)} experts, not {n_experts}: change n_experts or the partition"
            )
        label_of, loads = np.empty(len(values), dtype=np.int64), np.zeros(n_experts, dtype=np.int64)
        for value in np.argsort(-counts, kind="stable"):
            label_of[value] = loads.argmin()
            loads[label_of[value]] += counts[value]
        return label_of[group.ravel()]


@dataclass(frozen=True)
class KMeansPartition(Partition):
    """Rows near each other together; sizes within one row, or as they fall if not `balanced`."""

    name: ClassVar[str] = "kmeans"
    balanced: bool = True

    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """The nearest centre, with room left in its shard where balanced."""
        _check_experts(len(X), n_experts)
        X = X.astype(np.float64) - np.median(X, axis=0)  # offsets would cost the distances digits
        centres = kmeans_centres(X, n_experts, seed)
        if self.balanced:
            room = np.bincount(_balanced_labels(len(X), n_experts), minlength=n_experts)
            return _fill(X, centres, room)
        labels = _fill(X, centres, np.full(n_experts, len(X)))
        if (found := len(np.unique(labels))) < n_experts:
            raise ValueError(
                f"k-means found {found} clusters where {n_experts} were asked for: use fewer "
                "experts, or balanced=True"
            )
        return labels


PARTITIONS: dict[str, type[Partition]] = {
    kind.name: kind
    for kind in (RandomPartition, KMeansPartition, ContiguousPartition, ColumnPartition)
}


def split(data: Shard, labels: np.ndarray) -> list[Shard]:
    """The shards of a data set: shard i holds the rows labelled i, in their order."""
    labels = np.asarray(labels)
    if labels.shape != (data.n,):
        raise ValueError(f"expected one label for each of {data.n} rows, got shape {labels.shape}")
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    if not np.array_equal(values, np.arange(len(values))):
        raise ValueError(f"labels must be 0 … M − 1, all used; got {values[:10].tolist()}")
    parts = np.split(order, starts[1:])
    return [data.take(torch.as_tensor(part, device=data.X.device)) for part in parts]


def with_communication(data: Shard, n_experts: int, partition: Partition, seed: int) -> list[Shard]:
    """M shards for grBCM: the first a random n/M of all rows, the rest divided by the partition."""
    _check_experts(data.n, n_experts)
    if n_experts == 1:
        return [data]
    draw, rest_seed = (int(s) for s in np.random.SeedSequence(seed).generate_state(2))
    first = RandomPartition().assign(np.empty((data.n, 0)), n_experts, draw) == 0
    taken = torch.as_tensor(first, device=data.X.device)
    rest = data.take(~taken)
    labels = partition.assign(rest.X.detach().cpu().numpy(), n_experts - 1, rest_seed)
    return [data.take(taken), *split(rest, labels)]


def central_set(shards: Sequence[Shard], size: int, seed: int) -> Shard:
    """`size` random rows, spread evenly: every shard gives its first before any gives its second.

    Each row has a random priority that depends on the seed and its number in the data set alone,
    so the set is the same for any order of the shards. Each shard offers its best rows; no more
    than `size` of them leave it.
    """
    shards = [shard.without_padding() for shard in shards]
    n = sum(shard.n for shard in shards)
    if not 1 <= size <= n:
        raise ValueError(f"expected a central set of 1 to {n} rows (all there are), got {size}")
    offers, ranks, keys = [], [], []
    for shard in shards:
        priority = row_priority(shard.rows, seed)
        best = priority.argsort(stable=True)[:size]
        offers.append(shard.take(best))
        ranks.append(np.arange(len(best)))
        keys.append(priority[best].cpu().numpy())
    order = np.lexsort((np.concatenate(keys), np.concatenate(ranks)))[:size]
    return concatenate(offers).take(torch.as_tensor(order, device=shards[0].X.device))


def row_priority(rows: Tensor, seed: int) -> Tensor:
    """A pseudo-random number for each row number: the SplitMix64 mixer of row and seed.

    Signed, in the order of the mixer's unsigned numbers.
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


def _check_experts(n: int, n_experts: int) -> None:
    if not 1 <= n_experts <= n:
        raise ValueError(f"expected 1 to {n} experts (one row each at least), got {n_experts}")


def _balanced_labels(n: int, n_experts: int) -> np.ndarray:
    """0 … 0 1 … 1 …, each label ⌊n/M⌋ or ⌈n/M⌉ times."""
    return np.arange(n, dtype=np.int64) * n_experts // n


def _fill(X: np.ndarray, centres: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Assign rows to their nearest centre that has room; a full centre keeps those it suits most.

    Every round offers each row left over to its nearest centre with room, and every centre takes
    the offers that would lose most by going elsewhere. Each round fills a centre or ends, so there
    are at most M rounds.
    """
    labels, room = np.full(len(X), -1), room.copy()
    left = np.arange(len(X))
    while len(left):
        wanted, regret = _nearest(X[left], centres, room > 0)
        by_regret = np.lexsort((-regret, wanted))
        target = wanted[by_regret]
        starts = np.searchsorted(target, np.arange(len(centres)))
        accepted = np.arange(len(left)) - starts[target] < room[target]
        labels[left[by_regret[accepted]]] = target[accepted]
        room -= np.bincount(target[accepted], minlength=len(centres))
        left = np.sort(left[by_regret[~accepted]])
    return labels


def _nearest(
    X: np.ndarray, centres: np.ndarray, open_: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest open centre of each row, and how much farther the next one is (squared)."""
    available = np.flatnonzero(open_)
    targets = centres[available]
    norms = np.square(targets).sum(-1)
    step = max(1, BLOCK // len(available))
    which, regret = [], []
    for start in range(0, len(X), step):
        square = norms - 2.0 * X[start : start + step] @ targets.T  # less ‖x‖², the same for all
        which.append(available[square.argmin(-1)])
        two = np.partition(square, min(1, len(available) - 1), axis=-1)[:, :2]
        regret.append(two[:, -1] - two[:, 0])
    return np.concatenate(which), np.concatenate(regret)
