import pytest
import torch
from helpers import FLOAT, close, inputs, shard

from distgp import Shard, stack
from distgp.shards import concatenate


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (inputs(3, 2), inputs(4, 1)[:, 0], "shape"),
        (inputs(3, 2)[:, 0], inputs(3, 1)[:, 0], "shape"),
        (inputs(3, 2), inputs(3, 1), "shape"),
        (torch.empty(0, 2, dtype=FLOAT), torch.empty(0, dtype=FLOAT), "at least one row"),
        (inputs(3, 2), inputs(3, 1)[:, 0].to(torch.float32), "one dtype"),
        (torch.ones(3, 2, dtype=torch.int64), torch.ones(3, dtype=torch.int64), "floating-point"),
    ],
)
def test_bad_shards_are_refused_with_what_was_expected(X, y, message):
    with pytest.raises(ValueError, match=message):
        Shard.of(X, y)


def test_sizes_count_real_rows():
    assert stack([shard(3, 2), shard(5, 2)]).sizes.tolist() == [3, 5]
    assert shard(4, 2).sizes.item() == 4
    assert stack([shard(4, 2), shard(4, 2)]).mask is None


def test_chunks_and_concatenate_are_inverse():
    data = shard(17, 3)
    again = concatenate(list(data.chunks(5)))
    assert [c.n for c in data.chunks(5)] == [5, 5, 5, 2]
    close(again.X, data.X, rtol=0, atol=0)
    assert torch.equal(again.rows, data.rows)


def test_stacking_a_padded_shard_keeps_its_mask():
    padded = stack([shard(3, 2), shard(5, 2, 1)])
    again = stack([padded[0], shard(7, 2, 2)])
    assert again.sizes.tolist() == [3, 7]


def test_moving_a_shard_keeps_its_rows():
    moved = stack([shard(3, 2), shard(5, 2)]).to(dtype=torch.float32)
    assert moved.X.dtype == moved.y.dtype == torch.float32
    assert moved.sizes.tolist() == [3, 5]
