"""Rows that workers read by themselves, from stretches of Parquet files."""

from itertools import chain

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq

import distgp
from distgp.data import moments, parquet
from distgp.data.parquet import ParquetRows
from distgp.data.scaling import Scaling
from distgp.data.shard import concatenate, unstack
from distgp.data.table import TableError
from distgp.engines import LocalEngine

N = 103
LIKE = torch.zeros((), dtype=torch.float64)


class Several(LocalEngine):
    """As many workers as wanted, all of them in this process."""

    def __init__(self, workers):
        super().__init__()
        self.count = workers

    @property
    def workers(self):
        return self.count


@pytest.fixture
def folder(tmp_path):
    """N rows in three files, one of them empty, with row groups that fit no boundary."""
    table = pa.table(
        {
            "number": np.arange(N),
            "flat": np.full(N, 3.0),
            "site": ["hill" if i < 60 else "lake" for i in range(N)],
            "y": np.sin(np.arange(N) / 7),
        }
    )
    for name, part in {"a": (0, 60), "b": (60, 0), "c": (60, 43)}.items():
        path = tmp_path / "t" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table.slice(*part), path, row_group_size=17)
    return path.parent


def read(path, workers=1, n_experts=1, missing="refuse", seed=0, **options):
    engine = Several(workers)
    placement, columns = parquet.place(engine, ParquetRows.open(path), n_experts, "y", **options)
    assert len(placement) == min(workers, n_experts)
    return parquet.read(placement, columns, missing, seed), columns


@pytest.mark.parametrize(
    ("workers", "n_experts"), [(1, 1), (1, 4), (2, 3), (5, 5), (7, 50), (103, 103)]
)
@pytest.mark.parametrize("batch_rows", [5, parquet.BATCH_ROWS])
def test_every_row_is_read_once(folder, monkeypatch, workers, n_experts, batch_rows):
    monkeypatch.setattr(parquet, "BATCH_ROWS", batch_rows)  # row groups have 17
    shards, columns = read(folder, workers, n_experts)
    assert columns.features == ["number", "flat", "site=hill", "site=lake"]
    parts = [unstack(batch) for batch in shards.gather().items]
    assert sum(map(len, parts)) == n_experts
    stretches = [sorted(concatenate(part).rows.tolist()) for part in parts]
    assert [*chain(*stretches)] == [*range(N)], "each worker has consecutive rows"
    rows = concatenate([shard for part in parts for shard in part])
    assert rows.X.dtype == rows.y.dtype == torch.float64
    numbers = rows.rows.double()
    torch.testing.assert_close(rows.X[:, 0], numbers)
    torch.testing.assert_close(rows.X[:, 2], (numbers < 60).double())
    torch.testing.assert_close(rows.y, torch.sin(numbers / 7))


def test_rows_are_dealt_out_at_random_by_the_seed(folder):
    def first_shard(seed):
        return unstack(read(folder, 1, 4, seed=seed)[0].gather().items[0])[0].rows.tolist()

    assert first_shard(0) == first_shard(0) != first_shard(1)


def test_an_object_store_is_read_like_a_folder(folder, bucket):
    here, _ = read(folder, 3, 5)
    there, _ = read(bucket("t"), 3, 5)
    for a, b in zip(here.gather().items, there.gather().items, strict=True):
        torch.testing.assert_close((a.X, a.y, a.rows), (b.X, b.y, b.rows))


@pytest.mark.parametrize("workers", [1, 4])
def test_the_scaling_of_parts_is_that_of_the_whole(folder, workers):
    shards, columns = read(folder, workers, 6)
    rows = concatenate([shard for batch in shards.gather().items for shard in unstack(batch)])
    wanted = Scaling.of(rows.X.numpy(), rows.y.numpy(), True)
    found = moments.scaling_of(shards, True, len(columns.features))
    for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-12)
    identity = moments.scaling_of(shards, False, 4)
    assert (identity.x_mean == 0).all() and (identity.x_scale == 1).all()
    assert (identity.y_mean, identity.y_scale) == (0.0, 1.0)
    scaled = moments.standardise(shards, found, LIKE.float())
    for raw, batch in zip(shards.gather().items, scaled.gather().items, strict=True):
        assert (
            batch.X.dtype == batch.y.dtype == torch.float32 and batch.y.shape == batch.X.shape[:2]
        )
        for a, b in zip(unstack(raw), unstack(batch), strict=True):
            torch.testing.assert_close(b.X, wanted.inputs(a.X.numpy(), b.X))
            torch.testing.assert_close(b.y, wanted.targets(a.y.numpy(), a.X.numpy(), b.y))
            assert torch.equal(a.rows, b.rows)
        if batch.mask is not None:
            assert (batch.y[~batch.mask] == 0).all()


