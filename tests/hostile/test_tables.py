"""Tables of every kind: fitted and predicted by the commands, or refused in one line, and never altered."""

import csv
import io
import json
import os
import shutil
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli.conftest import run_command
from hostile.trial import count, times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import distgp
from distgp.cli import app
from distgp.data.encoding import learn_columns
from distgp.data.table import Table, TableError, refuse_repeated

FEW = ("--expert", "exact", "--n-experts", "2", "--n-iter", "2", "-q")


def command(*arguments):
    """A command's exit code and what it said, on one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = CliRunner(env={"NO_COLOR": "1"}).invoke(app, [str(a) for a in arguments])
    return done.exit_code, done.output


def frame(n=30, seed=0):
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n)})
    return made.assign(y=np.sin(made["a"]) + 0.1 * rng.normal(size=n))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of a, b and a country whose code is NA."""
    folder = tmp_path_factory.mktemp("tables")
    country = ["NA" if i % 3 else "DE" for i in range(30)]
    frame().assign(country=country).to_csv(folder / "t.csv", index=False)
    run_command("fit", folder / "t.csv", "--target", "y", "-o", folder / "m.safetensors", *FEW)
    return folder / "m.safetensors"


def test_a_code_that_reads_na_is_a_text_like_any_other(model):
    assert distgp.load(model).model_.schema.table.inputs[2].categories == ("DE", "NA")


def test_what_is_only_passed_on_stays_as_written(model, tmp_path):
    other = {"id": "00001", "big": "100000000000000000001", "note": "NA", "day": "2020-1-1", "none": "",
             "quoted": 'say "x", twice\nor more', "y": "not known", "flag": "TRUE"}  # fmt: skip
    rows = [{"a": "0.5", "b": "-1", "country": "NA"} | other for _ in range(3)]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    run_command("predict", model, tmp_path / "t.csv", "-o", tmp_path / "out.csv", "-q")
    with (tmp_path / "out.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert {name: row[name] for name in other} == other


def test_lines_inside_quotes_in_a_file_of_many_blocks(tmp_path):
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["note", "a", "y"])
        writer.writerows((f"one\ntwo, {i}" + "x" * 200, i % 7, i % 7) for i in range(90_000))
    table = Table.open(tmp_path / "t.csv")
    assert table.read().num_rows == sum(b.num_rows for b in table.batches({})) == 90_000


def test_dates_of_another_kind_than_in_fitting(tmp_path):
    data = frame().assign(when=pd.date_range("2024-01-01", periods=30, freq="h"))
    data.to_parquet(tmp_path / "t.parquet")
    run_command("fit", tmp_path / "t.parquet", "--target", "y", "--dates", "expand", "-o",
                tmp_path / "m.safetensors", *FEW)  # fmt: skip
    whole_numbers = data.assign(when=np.arange(30))
    zoned = data.assign(when=data["when"].dt.tz_localize("UTC"))
    for bad, said in ((whole_numbers, "held dates in fitting"), (zoned, "without a time zone")):
        for suffix, write in ((".parquet", bad.to_parquet), (".csv", bad.to_csv)):
            write(tmp_path / f"bad{suffix}")
            if suffix == ".csv" and bad is zoned:
                continue  # pandas writes +00:00, which pyarrow reads as such only where all rows have it
            done = run_command("predict", tmp_path / "m.safetensors", tmp_path / f"bad{suffix}", "-o",
                               tmp_path / "o.csv", fails=True)  # fmt: skip
            assert said in " ".join(done.output.split())
    assert not (tmp_path / "o.csv").exists()


def test_an_index_that_pandas_wrote_is_no_input(tmp_path):
    frame().to_csv(tmp_path / "t.csv")
    done = run_command(
        "fit", tmp_path / "t.csv", "--target", "y", "-o", tmp_path / "m.st", "--json", *FEW
    )
    assert json.loads(done.stdout)["features"] == ["a", "b"]
    pd.read_csv(tmp_path / "t.csv").to_csv(
        tmp_path / "u.csv", index=False
    )  # now it is 'Unnamed: 0'
    done = run_command(
        "fit", tmp_path / "u.csv", "--target", "y", "-o", tmp_path / "n.st", "--json", *FEW
    )
    assert json.loads(done.stdout)["features"] == ["a", "b"]


