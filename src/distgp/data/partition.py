"""Partitions give every row the label 0 … M − 1 of its expert; `split` turns labels into shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from distgp.data.shard import PADDING, Shard

BLOCK = 2**22  # entries of the distance matrix held at a time when rows are assigned to centres
CLEAR = 1e-6  # the share of rounding errors in a squared distance up to which it may decide between centres
STEPS = 100  # rounds of k-means at most, where it is done by differences


class Partition(ABC):
    """A way to divide rows over experts."""

    name: ClassVar[str]

    @abstractmethod
    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """Give every row of inputs (n, d) a label 0 … M − 1, every one of them used."""


@dataclass(frozen=True)
class RandomPartition(Partition):
    """Rows at random. The sizes of the shards are within one row of each other."""

    name: ClassVar[str] = "random"

    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """Deal out a random permutation of the rows."""
        _check_experts(len(X), n_experts)
        return np.random.default_rng(seed).permutation(_balanced_labels(len(X), n_experts))


@dataclass(frozen=True)
class ContiguousPartition(Partition):
    """Blocks of consecutive rows, with sizes within one row of each other.

    Parameters
    ----------
    column : int, optional
        Order the rows by this column first (time, say); by default they are taken as they come.
    """

    name: ClassVar[str] = "contiguous"
    column: int | None = None

    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """Cut the rows into consecutive blocks. The seed is not used."""
        del seed
        _check_experts(len(X), n_experts)
        labels = np.empty(len(X), dtype=np.int64)
        order = slice(None) if self.column is None else np.argsort(X[:, self.column], kind="stable")
        labels[order] = _balanced_labels(len(X), n_experts)
        return labels


@dataclass(frozen=True)
class ColumnPartition(Partition):
    """Rows by the value of a column: rows with the same value stay together.

    With as many experts as values, each value has its own expert. With fewer, values are packed, the
    most frequent first, each into the expert with the fewest rows so far.

    Parameters
    ----------
    column : int, default=0
        The column to divide by.
    """

    name: ClassVar[str] = "column"
    column: int = 0

    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """Label the rows by their value. The seed is not used."""
        del seed
        if not (isinstance(self.column, int) and -X.shape[1] <= self.column < X.shape[1]):
            raise ValueError(
                f"ColumnPartition(column) must name one of the {X.shape[1]} input columns by its place, 0 "
                f"to {X.shape[1] - 1}, got {self.column!r}"
            )
        column = X[:, self.column]
        values, group, counts = np.unique(column, return_inverse=True, return_counts=True)
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
    """Rows that are near each other together, by k-means.

    Parameters
    ----------
    balanced : bool, default=True
        Whether the sizes of the shards must be within one row of each other.
    """

    name: ClassVar[str] = "kmeans"
    balanced: bool = True

    def assign(self, X: np.ndarray, n_experts: int, seed: int) -> np.ndarray:
        """Label each row by its nearest centre, or, if balanced, the nearest with room left."""
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
    """Divide a data set into shards by labels.

    Parameters
    ----------
    data : Shard
        The whole data set.
    labels : ndarray of shape (n,)
        Labels 0 … M − 1, every one of them used.

    Returns
    -------
    list of Shard
        Shard i holds the rows labelled i, in their order.
    """
    order, starts = _by_label(data, labels)
    parts = torch.as_tensor(order, device=data.X.device).tensor_split(starts[1:].tolist())
    return [data.take(part) for part in parts]


def batch_of(data: Shard, labels: np.ndarray) -> Shard:
    """Compute `stack(split(data, labels))`, copying every row once where those two copy it three times."""
    order, starts = _by_label(data, labels)
    counts = np.diff(starts, append=len(order))
    place = np.arange(counts.max())
    inside = place < counts[:, None]
    index = starts[:, None] + np.where(inside, place, 0)  # padding repeats a shard's first row
    batch = data.take(torch.as_tensor(order[index], device=data.X.device))
    if inside.all():
        return batch
    mask = torch.as_tensor(inside, device=data.X.device)
    changes = {"mask": mask}
    for name, fill in PADDING.items():
        if (values := getattr(batch, name)) is not None:
            padding = ~(mask if values.ndim == mask.ndim else mask[..., None])
            changes[name] = values.masked_fill(padding, fill)
    return replace(batch, **changes)


def _by_label(data: Shard, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in the order of their labels, and the place in it at which each label begins."""
    labels = np.asarray(labels)
    if labels.shape != (data.n,):
        raise ValueError(f"expected one label for each of {data.n} rows, got shape {labels.shape}")
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    if not np.array_equal(values, np.arange(len(values))):
        raise ValueError(f"labels must be 0 … M − 1, all used; got {values[:10].tolist()}")
    return order, starts


def with_communication(data: Shard, n_experts: int, partition: Partition, seed: int) -> list[Shard]:
    """Divide a data set into M shards for grBCM, which needs a communication shard.

    The first shard is a random n/M of all rows; the partition divides the rest.
    """
    _check_experts(data.n, n_experts)
    if n_experts == 1:
        return [data]
    draw, rest_seed = (int(s) for s in np.random.SeedSequence(seed).generate_state(2))
    first = RandomPartition().assign(np.empty((data.n, 0)), n_experts, draw) == 0
    taken = torch.as_tensor(first, device=data.X.device)
    rest = data.take(~taken)
    labels = partition.assign(rest.X.detach().cpu().numpy(), n_experts - 1, rest_seed)
    return [data.take(taken), *split(rest, labels)]


