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
from distgp.cli.streaming import columns_of
from distgp.data.table import TableError

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
