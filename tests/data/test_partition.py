import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from helpers import concrete, inputs, shard
from hypothesis import given, settings
from hypothesis import strategies as st

from distgp import PARTITIONS
from distgp.data import (
    ColumnPartition,
    ContiguousPartition,
    KMeansPartition,
    Partition,
    RandomPartition,
    split,
    stack,
    with_communication,
)
from distgp.data.partition import batch_of, kmeans_centres

BALANCED = [RandomPartition(), KMeansPartition(), ContiguousPartition(), ContiguousPartition(0)]


def rows_of(shards):
    return sorted(row for s in shards for row in s.rows.tolist())


def test_registry_holds_every_partition():
    assert set(PARTITIONS.values()) == set(concrete(Partition))


@pytest.mark.parametrize("partition", BALANCED, ids=repr)
@settings(max_examples=20)
@given(data=st.data(), n=st.integers(1, 120), d=st.integers(1, 3), seed=st.integers(0, 1000))
def test_every_row_once_balanced_within_one_and_deterministic(partition, data, n, d, seed):
    M = data.draw(st.integers(1, n))
    X = inputs(n, d, seed).numpy()
    labels = partition.assign(X, M, seed)
    counts = np.bincount(labels, minlength=M)
    assert counts.sum() == n and len(counts) == M
    assert counts.max() - counts.min() <= 1
    assert np.array_equal(labels, partition.assign(X, M, seed))


@pytest.mark.parametrize("partition", BALANCED, ids=repr)
@pytest.mark.parametrize("M", [0, 11])
def test_too_many_or_no_experts_is_an_error(partition, M):
    with pytest.raises(ValueError, match=f"expected 1 to 10 experts.*got {M}"):
        partition.assign(inputs(10, 2).numpy(), M, 0)


def test_random_partitions_differ_by_seed():
    X = inputs(100, 1).numpy()
    partition = RandomPartition()
    assert not np.array_equal(partition.assign(X, 4, 0), partition.assign(X, 4, 1))


def test_contiguous_blocks_follow_the_column():
    X = inputs(50, 2).numpy()
    labels = ContiguousPartition(column=1).assign(X, 5, 0)
    tops = [X[labels == i, 1].max() for i in range(5)]
    bottoms = [X[labels == i, 1].min() for i in range(5)]
    assert all(tops[i] <= bottoms[i + 1] for i in range(4))
    assert ContiguousPartition().assign(X, 5, 0).tolist() == sorted([0, 1, 2, 3, 4] * 10)


def test_kmeans_keeps_separate_clusters_together():
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    truth = np.repeat([0, 1, 2], 20)
    X = centres[truth] + inputs(60, 2).numpy()
    for partition in (KMeansPartition(), KMeansPartition(balanced=False)):
        labels = partition.assign(X, 3, 0)
        assert len(set(zip(truth, labels, strict=True))) == 3


def test_a_full_centre_keeps_the_rows_that_others_suit_least():
    X = np.concatenate([np.linspace(0, 1, 30), [10.0, 10.1]])[:, None]
    labels = KMeansPartition().assign(X, 2, 0)
    left = labels == labels[0]
    assert left.sum() == 16
    assert X[left].max() < X[~left].min()


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_kmeans_is_blind_to_offsets(offset):
    X = inputs(400, 2).numpy()
    labels = KMeansPartition().assign(X + offset, 8, 0)
    spread = sum(X[labels == i].var(axis=0).sum() for i in range(8)) / 8
    assert spread < 0.35 * X.var(axis=0).sum()


@pytest.mark.parametrize("apart", [1e3, 1e7, 1e9, 1e12])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_kmeans_sees_the_rows_of_clusters_far_apart(apart, dtype):
    """A hundred rows around each of three places, which products of numbers so large cannot tell apart."""
    places = np.array([[0.0, 0.0], [apart, 0.0], [0.0, -3.0 * apart]])
    near = inputs(300, 2).numpy() * (1.0 if dtype == np.float64 else apart * 1e-4)
    X = (np.repeat(places, 100, axis=0) + near).astype(dtype)
    whole = sum(near[i : i + 100].var(axis=0).sum() for i in (0, 100, 200)) / 3
    centres = kmeans_centres(X, 24, 0)
    distance = np.square(X[:, None].astype(float) - centres).sum(-1).min(-1)
    assert len(np.unique(centres, axis=0)) == 24
    assert distance.mean() < 0.25 * whole


