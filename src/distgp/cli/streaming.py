"""Tables in, tables out: what the commands do with a model and the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from distgp import metrics
from distgp.cli.terminal import refuse_input
from distgp.data.column import numbers
from distgp.data.encoding import Columns, complete_rows, learn
from distgp.data.parquet import ParquetRows
from distgp.data.table import Table, TableError, sink
from distgp.engines import LocalEngine
from distgp.progress import Progress
from distgp.regressor import DistributedGPRegressor, unnamed

OUTPUTS = ("mean", "std", "lower", "upper")


def training_rows(
    table: pa.Table, target: str, missing: str, **options: Any
) -> tuple[np.ndarray, np.ndarray, Columns, np.ndarray]:
    """The numbers of a table in memory.

    Parameters
    ----------
    table : pa.Table
        All its rows.
    target : str
        The column to predict.
    missing : {"refuse", "drop", "impute"}
        What to do with rows that lack a value.
    **options
        Which columns are inputs, and what is made of them, as of `distgp.data.encoding.learn`.

    Returns
    -------
    tuple
        Inputs and targets of the complete rows; what the columns were; which rows of the table are
        complete.
    """
    columns = learn(table, target, impute=missing == "impute", **options)
    X, y = columns.matrix(table), columns.targets(table)
    keep = complete_rows(np.column_stack([X, y]), [*columns.owners, target], missing)
    if not keep.any():
        raise TableError("no row is left after dropping those with missing values")
    return X[keep], y[keep], columns, keep


def fit_table(
    model: DistributedGPRegressor,
    path: str,
    target: str,
    label_column: str | None,
    missing: str,
    held_out_by: Mapping[str, str] | None = None,
    **options: Any,
) -> int:
    """Fit a model to a table, which the workers of a cluster read by themselves where they can.

    Parameters
    ----------
    model : DistributedGPRegressor
        The model to fit; its engine is an object.
    path : str
        The file, folder, glob or URI.
    target : str
        The column to predict.
    label_column : str or None
        The column whose values divide the rows over experts; None to leave that to the model.
    held_out_by : mapping of str to str, optional
        The columns of what `fit` takes for each row, by its parameters "time", "groups",
        "sample_weight" and "noise_variance".
    missing, **options
        As of `training_rows`.

    Returns
    -------
    int
        The number of rows that were dropped.
    """
    source = Table.open(path)
    if source.kind == "parquet" and not isinstance(model.engine, LocalEngine):
        if label_column is not None:
            raise ValueError("workers divide the rows that they read at random, not by a column")
        if held_out_by:
            listed = " and ".join(f"the column {name!r}" for name in held_out_by.values())
            raise ValueError(
                f"workers read the rows by themselves, so {listed} cannot be used: give --engine local"
            )
        model.fit_parquet(path, target, missing=missing, **options)
        return ParquetRows.open(path).n - model.experts_.row_count()
    table = source.read(options["categorical"])
    X, y, columns, keep = training_rows(table, target, missing, **options)
    if label_column is not None:
        model.set_params(partition=_labels(table, label_column)[keep])
    model.fit_columns(X, y, columns, **row_values(table, held_out_by or {}, keep))
    return int((~keep).sum())


def row_values(
    table: pa.Table, held_out_by: Mapping[str, str], keep: np.ndarray
) -> dict[str, np.ndarray]:
    """What `fit` takes for each row, one value for each of the rows kept.

    Parameters
    ----------
    table : pa.Table
        All its rows.
    held_out_by : mapping of str to str
        Names of columns, by "time", "groups", "sample_weight" and "noise_variance".
    keep : ndarray of bool
        The rows to keep.

    Returns
    -------
    dict of str to ndarray
        Times as numbers or dates, groups as text, the others as numbers.

    Raises
    ------
    TableError
        If a column is not there, holds something else, or lacks values.
    """
    kept = table.filter(pa.array(keep))
    readers = {"time": _times, "groups": _labels}
    readers |= dict.fromkeys(("sample_weight", "noise_variance"), _numbers)
    return {kind: readers[kind](kept, name) for kind, name in held_out_by.items()}


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
    """Read, predict and write a table in pieces: its own columns, then mean, std, lower and upper.

    Parameters
    ----------
    model : DistributedGPRegressor
        A fitted model.
    path : str
        The table to predict.
    output : Path
        The table to write, its kind given by the suffix.
    interval : float
        The probability between lower and upper.
    prefix : str
        What the names of the new columns begin with.
    missing, unknown : str
        What to do with rows that lack a value, and with categories that were not there in fitting.
    show : bool
        Whether to show progress.
    **options
        As of the model's `predict`.

    Returns
    -------
    tuple
        The numbers of rows written and dropped.
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
    written = dropped = 0
    with sink(output) as out, Progress("predicting rows", show=show) as progress:
        for batch, X, lost in _pieces(table, columns, missing, unknown):
            dropped += lost
            if not len(X):
                continue
            arrays = unnamed(model.predict_with_interval, X, interval, **options)
            for name, values in zip(new, arrays, strict=True):
                batch = batch.append_column(name, pa.array(values))
            out.write(batch)
            written += len(X)
            progress.advance(len(X))
        if not written:
            raise TableError(f"{path} has no rows to predict")
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
    """Compare a model's predictions with the target column of a table, read in pieces.

    Parameters and options are those of `predict_table`, and the target's name, by default that of fitting.

    Returns
    -------
    dict
        The numbers of rows and of dropped rows, RMSE, R², NLPD, and the coverage of 90 % intervals.
    """
    table, columns = Table.open(path), columns_of(model)
    columns = columns if target is None else replace(columns, target=target)
    if not columns.target:
        raise TableError(
            "the model was fitted in Python, where targets have no names: give --target COLUMN"
        )
    columns.check(table.names, target=True)
    found: list[tuple[np.ndarray, ...]] = []
    dropped = 0
    with Progress("scoring rows", show=show) as progress:
        for batch, X, lost in _pieces(table, columns, missing, unknown, target=True):
            dropped += lost
            if len(X):
                parts = unnamed(model.predict_with_interval, X, 0.9, **options)
                y = columns.targets(batch)
                density = unnamed(model.nlpd, X, y, **options) if model.target_transform else None
                found.append((y, *parts, np.full(len(X), np.nan if density is None else density)))
            progress.advance(len(X))
    if not found:
        raise TableError(f"{path} has no rows to score")
    y, mean, std, lower, upper, density = (
        np.concatenate(parts) for parts in zip(*found, strict=True)
    )
    with np.errstate(over="ignore", invalid="ignore"):  # JSON has null for what is infinite
        normal = metrics.nlpd(y, mean, np.square(std))
        rmse, r2 = metrics.rmse(y, mean), 1.0 - metrics.smse(y, mean) if np.ptp(y) else None
    return {
        "rows": len(y),
        "dropped": dropped,
        "rmse": rmse,
        "r2": r2,
        "nlpd": float(density.mean()) if model.target_transform else normal,
        "coverage_90": float(np.mean((lower <= y) & (y <= upper))),
    }


