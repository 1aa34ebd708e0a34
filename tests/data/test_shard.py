import pytest
import torch
from helpers import FLOAT, close, inputs, shard

from distgp.data import Shard, stack, unstack
from distgp.data.shard import concatenate


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


def test_padding_is_marked_in_rows_and_mask():
    batch = stack([shard(2, 1), shard(4, 1)])
    assert batch.rows.tolist() == [[0, 1, -1, -1], [0, 1, 2, 3]]
    assert batch.mask is not None and batch.mask.tolist()[0] == [True, True, False, False]


def test_padding_is_dropped_where_shards_are_joined():
    batch = stack([shard(2, 1), shard(4, 1, 1)])
    assert concatenate([batch[0], batch[1]]).n == 6
    joined = shard(3, 1, 2).join(batch)
    assert joined.sizes.tolist() == [5, 7]
    close(joined.X[1], torch.cat([shard(3, 1, 2).X, shard(4, 1, 1).X]), rtol=0, atol=0)


def test_arrays_are_taken_and_nan_is_not():
    X, y = inputs(3, 2).numpy(), inputs(3, 1).numpy()[:, 0]
    assert torch.equal(Shard.of(X, y).X, inputs(3, 2))
    with pytest.raises(ValueError, match="NaN or infinity"):
        Shard.of(X, y * float("nan"))
    with pytest.raises(ValueError, match="at least one shard"):
        stack([])
    with pytest.raises(ValueError, match="batch of shards"):
        unstack(shard(3, 1))


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