@pytest.mark.parametrize("apart", [1e3, 1e7, 1e9, 1e12])
@pytest.mark.parametrize("balanced", [True, False])
def test_kmeans_divides_clusters_far_apart(apart, balanced):
    near = inputs(400, 2).numpy()
    X = near + np.outer(np.arange(400) % 2, [apart, 0.0])
    labels = KMeansPartition(balanced=balanced).assign(X, 8, 0)
    spread = sum(near[labels == i].var(axis=0).sum() for i in range(8)) / 8
    assert spread < 0.5 * near.var(axis=0).sum()


def test_unbalanced_kmeans_refuses_empty_shards():
    X = np.repeat([[0.0, 0.0], [1.0, 1.0]], 10, axis=0)
    with pytest.raises(ValueError, match="found 2 clusters where 4"):
        KMeansPartition(balanced=False).assign(X, 4, 0)


def test_unbalanced_kmeans_is_the_nearest_centre():
    centres = np.array([[0.0, 0.0], [10.0, 0.0]])
    truth = np.repeat([0, 1], [50, 10])
    X = centres[truth] + inputs(60, 2).numpy()
    counts = np.bincount(KMeansPartition(balanced=False).assign(X, 2, 0))
    assert sorted(counts) == [10, 50]


def test_column_values_stay_together():
    X = np.array([[3.0], [1.0], [3.0], [2.0], [1.0], [3.0], [9.0]])
    labels = ColumnPartition(0).assign(X, 4, 0)
    assert all(len(set(labels[X[:, 0] == v])) == 1 for v in (1, 2, 3, 9))
    assert len(set(labels)) == 4
    packed = ColumnPartition(0).assign(X, 2, 0)
    assert sorted(np.bincount(packed)) == [3, 4]
    with pytest.raises(ValueError, match="4 distinct values"):
        ColumnPartition(0).assign(X, 5, 0)


def test_split_checks_its_labels():
    data = shard(6, 2)
    shards = split(data, np.array([1, 0, 1, 0, 2, 1]))
    assert [s.rows.tolist() for s in shards] == [[1, 3], [0, 2, 5], [4]]
    assert torch.equal(shards[1].X, data.X[[0, 2, 5]])
    with pytest.raises(ValueError, match="one label for each of 6 rows"):
        split(data, np.zeros(5, dtype=int))
    with pytest.raises(ValueError, match="all used"):
        split(data, np.array([0, 0, 2, 2, 2, 2]))


@pytest.mark.parametrize("labels", [[1, 0, 1, 0, 2, 1], [0, 1, 2, 0, 1, 2], [0] * 6])
@pytest.mark.parametrize("targets", [1, 2])
def test_a_batch_is_what_splitting_and_stacking_make(labels, targets):
    data = shard(6, 2)
    more = {"weight": torch.arange(1.0, 7.0), "y": data.y if targets == 1 else data.X * 3.0}
    data = replace(data, **more)
    made, wanted = batch_of(data, np.array(labels)), stack(split(data, np.array(labels)))
    for spec in fields(wanted):
        one, other = getattr(made, spec.name), getattr(wanted, spec.name)
        assert (one is None and other is None) or torch.equal(one, other), spec.name


@settings(max_examples=20)
@given(data=st.data(), n=st.integers(1, 60))
def test_communication_shard_comes_first_and_nothing_is_lost(data, n):
    M = data.draw(st.integers(1, n))
    shards = with_communication(shard(n, 2), M, KMeansPartition(), seed=3)
    assert len(shards) == M and rows_of(shards) == list(range(n))
    assert abs(shards[0].n - n / M) < 1


def test_communication_shard_is_random_and_the_rest_partitioned():
    data = shard(90, 2)
    counts = np.zeros(90)
    for seed in range(300):
        counts[with_communication(data, 3, RandomPartition(), seed)[0].rows.numpy()] += 1
    # Each row is drawn with probability 1/3: mean 100, standard deviation 8.2.
    assert counts.min() > 100 - 5 * 8.2 and counts.max() < 100 + 5 * 8.2
    blocks = with_communication(data, 4, ContiguousPartition(), 0)[1:]
    assert all(b.rows.max() < c.rows.min() for b, c in itertools.pairwise(blocks))


def test_shards_beside_the_communication_shard_are_random_too():
    hits = np.zeros(12)
    for seed in range(3000):
        hits[with_communication(shard(12, 1), 3, RandomPartition(), seed)[1].rows.numpy()] += 1
    # Probability 1/3 each: mean 1000, standard deviation 25.8.
    assert np.abs(hits - 1000).max() < 5 * 25.8
