"""Random rows are tied to row numbers: the same for any order and division of the shards."""

import numpy as np
import pytest
import torch
from helpers import shard
from hypothesis import given, settings
from hypothesis import strategies as st

from distgp.data import central_set, split, stack
from distgp.data.shard import row_priority


def test_central_set_leaves_padding_out():
    batch = stack([shard(3, 1), shard(9, 1, 1)])
    central = central_set([batch[0], batch[1]], 12, 0)
    assert central.n == 12 and central.rows.min() >= 0


@settings(max_examples=30)
@given(data=st.data(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_central_set_is_spread_and_blind_to_the_order_of_shards(data, sizes):
    whole = shard(sum(sizes), 2)
    shards = split(whole, np.repeat(np.arange(len(sizes)), sizes))
    size = data.draw(st.integers(1, whole.n))
    central = central_set(shards, size, seed=4)
    shuffled = central_set(shards[::-1], size, seed=4)
    assert sorted(central.rows.tolist()) == sorted(shuffled.rows.tolist())
    assert len(set(central.rows.tolist())) == size
    taken = [len(set(s.rows.tolist()) & set(central.rows.tolist())) for s in shards]
    open_ = [t for t, s in zip(taken, shards, strict=True) if t < s.n]
    assert not open_ or max(taken) - min(open_) <= 1
    assert torch.equal(central.X, whole.X[central.rows])


def test_central_set_is_random_by_seed_and_checked():
    shards = split(shard(100, 1), np.repeat([0, 1], 50))
    a, b = (set(central_set(shards, 10, seed).rows.tolist()) for seed in (0, 1))
    assert a != b
    with pytest.raises(ValueError, match="1 to 100 rows"):
        central_set(shards, 101, 0)


def test_row_priorities_are_uniform_and_distinct():
    priority = row_priority(torch.arange(100_000), 7).numpy()
    assert len(np.unique(priority)) == 100_000
    counts = np.bincount((priority >> 60) + 8, minlength=16)
    # 16 bins of 6,250 with standard deviation 76.5: five of them is a rare event.
    assert np.abs(counts - 6250).max() < 5 * 76.5


def splitmix64(row, seed):
    """The mixer with Python's own numbers."""
    mask = 2**64 - 1
    z = ((row + 1) * 0x9E3779B97F4A7C15 + seed) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_row_priorities_are_splitmix64_in_order():
    rows = [*range(200), 2**40, 2**62]
    start = int(np.random.SeedSequence(5).generate_state(1, np.uint64)[0])
    wanted = [splitmix64(row, start) - 2**63 for row in rows]
    assert row_priority(torch.tensor(rows), 5).tolist() == wanted