def _check_experts(n: int, n_experts: int) -> None:
    """Refuse more experts than rows, and fewer than one."""
    if not 1 <= n_experts <= n:
        raise ValueError(f"expected 1 to {n} experts (one row each at least), got {n_experts}")


def _balanced_labels(n: int, n_experts: int) -> np.ndarray:
    """Return 0 … 0 1 … 1 …, each label ⌊n/M⌋ or ⌈n/M⌉ times."""
    return np.arange(n, dtype=np.int64) * n_experts // n


def _fill(X: np.ndarray, centres: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Assign rows to their nearest centre that has room; a full centre keeps those it suits most."""
    # Every round offers each row left over to its nearest centre with room, and every centre takes the
    # offers that would lose most by going elsewhere: it is full then, or all rows are assigned.
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
    """Find the nearest open centre of each row, and by how much the next is farther (squared)."""
    available = np.flatnonzero(open_)
    targets = centres[available]
    norms = np.square(targets).sum(-1)
    step = max(1, BLOCK // len(available))
    which, regret = np.empty(len(X), dtype=np.int64), np.empty(len(X))
    for part in (slice(start, start + step) for start in range(0, len(X), step)):
        square = norms - 2.0 * X[part] @ targets.T  # less ‖x‖², the same for all
        which[part], regret[part] = _two_nearest(square)
    # Where these lost their digits, between centres that are close to each other and far from all others,
    # differences decide.
    error = np.finfo(np.float64).eps * (np.square(X).sum(-1) + norms.max())
    lost = np.flatnonzero(error > CLEAR * regret)
    for part in np.split(lost, np.arange(step, len(lost), step)):
        which[part], regret[part] = _two_nearest(cdist(X[part], targets, "sqeuclidean"))
    return available[which], regret


def _two_nearest(square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the smallest number of each row, and by how much the next is larger."""
    two = np.partition(square, min(1, square.shape[-1] - 1), axis=-1)[:, :2]
    return square.argmin(-1), two[:, -1] - two[:, 0]


def kmeans_centres(X: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Find k centres (k, d) by k-means on at most max(4096, 20k) rows: more would hardly move them."""
    from sklearn.cluster import KMeans  # a tenth of a second, which most fits can do without

    rng = np.random.default_rng(seed)
    size = max(4096, 20 * k)
    rows = X if len(X) <= size else X[rng.choice(len(X), size, replace=False)]
    rows = rows.astype(np.float64)  # which keeps twice the digits of distances by products
    state = int(rng.integers(2**31))
    # With fewer distinct rows than k, centres repeat, which does no harm where they are used.
    found = min(k, distinct := len(np.unique(rows, axis=0)))
    if _told_apart(rows) < max(found, 0.99 * distinct):
        centres = _centres_by_differences(rows, found, rng)
    else:
        model = KMeans(found, n_init=1, random_state=state).fit(rows)  # pyright: ignore[reportArgumentType]
        centres = model.cluster_centers_
    return np.resize(centres, (k, rows.shape[1]))


def _told_apart(X: np.ndarray) -> int:
    """Count the rows that scikit-learn's k-means can tell apart.

    It computes squared distances by products, which are wrong by some ε times the squared norms: of
    clusters that are 10⁷ times farther apart than their rows, none of these is seen.
    """
    centred = X - X.mean(0)
    step = 4.0 * np.sqrt(np.finfo(np.float64).eps * np.square(centred).sum(-1).max())
    return len(np.unique(np.round(centred / step) if step > 0.0 else centred, axis=0))


def _centres_by_differences(rows: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Do k-means with distances and means by differences, which keep their digits far from other rows."""
    centres, labels = _first_centres(rows, k, rng), np.full(len(rows), -1)
    for _ in range(STEPS):
        before, labels = labels, KDTree(centres).query(rows)[1]
        if np.array_equal(before, labels):
            break
        moves = np.zeros_like(centres)
        np.add.at(moves, labels, rows - centres[labels])
        centres += moves / np.maximum(1, np.bincount(labels, minlength=k))[:, None]
    return centres


def _first_centres(rows: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Draw k rows one by one, by their squared distance from those before, each the best of a few."""
    chosen = [int(rng.integers(len(rows)))]
    nearest = cdist(rows[chosen], rows, "sqeuclidean")[0]
    while len(chosen) < k:
        total = np.cumsum(nearest)
        drawn = np.searchsorted(total, rng.random(2 + int(np.log(k))) * total[-1], side="right")
        drawn = np.minimum(drawn, len(rows) - 1)
        left = np.minimum(nearest, cdist(rows[drawn], rows, "sqeuclidean"))
        best = left.sum(-1).argmin()
        chosen.append(int(drawn[best]))
        nearest = left[best]
    return rows[chosen]