@pytest.mark.parametrize("workers", [1, 4])
def test_a_column_that_does_not_vary_keeps_its_units(tmp_path, monkeypatch, workers):
    """The mean of many numbers 0.1 is not 0.1, and a step from it is no 10¹⁴ standard deviations."""
    monkeypatch.setattr(moments, "MOMENT_ROWS", 300)
    rng = np.random.default_rng(0)
    same = rng.normal(size=20)
    table = pd.DataFrame({"x": rng.normal(size=4_000)} | {f"c{j}": v for j, v in enumerate(same)})
    table["y"] = rng.normal(size=4_000)
    table.to_parquet(tmp_path / "t.parquet", row_group_size=500)
    shards, columns = read(tmp_path, workers, 6)
    found = moments.scaling_of(shards, True, len(columns.features))
    by_rows = np.ascontiguousarray(table.iloc[:, :-1].to_numpy())  # sums by columns round more
    here = Scaling.of(by_rows, table["y"].to_numpy(), True)
    for scaling in (found, here):
        np.testing.assert_array_equal(scaling.x_mean[1:], same)
        np.testing.assert_array_equal(scaling.x_scale[1:], 1.0)
        assert scaling.x_scale[0] == pytest.approx(table["x"].std(ddof=0))


def test_a_column_whose_numbers_are_nearly_the_same_keeps_its_units():
    X = np.full((3_000, 2), 0.3)
    X[::2, 1] = np.nextafter(0.3, 1.0)
    assert (Scaling.of(X, np.arange(3_000.0), True).x_scale == 1.0).all()


def test_incomplete_rows_are_refused_or_left_out(tmp_path):
    table = pa.table({"x": [1.0, None, 3.0, 4.0], "y": [1.0, 2.0, 3.0, None]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TableError, match=r"2 of 4 rows have missing values"):
        read(tmp_path)
    (batch,) = read(tmp_path, missing="drop")[0].gather().items
    assert sorted(batch.rows[0].tolist()) == [0, 2]
    with pytest.raises(TableError, match="2 complete rows are too few for shards 0 to 2"):
        read(tmp_path, n_experts=3, missing="drop")
    with pytest.raises(
        ValueError, match="missing must be 'refuse' or 'drop' or 'impute', got 'skip'"
    ):
        read(tmp_path, missing="skip")


def test_files_that_workers_cannot_read(tmp_path, folder):
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    with pytest.raises(TableError, match=r"workers read Parquet by themselves, .* is csv: convert"):
        ParquetRows.open(tmp_path / "t.csv")
    with pytest.raises(TableError, match=r"b\.parquet holds no rows"):
        ParquetRows.open(folder / "b.parquet")
    placement, columns = parquet.place(Several(2), ParquetRows.open(folder), 2, "y")
    (folder / "c.parquet").unlink()
    with pytest.raises(TableError, match=r"cannot read .*c\.parquet as parquet"):
        parquet.read(placement, columns, "refuse", 0)
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [5.0, 5.0]}), tmp_path / "u.parquet")
    with pytest.raises(
        TableError, match=r"the target is constant \(5\): there is nothing to learn"
    ):
        moments.scaling_of(read(tmp_path / "u.parquet")[0], True, 1)


@pytest.mark.parametrize(
    ("column", "factor", "message"),
    [
        ("a", 1e160, "this large or small cannot be standardised"),
        ("a", 1e-200, "this large or small cannot be standardised"),
        ("y", 1e300, "this large or small cannot be standardised"),
        ("a", None, r"an input is 1e\+36, too far"),
        ("y", None, r"a target is 1e\+36, too far"),
    ],
)
def test_ranges_are_checked_as_in_memory(tmp_path, column, factor, message):
    rng = np.random.default_rng(0)
    rows = {"a": rng.normal(size=60), "b": rng.normal(size=60), "y": rng.normal(size=60)}
    if factor is None:
        rows[column][7] = 1e36
    else:
        rows[column] *= factor
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    gp = distgp.DistributedGPRegressor(expert="exact", n_experts=2, n_iter=2)
    with pytest.raises(ValueError, match=message):
        gp.fit_parquet(str(tmp_path / "t.parquet"), "y")
    with pytest.raises(ValueError, match=message):
        gp.fit(np.column_stack([rows["a"], rows["b"]]), rows["y"])


def test_values_beyond_the_dtype_are_refused(tmp_path):
    x = np.linspace(-1, 1, 60)
    pq.write_table(pa.table({"a": x * 1e20, "y": x}), tmp_path / "t.parquet")
    gp = distgp.DistributedGPRegressor(expert="exact", n_iter=2, dtype="float32", normalize=False)
    with pytest.raises(ValueError, match=r"an input is .* in float32"):
        gp.fit_parquet(str(tmp_path / "t.parquet"), "y")
