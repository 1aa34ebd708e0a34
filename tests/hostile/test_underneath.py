"""What is loaded and changes underneath: files replaced, cut, emptied, removed with their folder.

A loaded model predicts what it did, a table that is read while it changes gives the rows of one of its two
states or says what is wrong, and no process is killed by it.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hostile import calls
from hostile.trial import CLEAR, LIMIT, alike, count, ending, outcome, times, tiny, unclear

import distgp
from distgp.data.table import Table

MODELS = dict(calls.models())
WITHOUT_ROWS = ("this aggregator needs the training rows",)
"""A file holds none of sparse experts, which is said on docs/using.md and where they are saved."""


def replaced(path, other):
    shutil.copy(other, f"{path}.new")
    os.replace(f"{path}.new", path)


def overwritten(path, other):
    with open(path, "r+b") as file:
        file.write(Path(other).read_bytes())


def cut(path, other):
    os.truncate(path, os.path.getsize(path) // 2)


def emptied(path, other):
    os.truncate(path, 0)


def removed(path, other):
    os.remove(path)


def folder_removed(path, other):
    shutil.rmtree(os.path.dirname(path))


def folder_instead(path, other):
    os.remove(path)
    os.mkdir(path)


def a_link_to_itself(path, other):
    os.remove(path)
    os.symlink(path, path)


def grown(path, other):
    with open(path, "ab") as file:
        file.write(bytes(1000))


def zeros(path, other):
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.write(bytes(size))


CHANGES = (overwritten, replaced, cut, emptied, zeros, removed, folder_removed, folder_instead,
           a_link_to_itself, grown)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_does_not_depend_on_its_file(name, tmp_path):
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = calls.case_of(MODELS[name], tmp_path / "rows")
    known = [n for n in calls.methods(type(case.gp)) if n not in ("save", "close", "gather")]
    tiny().fit(case.X, 2 * case.y).save(tmp_path / "other.safetensors")
    for change in CHANGES[:: times(4, 1)]:
        (tmp_path / "m").mkdir()
        path = tmp_path / "m" / "model.safetensors"
        case.gp.save(path)
        loaded = calls.Case(distgp.load(path), case.X, case.y, case.folder)
        change(path, tmp_path / "other.safetensors")
        for _ in range(times(5, 80)):
            method, seed = str(rng.choice(known)), int(rng.integers(2**31))
            pair = [calls.call(c, method, np.random.default_rng(seed))[0] for c in (case, loaded)]
            (one, refused), (other, error) = (
                ending(kind, lambda run=run: calls.numbers(run(), case.points))
                for kind, run in zip((None, "changed underneath"), pair, strict=True)
            )
            if alike(refused, error, f"{method}, {change.__name__}", WITHOUT_ROWS):
                for a, b in zip(one, other, strict=True):
                    np.testing.assert_array_equal(a, b)
        shutil.rmtree(tmp_path / "m", ignore_errors=True)


def write(path, rows, kind, seed):
    values = np.random.default_rng(seed).normal(size=(rows, 3))
    table = pa.table(dict(zip("aby", values.T, strict=True)))
    with open(path, "wb") as file:
        if kind == "csv":
            pa.csv.write_csv(table, file)
        elif kind == "parquet":
            pq.write_table(table, file, row_group_size=50)
        else:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=50)


def sums(batches):
    """The sum of each batch: it reads all of its bytes."""
    return [
        float(np.sum([np.sum(column.to_numpy(zero_copy_only=False)) for column in batch.columns]))
        for batch in batches
    ]


def tries_of_tables(folder, count, seed):
    """Tables that change after they were opened, or while they are read: how they ended."""
    rng, ends = np.random.default_rng(seed), []
    for i in range(count):
        kind = ("csv", "parquet", "arrow")[i % 3]
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        here = Path(folder) / "t"
        here.mkdir()
        path, other = here / f"t.{kind}", Path(folder) / f"other.{kind}"
        write(path, 20_000 if i % 2 else 400, kind, i)
        write(other, int(rng.integers(1, 30_000)), kind, i + 1)
        try:
            table = Table.open(path)
            if rng.random() < 0.5:
                change(path, other)
                sums(table.read().to_batches())
            else:
                batches = table.batches(rows=100)
                sums([next(batches)])
                change(path, other)
                sums(batches)
            ends.append("held: a result")
        except Exception as error:
            why = unclear(error) if isinstance(error, CLEAR) else repr(error)
            ends.append(
                "held: a clear error" if why is None else f"{kind} {change.__name__}: {why} {error}"
            )
        shutil.rmtree(here, ignore_errors=True)
    return ends


TABLES = """
import json, sys
from hostile import test_underneath
print(json.dumps(test_underneath.tries_of_tables(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
"""


def test_tables_that_change_while_they_are_read(tmp_path):
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        TABLES,
        str(tmp_path),
        str(times(30, 900)),
        "0",
    ]
    path = os.pathsep.join(map(str, sys.path))  # where pytest finds these tests
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        timeout=4 * LIMIT,
    )
    assert done.returncode == 0, f"ended by {done.returncode}: {done.stderr[-2000:]}"
    ends = json.loads(done.stdout)
    for end in ends:
        count("changed underneath", end if end.startswith("held") else "broke")
    wrong = sorted({end for end in ends if not end.startswith("held")})
    assert not wrong, "\n".join(wrong)


def test_rows_that_workers_read_are_those_of_the_fit_or_refused(tmp_path):
    """Between looking at the files and reading their rows, and between reading them twice."""
    from distgp import file_rows

    rng = np.random.default_rng(1)
    for i in range(times(6, 200)):
        (tmp_path / "t").mkdir()
        path, other = tmp_path / "t" / "t.parquet", tmp_path / "other.parquet"
        write(path, 60, "parquet", i)
        write(other, 60, "parquet", i + 1)
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        gp = tiny(training=None)
        point = pd.DataFrame({"a": [0.0], "b": [0.0]})
        expected = gp.fit_parquet(str(path), target="y").predict(point)
        real, done = file_rows.FileRows, []

        def later(*given, real=real, change=change, path=path, other=other, done=done):
            done.append(1)
            change(path, other)
            return real(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_rows, "FileRows", later)
            found = outcome(
                "changed underneath", lambda gp=gp, path=path: gp.fit_parquet(str(path), target="y")
            )
        assert done
        if found is not None:
            np.testing.assert_array_equal(found.predict(point), expected)
        shutil.rmtree(tmp_path / "t", ignore_errors=True)
