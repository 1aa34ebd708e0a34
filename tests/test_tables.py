"""Tables in files, and columns turned into numbers."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from distgp.columns import learn
from distgp.tables import Table, TableError, sink

TABLE = pa.table(
    {
        "y": [1.0, 2.0, None, 4.0],
        "x": [1, 2, 3, 4],
        "flag": [True, False, True, None],
        "site": ["b", "a", "b", None],
        "when": [
            dt.datetime(2020, 1, 6, 12),
            dt.datetime(1970, 1, 1),
            None,
            dt.datetime(2021, 7, 1),
        ],
        "day": [dt.date(2020, 1, 6)] * 4,
    }
)


def written(path, table=TABLE):
    with sink(path) as out:
        for batch in table.to_batches():
            out.write(batch)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".pq", ".arrow", ".feather", ".ipc"])
def test_what_is_written_is_read_back(tmp_path, suffix):
    path = written(tmp_path / f"t{suffix}")
    table = Table.open(path)
    assert table.names == TABLE.schema.names
    back = table.read()
    assert back.column("x").to_pylist() == [1, 2, 3, 4]
    assert back.column("y").to_pylist() == [1.0, 2.0, None, 4.0]
    pieces = list(table.batches({}, rows=3))
    assert [p.num_rows for p in pieces] == [3, 1]


def test_other_writers_files(tmp_path):
    pa.feather.write_feather(TABLE, tmp_path / "a.feather", compression="lz4")
    with pa.ipc.new_stream(str(tmp_path / "b.arrow"), TABLE.schema) as out:
        out.write_table(TABLE)
    for name in ("a.feather", "b.arrow"):
        assert Table.open(tmp_path / name).read().num_rows == 4


def test_folders_and_globs_of_parquet(tmp_path):
    (tmp_path / "deep").mkdir()
    for i, name in enumerate(["b.parquet", "a.parquet", "deep/c.parquet"]):
        written(tmp_path / name, pa.table({"x": [i, i + 10]}))
    assert Table.open(tmp_path).read().column("x").to_pylist() == [1, 11, 0, 10, 2, 12]
    assert Table.open(str(tmp_path / "*.parquet")).read().num_rows == 4
    written(tmp_path / "z.parquet", pa.table({"other": [1]}))
    with pytest.raises(TableError, match=r"z\.parquet has the columns \['other'\], but .*\['x'\]"):
        Table.open(tmp_path)


def test_files_that_are_no_tables(tmp_path):
    cases = {
        "none.csv": (None, "there is no file"),
        "t.xlsx": (b"x", r"cannot tell what 't.xlsx' is: expected a suffix of .csv, .parquet"),
        "e.csv": (b"", "it is empty"),
        "e.parquet": (b"", "it is empty"),
        "p.parquet": (b"x,y\n1,2\n" * 10, "cannot read .*p.parquet as parquet"),
        "a.arrow": (b"x,y\n1,2\n" * 10, "cannot read .*a.arrow as arrow"),
        "ragged.csv": (b"a,b\n1,2\n3\n", "cannot read .*ragged.csv as csv: .*Expected 2 columns"),
    }
    for name, (content, message) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(TableError, match=message):
            Table.open(tmp_path / name).read()
    (tmp_path / "folder").mkdir()
    with pytest.raises(TableError, match=r"holds no \.parquet files"):
        Table.open(tmp_path / "folder")
    with pytest.raises(TableError, match="no file matches"):
        Table.open(str(tmp_path / "*.pq"))


def test_a_file_that_breaks_off_leaves_nothing(tmp_path):
    def breaks_off():
        with sink(tmp_path / "t.parquet") as out:
            out.write(TABLE.to_batches()[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        breaks_off()
    assert not list(tmp_path.iterdir())


def test_columns_become_numbers():
    columns = learn(TABLE, "y", dates="expand")
    assert columns.features == [
        "x", "flag", "site=a", "site=b",
        "when.days", "when.year_sin", "when.year_cos", "when.week_sin", "when.week_cos",
        "when.day_sin", "when.day_cos",
        "day.days", "day.year_sin", "day.year_cos", "day.week_sin", "day.week_cos",
    ]  # fmt: skip
    X = columns.matrix(TABLE)
    first = dict(zip(columns.features, X[0], strict=True))
    assert first["flag"] == 1 and first["site=a"] == 0 and first["site=b"] == 1
    assert first["when.days"] == 18267.5 and first["day.days"] == 18267.0  # a Monday
    assert first["when.week_cos"] == pytest.approx(np.cos(2 * np.pi * 0.5 / 7))
    assert first["day.week_sin"] == pytest.approx(0, abs=1e-12)
    assert first["when.day_cos"] == pytest.approx(-1)
    assert np.isnan(X[2, columns.features.index("when.days")])
    assert np.isnan(X[3, columns.features.index("site=a")])
    np.testing.assert_array_equal(columns.targets(TABLE), [1, 2, np.nan, 4])


def test_categories_are_those_of_fitting():
    columns = learn(TABLE, "y", features=["site"])
    new = pa.table({"site": pa.array(["a", "zebra", "a"]).dictionary_encode()})
    with pytest.raises(
        TableError, match="1 values that were not there in fitting, such as 'zebra'"
    ):
        columns.matrix(new)
    np.testing.assert_array_equal(columns.matrix(new, "zero"), [[1, 0], [0, 0], [1, 0]])
    by_number = learn(TABLE, "y", features=["x"], categorical=["x"])
    assert by_number.features == ["x=1", "x=2", "x=3", "x=4"]


BAD_COLUMNS = [
    (TABLE, {"target": "z"}, "no column 'z'; the table has 'y', 'x'"),
    (TABLE, {}, "column 'when' holds dates .*--drop when.*--dates expand"),
    (TABLE, {"target": "site"}, "the target 'site' is string, expected numbers"),
    (TABLE, {"features": ["y"]}, "no input columns are left"),
    (TABLE.slice(0, 0), {}, "a header but no rows"),
    (pa.table({"y": [1.0], "n": pa.nulls(1)}), {}, "column 'n' is empty"),
    (pa.table({"y": [1.0], "l": [[1, 2]]}), {}, "column 'l' is list.*--drop l"),
    (pa.table({"y": range(101), "id": list(map(str, range(101)))}), {}, "101 different values"),
]


@pytest.mark.parametrize(("table", "options", "message"), BAD_COLUMNS, ids=range(len(BAD_COLUMNS)))
def test_columns_that_cannot_be_used(table, options, message):
    with pytest.raises(TableError, match=message):
        learn(table, **{"target": "y"} | options)
