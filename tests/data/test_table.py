"""Tables in files: found, read as a whole and in pieces, written whole or not at all."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from object_store import ObjectStore
from tables import TABLE

from distgp.data.table import Table, TableError, find, sink

KINDS = pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])


def written(path, table=TABLE):
    path.parent.mkdir(exist_ok=True)
    with sink(path) as write:
        for batch in table.to_batches():
            write(batch)
    return path


def numbers(path):
    return Table.open(path).read().column("x").to_pylist()


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".pq", ".arrow", ".feather", ".ipc"])
def test_what_is_written_is_read_back(tmp_path, suffix):
    path = written(tmp_path / f"t{suffix}")
    table = Table.open(path)
    assert table.names == TABLE.schema.names
    back = table.read()
    assert back.column("x").to_pylist() == [1, 2, 3, 4]
    assert back.column("y").to_pylist() == [1.0, 2.0, None, 4.0]
    pieces = list(table.batches(rows=3))
    assert [p.num_rows for p in pieces] == [3, 1]
    assert pa.Table.from_batches(pieces).equals(back)


def test_other_writers_files(tmp_path):
    pa.feather.write_feather(TABLE, tmp_path / "a.feather", compression="lz4")
    with pa.ipc.new_stream(str(tmp_path / "b.arrow"), TABLE.schema) as out:
        out.write_table(TABLE)
    for name in ("a.feather", "b.arrow"):
        assert Table.open(tmp_path / name).read().num_rows == 4


@KINDS
def test_a_folder_a_glob_and_uris_of_both_are_the_same_table(tmp_path, bucket, suffix, monkeypatch):
    for i, name in enumerate(["b", "a", "deep/c", "deep/er/d"]):
        written(tmp_path / f"t/{name}.{suffix}", pa.table({"x": [i, i + 10]}))
    everything = [1, 11, 0, 10, 2, 12, 3, 13]
    monkeypatch.chdir(tmp_path)
    for root in ("t", str(tmp_path / "t"), f"file://{tmp_path}/t"):
        assert numbers(root) == everything
        assert numbers(f"{root}/**/*.{suffix}") == everything
        assert numbers(f"{root}/*.{suffix}") == everything[:4]
        assert numbers(f"{root}/*/c.{suffix}") == everything[4:6]
        assert numbers(f"{root}/[a].{suffix}") == everything[:2]
        assert numbers(f"{root}/deep/c.{suffix}") == everything[4:6]
    assert numbers(bucket("t")) == numbers(bucket(f"t/**/*.{suffix}")) == everything
    assert numbers(bucket(f"t/*.{suffix}")) == everything[:4]
    assert numbers(bucket(f"t/deep/c.{suffix}")) == everything[4:6]


def test_a_name_with_brackets_is_no_pattern_where_the_file_is_there(tmp_path):
    assert numbers(written(tmp_path / "t[1].csv")) == [1, 2, 3, 4]


def test_hidden_files_of_folders_are_left_out(tmp_path):
    for i, name in enumerate(["a", ".b", "_c", "_temporary/d", "deep/.e", "deep/f"]):
        written(tmp_path / f"{name}.parquet", pa.table({"x": [i]}))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").touch()
    assert numbers(tmp_path) == [0, 5]
    assert numbers(tmp_path / "*.parquet") == [2, 0], "wildcards match no leading dot"
    assert numbers(tmp_path / ".*.parquet") == [1]


def test_files_must_have_the_same_columns(tmp_path):
    written(tmp_path / "a.parquet", pa.table({"x": [1, 2]}))
    written(tmp_path / "z.parquet", pa.table({"other": [1]}))
    with pytest.raises(TableError, match=r"z\.parquet has the columns \['other'\], but .*\['x'\]"):
        Table.open(tmp_path)
    written(tmp_path / "z.parquet", pa.table({"x": ["one"]}))
    with pytest.raises(
        TableError, match=r"z\.parquet and .*a\.parquet have columns of other types"
    ):
        Table.open(tmp_path)
    (tmp_path / "twice.csv").write_text("x,x\n1,2\n")
    with pytest.raises(TableError, match=r"twice\.csv has more than one column 'x': rename them"):
        Table.open(tmp_path / "twice.csv")
    with pytest.raises(TableError, match=r"several kinds: csv, parquet\. Choose one with a glob"):
        Table.open(tmp_path)


@KINDS
def test_types_are_unified_over_files(tmp_path, suffix):
    written(tmp_path / f"a.{suffix}", pa.table({"x": [1, 2], "s": ["a", "b"]}))
    texts = pa.array(["c"]) if suffix == "csv" else pa.array(["c"]).dictionary_encode()
    written(tmp_path / f"b.{suffix}", pa.table({"s": texts, "x": [0.5]}))
    table = Table.open(tmp_path)
    assert table.schema.field("x").type == pa.float64()
    assert table.read().to_pydict() == {"x": [1.0, 2.0, 0.5], "s": ["a", "b", "c"]}
    assert {piece.schema for piece in table.batches()} == {table.schema}


def test_an_index_of_pandas_stays_one(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0]}, index=pd.Index([5, 7], name="__index_level_0__"))
    frame.to_parquet(tmp_path / "t.parquet")
    pieces = list(Table.open(tmp_path / "t.parquet").batches({}))
    written(tmp_path / "out.parquet", pa.Table.from_batches(pieces))
    assert list(pd.read_parquet(tmp_path / "out.parquet").columns) == ["x"]


def test_types_of_csv_columns_can_be_declared(tmp_path):
    (tmp_path / "t.csv").write_text("x,id,empty\n1,007,\n2,08,\n")
    table = Table.open(tmp_path / "t.csv")
    assert table.read().column("id").to_pylist() == [7, 8]
    assert table.read(["id"]).column("id").to_pylist() == ["007", "08"]
    (piece,) = table.batches({"id": pa.string(), "x": pa.float64(), "elsewhere": pa.float64()})
    assert piece.column("id").to_pylist() == ["007", "08"]
    assert piece.schema.field("x").type == pa.float64()
    assert piece.schema.field("empty").type == pa.string()


def test_a_file_that_goes_on_with_other_types_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("x\n" + "1\n" * 2**23 + "one\n")
    with pytest.raises(
        TableError, match=r"conversion error.*types come from the model, or from the"
    ):
        list(Table.open(tmp_path / "t.csv").batches())


def test_files_that_are_no_tables(tmp_path):
    cases = {
        "none.csv": (None, "there is no file"),
        "t.xlsx": (b"x", r"cannot tell what 't.xlsx' is: expected a suffix of .csv, .parquet"),
        "e.csv": (b"", "it is empty"),
        "e.parquet": (b"", "it is empty"),
        "e.arrow": (b"", "it is empty"),
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
    with pytest.raises(TableError, match=r"folder' holds no files that end in \.csv, \.parquet"):
        Table.open(tmp_path / "folder")
    with pytest.raises(TableError, match="no file matches"):
        Table.open(str(tmp_path / "*.pq"))
    with pytest.raises(TableError, match=r"cannot list ftp://host/t\.csv: "):
        Table.open("ftp://host/t.csv")


def test_what_an_object_store_lacks(tmp_path, bucket):
    written(tmp_path / "t" / "a.csv")
    for path, message in [
        ("t/b.csv", "there is no file 's3://bucket/t/b.csv"),
        ("t/*.parquet", "no file matches"),
        ("u", "there is no file"),
    ]:
        with pytest.raises(TableError, match=message):
            Table.open(bucket(path))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_an_object_store_that_is_closed_between_looking_and_reading(
    tmp_path, bucket, monkeypatch, name
):
    written(tmp_path / "t" / name)
    table = Table.open(bucket(f"t/{name}"))
    monkeypatch.setattr(ObjectStore, "_found", lambda store: (403, b""))
    with pytest.raises(TableError, match=rf"cannot read .*{name}.*ACCESS_DENIED"):
        table.read()


def test_a_file_that_breaks_off_leaves_nothing(tmp_path):
    def breaks_off():
        with sink(tmp_path / "t.parquet") as write:
            write(TABLE.to_batches()[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        breaks_off()
    assert not list(tmp_path.iterdir())


def test_csv_puts_into_quotes_what_needs_them_alone(tmp_path):
    lines = 'id,size,note\n007,1.50,plain\n1e3,,"a, ""b""\nc"\n'
    (tmp_path / "t.csv").write_text(lines)
    (piece,) = Table.open(tmp_path / "t.csv").batches({})
    with sink(tmp_path / "out.csv") as write:
        write(piece)
    assert (tmp_path / "out.csv").read_text() == lines
    values = pa.record_batch({"t": ["", None], "x": [1.5, None], "b": [True, None]})
    with sink(tmp_path / "values.csv") as write:
        write(values)
        write(values)
    assert (tmp_path / "values.csv").read_text() == "t,x,b\n" + 2 * '"",1.5,true\n,,\n'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("a;b\n1.5;2\n", r"by semicolons, .*pandas.read_csv\('t.csv', sep=';'\)"),
        ("a;b\n1,5;2,5\n", r"by semicolons, expected commas, .* sep=';', decimal=','\)"),
        ('"a, in m";"b"\n1;2\n', "is separated by semicolons"),
        ("a\tb\n1\t2\n", r"is separated by tabs, .* sep='\\t'\)"),
    ],
)
def test_another_separator_than_a_comma_is_told(tmp_path, lines, said):
    (tmp_path / "t.csv").write_text(lines)
    with pytest.raises(TableError, match=said):
        Table.open(tmp_path / "t.csv")


def test_utf_16_is_told(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n", encoding="utf-16")
    with pytest.raises(TableError, match="is written in UTF-16, expected UTF-8: convert it"):
        Table.open(tmp_path / "t.csv")


def test_semicolons_in_names_and_values_are_no_separators(tmp_path):
    (tmp_path / "t.csv").write_text('"a;b",c;d\n1;2,3\n')
    assert Table.open(tmp_path / "t.csv").read().to_pylist() == [{"a;b": "1;2", "c;d": 3}]
    (tmp_path / "one.csv").write_text('"a;b"\n1\n')
    assert Table.open(tmp_path / "one.csv").names == ["a;b"]


def test_csv_refuses_lists(tmp_path):
    with pytest.raises(TableError, match=r"column 'l' is list.*, which CSV cannot hold"):
        written(tmp_path / "t.csv", pa.table({"l": [[1, 2]]}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_long_batch_is_not_held_as_a_whole(tmp_path, suffix):
    path = written(
        tmp_path / f"t.{suffix}", pa.table({"x": np.random.default_rng(0).random(10**6)})
    )
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in Table.open(path).batches({})]
    assert max(held) < 4e6, "the column has 8 MB"


def test_links_do_not_make_rows_of_rows(tmp_path):
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for name in ("a.csv", "more/b.csv", "../elsewhere/c.csv"):
        (folder / name).write_text("x,y\n1,2\n")
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "more" / "up").symlink_to(folder, target_is_directory=True)
    (folder / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (folder / "again.csv").symlink_to(folder / "a.csv")
    for path in (folder, folder / "**" / "*.csv"):
        assert Table.open(path).read().num_rows == 3
    assert find(folder / "loop").paths[0].endswith("/data/loop/a.csv")