def test_folders_are_read_without_what_is_hidden_and_with_their_keys(tmp_path):
    for name in ("year=2023/a", "year=2024/b", ".ipynb_checkpoints/a", "year=2023/._a", "_tmp/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        frame().to_parquet(tmp_path / f"{name}.parquet", index=False)
    table = Table.open(tmp_path)
    assert table.names == ["a", "b", "y", "year"] and table.read().num_rows == 60
    assert table.read().column("year").unique().to_pylist() == [2023, 2024]
    gp = distgp.DistributedGPRegressor(expert="sparse", n_experts=2, n_inducing=5, n_iter=2)
    gp.fit_parquet(tmp_path, "y", categorical=["year"])
    assert gp.model_.schema.table.features == ["a", "b", "year=2023", "year=2024"]
    assert Table.open(tmp_path / "year=2023").names == ["a", "b", "y"], (
        "below the folder that is given"
    )
    assert "year" in Table.open(tmp_path / "year*/*.parquet").names
    (tmp_path / "y=1").mkdir()
    frame().to_parquet(tmp_path / "y=1/c.parquet", index=False)
    with pytest.raises(TableError, match="has a column 'y', and its folder's name gives another"):
        Table.open(tmp_path / "y*/*.parquet")


def test_keys_that_are_no_numbers(tmp_path):
    for name in ("code=007", "code=__HIVE_DEFAULT_PARTITION__", "code=a%20b"):
        (tmp_path / name).mkdir()
        frame(2).to_csv(tmp_path / name / "t.csv", index=False)
    assert Table.open(tmp_path).read().column("code").unique().to_pylist() == ["007", None, "a b"]


def test_inputs_are_not_overwritten(model, tmp_path):
    frame().assign(country="DE").to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "link.csv").symlink_to(tmp_path / "t.csv")
    before = (tmp_path / "t.csv").read_bytes(), model.read_bytes()
    for arguments in (
        ("predict", model, tmp_path / "t.csv", "-o", tmp_path / "t.csv"),
        ("predict", model, tmp_path / "t.csv", "-o", tmp_path / "link.csv"),
        ("fit", tmp_path / "t.csv", "--target", "y", "-o", tmp_path / "link.csv"),
    ):
        done = run_command(*arguments, "--force", fails=True)
        assert "is read by this command: give another name" in " ".join(done.output.split())
    assert before == ((tmp_path / "t.csv").read_bytes(), model.read_bytes())


def test_nothing_is_not_the_current_folder(tmp_path):
    done = run_command("fit", "", "--target", "y", "-o", tmp_path / "m.st", fails=True)
    assert "got an empty text" in done.output


def test_other_encodings_name_the_file(tmp_path):
    (tmp_path / "latin.csv").write_bytes("a,b,y\n1,café,2\n3,x,4\n".encode("latin1"))
    done = run_command(
        "fit", tmp_path / "latin.csv", "--target", "y", "-o", tmp_path / "m.st", fails=True
    )
    assert "latin.csv is not written in UTF-8" in " ".join(done.output.split())


def odd(path):
    """A name beside a path, in Latin-1, as old archives have them."""
    return path.parent / os.fsdecode("é".encode("latin1") + os.fsencode(path.name))


def test_names_that_are_not_utf_8(model, tmp_path):
    plain, named = tmp_path / "plain.csv", tmp_path / "named.csv"
    frame(40).assign(country="DE").to_csv(plain, index=False)
    named.write_bytes(plain.read_text().replace("a,", "ä,", 1).encode("latin1"))
    for read in (("fit", named, "--target", "y"), ("predict", model, named)):
        out = run_command(*read, "-o", tmp_path / "o.csv", fails=True).output
        assert "names of its columns are not written in UTF-8" in out and out.count("\n") == 1
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(plain, odd(folder / "a.csv"))
    for table in (odd(folder / "a.csv"), folder, f"{folder}/*.csv", odd(folder / "nowhere.csv")):
        out = run_command("predict", model, table, "-o", tmp_path / "o.csv", fails=True)
        assert "is not written in UTF-8: rename it" in out.output, out.output
    run_command("predict", model, plain, "-o", odd(tmp_path / "o.csv"))
    assert len(pd.read_csv(odd(tmp_path / "o.csv"))) == 40
    out = run_command("fit", plain, "--target", "y", "-o", odd(tmp_path / "m"), fails=True)
    assert "cannot write" in out.output and "give another" in out.output
    assert len([*tmp_path.iterdir()]) == 4


def test_long_rows_are_read_by_all_commands_alike(model, tmp_path):
    path, read = tmp_path / "long.csv", []
    for mebibytes in (3, 20, 40):
        table = frame(40).assign(note="x", country="DE")
        table.loc[20, "note"] = "x" * 2**20 * mebibytes
        table.to_csv(path, index=False)
        fails = mebibytes == 40
        fit = ["fit", path, "--target", "y", "--drop", "note", "-o", tmp_path / "m", "--force"]
        few = ["--expert", "exact", "--n-experts", "1", "--training", "none"]
        said = [
            run_command(*fit, *few, fails=fails).output,
            run_command(
                "predict", model, path, "-o", tmp_path / "o.csv", "--force", fails=fails
            ).output,
            run_command("score", model, path, "--target", "y", fails=fails).output,
        ]
        assert not fails or all("a row has more than 16 MiB" in one for one in said)
        read.append(not fails)
    assert read == [True, True, False]


