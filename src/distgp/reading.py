"""Tables in, tables out: what the commands do with a model and a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa

from distgp import metrics, parquet
from distgp.columns import Columns, complete_rows, learn
from distgp.engines import Engine, LocalEngine
from distgp.regressor import DistributedGPRegressor, predict_unnamed
from distgp.tables import Table, TableError, sink

OUTPUTS = ("mean", "std", "lower", "upper")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to fit: inputs, targets, what the columns were, labels for a partition, rows dropped."""

    X: np.ndarray
    y: np.ndarray
    columns: Columns
    labels: np.ndarray | None
    dropped: int


def read_training(
    where: str,
    target: str,
    features: Sequence[str] | None,
    drop: Sequence[str],
    categorical: Sequence[str],
    dates: Any,
    missing: str,
    label_column: str | None,
) -> Rows:
    """All rows of a table, as numbers."""
    table = Table.open(where).read(categorical)
    columns = learn(
        table, target, features=features, drop=drop, categorical=categorical, dates=dates
    )
    if label_column is not None and label_column not in table.schema.names:
        raise TableError(f"no column {label_column!r}; there are {', '.join(table.schema.names)}")
    X, y = columns.matrix(table), columns.targets(table)
    keep = complete_rows(np.column_stack([X, y]), [*columns.features, target], missing)
    labels = None
    if label_column is not None:
        column = table.column(label_column)
        if column.null_count:
            raise TableError(f"{column.null_count} rows have no {label_column!r} to divide them by")
        values = column.to_numpy(zero_copy_only=False)[keep]
        labels = np.unique(values.astype(str), return_inverse=True)[1]
    if not keep.any():
        raise TableError("no row is left after dropping those with missing values")
    return Rows(X[keep], y[keep], columns, labels, int((~keep).sum()))


def fit_table(
    model: DistributedGPRegressor,
    where: str,
    target: str,
    label_column: str | None,
    columns: dict[str, Any],
) -> int:
    """Fit a model to a table, read by the workers of a cluster where they can; rows dropped."""
    remote = isinstance(model.engine, Engine) and not isinstance(model.engine, LocalEngine)
    if remote and ("://" in where or Table.open(where).kind == "parquet"):
        if label_column is not None:
            raise ValueError("workers divide the rows that they read at random, not by a column")
        model.fit_parquet(where, target, **columns)
        return parquet.ParquetRows.open(where).n - model.experts_.row_count()
    rows = read_training(where, target, label_column=label_column, **columns)
    if rows.labels is not None:
        model.set_params(partition=rows.labels)
    model.fit(rows.X, rows.y)
    model.table_ = rows.columns
    model.feature_names_in_ = np.array(rows.columns.features, dtype=object)
    return rows.dropped


def predict_table(
    model: DistributedGPRegressor,
    where: str,
    output: Path,
    *,
    interval: float,
    latent: bool,
    aggregation: str | None,
    prefix: str,
    missing: str,
    unknown: str,
    count: Callable[[int], None],
) -> tuple[int, int]:
    """Read, predict and write in pieces; the numbers of rows written and dropped."""
    if not 0 < interval < 1:
        raise ValueError(f"interval must be a probability between 0 and 1, got {interval}")
    table, columns = Table.open(where), columns_of(model)
    columns.check(table.names)
    new = [prefix + name for name in OUTPUTS]
    if taken := [name for name in new if name in table.names]:
        raise TableError(
            f"the table has a column {taken[0]!r} already: give --prefix to name the new ones"
        )
    half = NormalDist().inv_cdf(0.5 + interval / 2)
    written = dropped = 0
    with sink(output) as out:
        for batch, X, lost in _pieces(table, columns, [], missing, unknown):
            dropped += lost
            if not len(X):
                continue
            mean, std = predict_unnamed(
                model, X, return_std=True, latent=latent, aggregation=aggregation
            )
            arrays = (mean, std, mean - half * std, mean + half * std)
            for name, values in zip(new, arrays, strict=True):
                batch = batch.append_column(name, pa.array(values))
            out.write(batch)
            written += len(X)
            count(len(X))
        if not written:
            raise TableError(f"{where} has no rows to predict")
    return written, dropped


def score_table(
    model: DistributedGPRegressor,
    where: str,
    aggregation: str | None,
    missing: str,
    unknown: str,
    count: Callable[[int], None],
) -> dict[str, Any]:
    """How well the model predicts the target column of a table."""
    table, columns = Table.open(where), columns_of(model)
    if not columns.target:
        raise TableError("the model was not fitted to a table and does not know its target's name")
    columns.check(table.names, target=True)
    found: list[tuple[np.ndarray, ...]] = []
    dropped = 0
    for batch, X, lost in _pieces(table, columns, [columns.target], missing, unknown):
        dropped += lost
        if len(X):
            mean, std = predict_unnamed(model, X, return_std=True, aggregation=aggregation)
            found.append((columns.targets(batch), mean, std))
        count(len(X))
    if not found:
        raise TableError(f"{where} has no rows to score")
    y, mean, std = (np.concatenate(parts) for parts in zip(*found, strict=True))
    variance = np.square(std)
    return {
        "rows": len(y),
        "dropped": dropped,
        "rmse": metrics.rmse(y, mean),
        "r2": 1.0 - metrics.smse(y, mean) if np.ptp(y) else None,
        "nlpd": metrics.nlpd(y, mean, variance),
        "coverage_90": metrics.coverage(y, mean, variance),
    }


def columns_of(model: DistributedGPRegressor) -> Columns:
    """What is known of the columns: from the table the model was fitted to, or from its names."""
    if len(model.models_) > 1:
        raise TableError(
            "the model has several targets, which tables cannot have: use it from Python"
        )
    table = getattr(model, "table_", None)
    if table is not None:
        return table
    from distgp.columns import Column

    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise TableError(
            "the model was fitted to an array without column names, so no table fits it: fit it with "
            "`distgp fit`, or to a DataFrame"
        )
    return Columns("", tuple(Column(str(name), "number") for name in names))


def _pieces(
    table: Table, columns: Columns, also: list[str], missing: str, unknown: str
) -> Iterator[tuple[pa.RecordBatch, np.ndarray, int]]:
    """Batches of complete rows, their inputs, and how many rows were dropped from each."""
    for batch in table.batches(columns.types()):
        X = columns.matrix(batch, unknown)
        everything = [X, *(columns.targets(batch)[:, None] for _ in also)]
        keep = complete_rows(
            np.concatenate(everything, axis=1), [*columns.features, *also], missing
        )
        lost = int((~keep).sum())
        if lost:
            batch, X = batch.filter(pa.array(keep)), X[keep]
        yield batch, X, lost
