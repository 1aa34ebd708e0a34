"""Tables in, tables out: what the commands do with a model and the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from distgp._util.checks import did_you_mean, warn_user
from distgp._util.progress import Progress
from distgp.cli.terminal import refuse_input
from distgp.data.encoding import Columns, complete_rows, numbers
from distgp.data.parquet import ParquetRows
from distgp.data.rows import Rows, Schema, learnt
from distgp.data.table import Table, TableError, sink
from distgp.diagnostics import metrics
from distgp.diagnostics.calibration import CalibrationWarning
from distgp.engines import LocalEngine
from distgp.regressor import DistributedGPRegressor, unnamed

OUTPUTS = ("mean", "std", "lower", "upper")


def fit_table(
    model: DistributedGPRegressor,
    path: str,
    target: str,
    label_column: str | None,
    missing: str,
    held_out_by: Mapping[str, str] | None = None,
    **options: Any,
) -> int:
    """Fit a model to a table, and return the number of rows that were dropped.

    The workers of a cluster read it by themselves where they can. The values of `label_column` divide the
    rows over experts, and `held_out_by` names the columns of what `fit` takes for each row.
    """
    source = Table.open(path)
    if source.kind == "parquet" and not isinstance(model.engine, LocalEngine):
        if label_column is not None:
            raise ValueError("workers divide the rows that they read at random, not by a column")
        model.fit_parquet(path, target, missing=missing, **options, **(held_out_by or {}))
        scores = model.model_.targets[0].calibration
        fitted = int(model.experts_.sizes().double().sum())
        return ParquetRows.open(path).n - fitted - (0 if scores is None else len(scores.scores))
    table = source.read(options["categorical"])
    X, y, columns, keep = learnt(table, None, missing=missing, target=target, **options)
    if label_column is not None:
        model.set_params(**row_values(table, {"partition": label_column}, keep))
    given = row_values(table, held_out_by or {}, keep)
    model.fit_rows(Rows.of(X, y, Schema.of(columns), **given))
    return int((~keep).sum())


def row_values(
    table: pa.Table, named: Mapping[str, str], keep: np.ndarray
) -> dict[str, np.ndarray]:
    """Read the columns of what a model takes for each row, one value for each of the rows kept."""
    kept, found = table.filter(pa.array(keep)), {}
    labels = _labels, "divide"
    readers = {"time": (_times, "order"), "groups": labels, "partition": labels}
    for kind, name in named.items():
        read, use = readers.get(kind, (numbers, "count"))
        if name not in table.schema.names:
            near, there = did_you_mean(name, table.schema.names), ", ".join(table.schema.names)
            raise TableError(f"no column {name!r}{near} there are {there}")
        column = kept.column(name)
        if column.null_count:
            raise TableError(f"{column.null_count} rows have no {name!r} to {use} them by")
        found[kind] = read(name, column)
    return found


def _labels(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Return the values of a column as text."""
    del name
    return column.to_numpy(zero_copy_only=False).astype(str)