def test_typing_mistakes_do_not_drop_rows(tmp_path):
    frame().to_parquet(tmp_path / "t.parquet")
    gp = distgp.DistributedGPRegressor(expert="sparse", n_inducing=5, n_iter=2)
    for wrong in ({"missing": "Refuse"}, {"missing": None}, {"dates": "foo"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            gp.fit_parquet(tmp_path / "t.parquet", "y", **wrong)


def test_a_million_columns_are_looked_at_in_no_time():
    names = [f"c{i}" for i in range(1_000_000)]
    refuse_repeated(names, "the table")
    with pytest.raises(TableError, match="more than one column 'c7'"):
        refuse_repeated([*names, "c7"], "the table")
    schema = pa.schema([(name, pa.float64()) for name in names[:100_000]])
    assert len(learn_columns(schema, set, "c0").inputs) == 99_999
    with pytest.raises(TableError, match=r"and 99,950 more$"):
        learn_columns(schema, set, "nowhere")


def test_infinity_is_not_json(model, tmp_path):
    (tmp_path / "t.csv").write_text("a,b,country,y\n0,0,DE,1e200\n1,1,DE,2\n")
    done = run_command("score", model, tmp_path / "t.csv", "--json")
    assert json.loads(done.stdout, parse_constant=pytest.fail)["rmse"] is None


VALUE = st.one_of(
    st.none(),
    st.floats(width=64),
    st.integers(-(10**20), 10**20),
    st.booleans(),
    st.sampled_from(
        ["", "NA", "nan", "NULL", "1e400", "-", "0x1", "1,5", "2020-01-01", "a\nb", '"', "é"]
    ),
    st.text(max_size=5),
)
NAME = st.one_of(
    st.sampled_from(["a", "b", "y", "", "Unnamed: 0", "a b", "ä", "=", "mean"]), st.text(max_size=4)
)


@st.composite
def tables(draw):
    """A table of a few rows as CSV or Parquet: columns of one kind of value, or of any."""
    n = draw(st.integers(0, 30))
    names = draw(st.lists(NAME, min_size=1, max_size=4, unique=True))
    numbers = st.lists(st.floats(-1e3, 1e3), min_size=n, max_size=n)
    anything = st.lists(VALUE, min_size=n, max_size=n)
    columns = [draw(st.one_of(numbers, numbers, anything)) for _ in names]
    columns.append(draw(numbers))
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "latin1", "utf-16"]))
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    return [*names, "target"], columns, encoding, quoting, draw(st.sampled_from(["\n", "\r\n"]))


@settings(
    max_examples=times(25, 600), deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(table=tables())
def test_any_table_is_fitted_and_predicted_or_refused_in_one_line(table, tmp_path_factory):
    names, columns, encoding, quoting, end = table
    folder = tmp_path_factory.mktemp("any")
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=quoting, lineterminator=end)
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    (folder / "t.csv").write_bytes(text.getvalue().encode(encoding, errors="replace"))
    code, said = command("fit", folder / "t.csv", "--target", "target", "-o", folder / "m.st", "--missing",
                         "drop", *FEW)  # fmt: skip
    check(code, said, folder / "m.st")
    if code == 0:
        code, said = command(
            "predict", folder / "m.st", folder / "t.csv", "-o", folder / "o.csv", "-q"
        )
        check(code, said, folder / "o.csv")
        if code == 0:
            assert not pd.read_csv(folder / "o.csv")[["mean", "std"]].isna().any(axis=None)


@settings(
    max_examples=times(15, 200), deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    content=st.binary(max_size=300),
    suffix=st.sampled_from([".csv", ".parquet", ".arrow"]),
    whole=st.booleans(),
)
def test_any_bytes_are_refused_in_one_line(content, suffix, whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    path = folder / f"t{suffix}"
    if whole and suffix == ".parquet":  # a real file with bytes put over its middle
        pq.write_table(pa.Table.from_pandas(frame()), path)
        real = bytearray(path.read_bytes())
        real[len(real) // 3 : len(real) // 3 + len(content)] = content
        content = bytes(real)
    path.write_bytes(content)
    code, said = command("fit", path, "--target", "y", "-o", folder / "m.st", *FEW)
    check(code, said, folder / "m.st")


def check(code, said, output):
    """A result, or one line with code 2 and no file; never a mistake of our own."""
    held = f"held: {'a result' if code == 0 else 'a clear error'}"
    count("tables", held if code in (0, 2) else "broke")
    assert code in (0, 2) and "mistake of distgp's own" not in said, said
    assert output.exists() == (code == 0)
    if code == 2:
        errors = [line for line in said.splitlines() if not line.startswith("warning: ")]
        assert len(errors) == 1 and errors[0].startswith("distgp: "), said
    assert not [*output.parent.glob(".*.part")]