def columns_of(model: DistributedGPRegressor) -> Columns:
    """The columns that a model needs: of the table that it was fitted to, or by its features' names.

    Raises
    ------
    TableError
        If the model has several targets, or was fitted to an array whose columns have no names.
    """
    if len(model.model_.targets) > 1:
        raise TableError(
            "the model has several targets, which tables cannot have: use it from Python"
        )
    if (columns := model.model_.schema.table) is not None:
        return columns
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise TableError(
            "the model was fitted to an array without column names, so no table fits it: fit it with "
            "`distgp fit`, or to a DataFrame"
        )
    return Columns.of_numbers(names)


def _labels(table: pa.Table, name: str) -> np.ndarray:
    """The values of a column as text, one for each row."""
    return _complete(table, name, "to divide them by").to_numpy(zero_copy_only=False).astype(str)


def _times(table: pa.Table, name: str) -> np.ndarray:
    """The values of a column of numbers or dates; texts are read as dates."""
    column = _complete(table, name, "to order them by")
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or _is_text(kind):
        try:
            return column.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            raise TableError(
                f"column {name!r} is {kind}, expected numbers or dates such as 2024-12-31: {error}"
            ) from error
    values = numbers(name, column)
    if np.isnan(values).any():
        raise TableError(f"{int(np.isnan(values).sum())} rows have no {name!r} to order them by")
    return values


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    """The values of a column of numbers."""
    return numbers(name, _complete(table, name, "to count them by"))


def _complete(table: pa.Table, name: str, purpose: str) -> pa.ChunkedArray:
    """A column without missing values."""
    if name not in table.schema.names:
        raise TableError(f"no column {name!r}; there are {', '.join(table.schema.names)}")
    column = table.column(name)
    if column.null_count:
        raise TableError(f"{column.null_count} rows have no {name!r} {purpose}")
    return column


def _is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _pieces(
    table: Table, columns: Columns, missing: str, unknown: str, target: bool = False
) -> Iterator[tuple[pa.RecordBatch, np.ndarray, int]]:
    """Batches of complete rows, their inputs, and how many rows were dropped from each."""
    names = [*columns.owners, *([columns.target] if target else [])]
    for batch in table.batches(columns.types(target)):
        X = columns.matrix(batch, unknown)
        values = np.column_stack([X, columns.targets(batch)]) if target else X
        keep = complete_rows(values, names, missing)
        if lost := int((~keep).sum()):
            batch, X = batch.filter(pa.array(keep)), X[keep]
        yield batch, X, lost
