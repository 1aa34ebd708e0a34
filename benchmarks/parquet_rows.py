"""Ten million rows of Parquet, from files to a fitted model, on two Ray workers.

    python benchmarks/parquet_rows.py [--rows 10000000] [--engine local]
    python benchmarks/parquet_rows.py --page         writes the table into docs/engines.md

Eight columns and a target in 40 files, written first. `fit_parquet` with expert="sparse"; each worker
reads its own files. Seconds of reading and encoding, of finding means and scales and standardising, of
training (10,000 rows of a sample), of choosing inducing inputs and conditioning on all rows, and in all.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import measured_with, processor, read_csv, table_in_page, write_csv

import distgp
from distgp.aggregation import Ensemble
from distgp.data import moments, parquet
from distgp.training import Learning

RESULTS = Path(__file__).parent / "results" / "parquet.csv"
PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
FILES, COLUMNS = 40, 8
STEPS = ("read", "standardise", "train", "condition")


def write(folder: Path, rows: int) -> None:
    """A smooth function of eight columns with noise, in files."""
    for i in range(FILES):
        rng = np.random.default_rng(i)
        X = rng.uniform(size=(rows // FILES, COLUMNS))
        y = (
            np.sin(6 * X[:, 0])
            + X[:, 1] * X[:, 2]
            + np.cos(4 * X[:, 3])
            + 0.1 * rng.normal(size=len(X))
        )
        names = {f"x{j}": X[:, j] for j in range(COLUMNS)}
        pq.write_table(pa.table(names | {"y": y}), folder / f"part-{i:03d}.parquet")


def noted(times: dict[str, float], step: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which adds its seconds to those of a step."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            times[step] += time.perf_counter() - begin

    return call


def measured(rows: int, engine: str) -> dict[str, object]:
    times: dict[str, float] = dict.fromkeys(STEPS, 0.0)
    parquet.read = noted(times, "read", parquet.read)
    moments.scaling_of = noted(times, "standardise", moments.scaling_of)
    moments.standardise = noted(times, "standardise", moments.standardise)
    Learning.on = noted(times, "train", Learning.on)
    Ensemble.condition = staticmethod(noted(times, "condition", Ensemble.condition))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), rows)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        if engine == "ray":
            from distgp.engines.ray import RayEngine

            opened: Any = RayEngine(workers=2)
        else:
            opened = engine
        gp = distgp.DistributedGPRegressor(expert="sparse", engine=opened, random_state=0)
        begin = time.perf_counter()
        gp.fit_parquet(folder, target="y")
        whole = time.perf_counter() - begin
        if engine == "ray":
            opened.close()
    return {"rows": rows, "gib": size / 2**30, "engine": engine, **times, "all": whole}


def page() -> None:
    rows, lines = read_csv(RESULTS), []
    for row in rows:
        steps = ", ".join(f"{name} {float(row[name]):.1f} s" for name in STEPS)
        size = f"{int(row['rows']):,} rows ({float(row['gib']):.2f} GiB)"
        lines.append(
            f"- {size}, engine {row['engine']}: {steps}; in all {float(row['all']):.1f} s."
        )
    lines += ["", measured_with(rows)]
    table_in_page(PAGE, "parquet", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ten million rows of Parquet to a fitted model")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--engine", default="ray", choices=("ray", "local"))
    parser.add_argument("--page", action="store_true", help="write the table and measure nothing")
    options = parser.parse_args()
    if options.page:
        page()
        return
    row = measured(options.rows, options.engine) | {"machine": processor()}
    print(row)
    write_csv([row], RESULTS, "cpu")


if __name__ == "__main__":
    main()
