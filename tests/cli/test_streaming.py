"""Tables are predicted and scored in pieces."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import distgp
from distgp.cli.streaming import columns_of, fit_table, row_values
from distgp.data.table import TableError
from distgp.engines import LocalEngine
from distgp.engines.devices import DevicesEngine

COMMAND = Path(sys.executable).parent / "distgp"
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "model.safetensors"
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(size=300), "b": rng.uniform(size=300)})
    distgp.DistributedGPRegressor(expert="sparse", n_inducing=12, n_iter=4).fit(
        X, np.sin(6 * X["a"]) + 0.1 * rng.normal(size=300)
    ).save(path)
    return path


def write_parquet(path, rows):
    """In pieces, but as few row groups as Parquet writers make by default (a million rows each)."""
    schema = pa.schema([("a", pa.float64()), ("b", pa.float64()), ("note", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 1_000_000):
            rng, n = np.random.default_rng(start), min(1_000_000, rows - start)
            notes = pa.array(["row"]).take(pa.array(np.zeros(n, dtype=np.int64)))
            columns = [rng.uniform(size=n), rng.uniform(size=n), notes]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=1_000_000)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(small_model, tmp_path):
    peaks = {}
    for rows in (1_000_000, 4_000_000):
        data, out = tmp_path / f"{rows}.parquet", tmp_path / f"out-{rows}.parquet"
        write_parquet(data, rows)
        command = [COMMAND, "predict", small_model, data, "-o", out]
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *map(str, command)],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks[rows] = int(done.stdout) / 1024
        assert pq.ParquetFile(out).metadata.num_rows == rows
    # The rows that the longer file has more take 48 MiB alone, their predictions as much again.
    assert peaks[4_000_000] < peaks[1_000_000] + 60, peaks


def test_a_model_without_names_fits_no_table():
    X = np.linspace(0, 1, 20)[:, None]
    model = distgp.DistributedGPRegressor(training=None)
    with pytest.raises(TableError, match="fitted to an array without column names"):
        columns_of(model.fit(X, X[:, 0]))
    with pytest.raises(TableError, match="several targets, which tables cannot have"):
        columns_of(model.fit(X, np.column_stack([X, X])))


def test_a_model_fitted_to_a_frame_knows_its_columns(small_model):
    assert columns_of(distgp.load(small_model)).features == ["a", "b"]


def times(values, keep=None):
    keep = np.ones(len(values), dtype=bool) if keep is None else np.array(keep)
    return row_values(pa.table({"t": values}), {"time": "t"}, keep)["time"]


def test_times_are_numbers_or_dates():
    np.testing.assert_array_equal(times(pa.array([3, 1, 2])), [3.0, 1.0, 2.0])
    expected = np.array(["2024-01-02", "2024-01-01"], dtype="datetime64[us]")
    for kind in (pa.date32(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ms", "UTC")):
        values = pa.array(pd.to_datetime(["2024-01-02", "2024-01-01"])).cast(kind)
        np.testing.assert_array_equal(times(values), expected)
    np.testing.assert_array_equal(times(pa.array(["2024-01-02", "2024-01-01"])), expected)


def test_times_of_rows_that_are_left_out_may_be_missing():
    values = pa.array([1.0, None, 2.0])
    np.testing.assert_array_equal(times(values, [True, False, True]), [1.0, 2.0])
    with pytest.raises(TableError, match="1 rows have no 't' to order them by"):
        times(values)
    with pytest.raises(TableError, match="1 rows have no 't' to order them by"):
        times(pa.array([1.0, float("nan")]))
    with pytest.raises(TableError, match="expected numbers or dates such as 2024-12-31"):
        times(pa.array(["soon", "later"]))
    with pytest.raises(TableError, match="no column 'u'; there are t"):
        row_values(pa.table({"t": [1]}), {"groups": "u"}, np.array([True]))


@pytest.mark.parametrize("expert", ["exact", "sparse"])
def test_workers_that_read_by_themselves_know_weights_and_groups(tmp_path, expert):
    path, rng = tmp_path / "rows.parquet", np.random.default_rng(0)
    rows = {"a": rng.normal(size=120), "w": rng.choice([0.5, 2.0], 120), "who": np.arange(120) % 4}
    table = pd.DataFrame(rows).assign(y=np.sin(rows["a"]) + 0.1 * rng.normal(size=120))
    table.loc[7, "a"] = np.nan
    table.to_parquet(path)
    given = {"sample_weight": "w", "groups": "who"}
    found = []
    for engine in (LocalEngine(), DevicesEngine(["cpu", "cpu"])):
        model = distgp.DistributedGPRegressor(
            expert, 2, n_inducing=5, engine=engine, n_iter=2, calibrate="mondrian"
        )
        options = {"categorical": [], "features": ["a"]}
        assert fit_table(model, str(path), "y", None, "drop", given, **options) == 1
        found.append(model.model_.targets[0].calibration)
    assert found[0].groups == found[1].groups == ("0", "1", "2", "3")
    assert len(found[0].scores) == len(found[1].scores) == 23