def _times(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Return the values of a column of numbers or dates; texts are read as dates."""
    kind, is_ = column.type, pa.types
    if (
        is_.is_date(kind)
        or is_.is_timestamp(kind)
        or is_.is_string(kind)
        or is_.is_large_string(kind)
    ):
        try:
            return column.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            raise TableError(
                f"column {name!r} is {kind}, expected numbers or dates such as 2024-12-31: {error}"
            ) from error
    values = numbers(name, column)
    if absent := int(np.isnan(values).sum()):
        raise TableError(f"{absent} rows have no {name!r} to order them by")
    return values


def predict_table(
    model: DistributedGPRegressor,
    path: str,
    output: Path,
    *,
    interval: float,
    prefix: str,
    missing: str,
    unknown: str,
    show: bool,
    **options: Any,
) -> tuple[int, int]:
    """Read, predict and write a table in pieces, and return the numbers of rows written and dropped.

    Its own columns are followed by mean, std, lower and upper, whose names begin with `prefix`.
    """
    if not 0 < interval < 1:
        raise ValueError(f"interval must be a probability between 0 and 1, got {interval}")
    table, columns = Table.open(path), columns_of(model)
    refuse_input(output, *table.paths)
    columns.check(table.names)
    new = [prefix + name for name in OUTPUTS]
    if taken := [name for name in new if name in table.names]:
        raise TableError(
            f"the table has a column {taken[0]!r} already: give --prefix to name the new ones"
        )
    written = dropped = endless = 0
    with sink(output) as write, Progress("predicting rows", show=show) as progress:
        for batch, X, lost in _pieces(table, columns, missing, unknown):
            dropped += lost
            if not len(X):
                continue
            arrays = unnamed(model.predict_with_interval, X, interval, **options)
            endless += int((~np.isfinite(arrays[-1])).sum())
            for name, values in zip(new, arrays, strict=True):
                batch = batch.append_column(name, pa.array(values))
            write(batch)
            written += len(X)
            progress.advance(len(X))
        if not written:
            raise TableError(f"{path} has no rows to predict")
    if endless:
        warn_user(
            f"{endless} of {written} intervals are infinite: calibration had too few rows for a "
            f"probability of {interval:g}. Give a lower one by --interval, or calibrate on more rows",
            CalibrationWarning,
        )
    return written, dropped


def score_table(
    model: DistributedGPRegressor,
    path: str,
    *,
    target: str | None = None,
    missing: str,
    unknown: str,
    show: bool,
    **options: Any,
) -> dict[str, Any]:
    """Compare predictions with the target column of a table, by default that of fitting, in pieces."""
    table, columns = Table.open(path), columns_of(model)
    columns = columns if target is None else replace(columns, target=target)
    if not columns.target:
        raise TableError(
            "the model was fitted in Python, where targets have no names: give --target COLUMN"
        )
    columns.check(table.names, target=True)
    found: list[tuple[np.ndarray, ...]] = []
    dropped, density, transformed = 0, 0.0, bool(getattr(model, "target_transform", None))
    with Progress("scoring rows", show=show) as progress:
        for batch, X, lost in _pieces(table, columns, missing, unknown, target=True):
            dropped += lost
            if len(X):
                y = columns.targets(batch)
                found.append((y, *unnamed(model.predict_with_interval, X, 0.9, **options)))
                if transformed:
                    density += len(X) * unnamed(model.nlpd, X, y, **options)
            progress.advance(len(X))
    if not found:
        raise TableError(f"{path} has no rows to score")
    y, mean, std, lower, upper = (np.concatenate(parts) for parts in zip(*found, strict=True))
    with np.errstate(over="ignore", invalid="ignore"):  # JSON has null for what is infinite
        normal = metrics.nlpd(y, mean, np.square(std))
        rmse, r2 = metrics.rmse(y, mean), 1.0 - metrics.smse(y, mean) if np.ptp(y) else None
    return {
        "rows": len(y),
        "dropped": dropped,
        "rmse": rmse,
        "r2": r2,
        "nlpd": density / len(y) if transformed else normal,
        "coverage_90": float(np.mean((lower <= y) & (y <= upper))),
    }


def columns_of(model: DistributedGPRegressor) -> Columns:
    """Return the columns that a model needs: those of its table, or of its features' names."""
    if isinstance(model.kernel_, list):
        raise TableError(
            "the model has several targets, which tables cannot have: use it from Python"
        )
    if not hasattr(model, "feature_names_in_"):
        raise TableError(
            "the model was fitted to an array without column names, so no table fits it: fit it with "
            "`distgp fit`, or to a DataFrame"
        )
    return model.model_.schema.columns or Columns.of_numbers(model.feature_names_in_)


def _pieces(
    table: Table, columns: Columns, missing: str, unknown: str, target: bool = False
) -> Iterator[tuple[pa.RecordBatch, np.ndarray, int]]:
    """Read batches of complete rows, their inputs, and how many rows were dropped from each."""
    names = [*columns.owners, *([columns.target] if target else [])]
    for batch in table.batches(columns.types(target)):
        X = columns.matrix(batch, unknown)
        values = np.column_stack([X, columns.targets(batch)]) if target else X
        keep = complete_rows(values, names, missing)
        if lost := int((~keep).sum()):
            batch, X = batch.filter(pa.array(keep)), X[keep]
        yield batch, X, lost
