"""Tables of pandas, polars and pyarrow in Python, as on the command line: from columns to numbers."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from distgp.data.encoding import Columns, complete_rows, learn
from distgp.data.locate import TableError


def is_table(X: Any) -> bool:
    """Whether X is a table with named columns, of pandas, polars, pyarrow or a library like them."""
    if isinstance(X, pa.RecordBatch) or type(X).__name__ == "LazyFrame":
        return True
    named = hasattr(X, "columns")
    return named and (hasattr(X, "__arrow_c_stream__") or hasattr(X, "__dataframe__"))


def is_plain(X: Any) -> bool:
    """Whether a table is a pandas frame of numbers without missing values, which scikit-learn reads."""
    if not _is_pandas(X):
        return False
    if not all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in X.dtypes):
        return False
    return not bool(X.isna().to_numpy().any())


def to_arrow(X: Any) -> pa.Table:
    """The same table in Arrow's memory format, without pandas' index.

    Raises
    ------
    TableError
        If a column holds what Arrow has no type for, such as numbers and texts mixed.
    """
    if isinstance(X, pa.RecordBatch):
        X = pa.Table.from_batches([X])
    if isinstance(X, pa.Table):
        return X
    if _is_pandas(X):
        if not X.columns.is_unique:
            twice = X.columns[X.columns.duplicated()][0]
            raise TableError(f"the table has more than one column {twice!r}: rename them")
        X = X.rename(columns=str).reset_index(drop=True)
    try:
        import narwhals as nw

        frame: Any = nw.from_native(X)
        return (frame.collect() if isinstance(frame, nw.LazyFrame) else frame).to_arrow()
    except ImportError as error:
        if _is_pandas(X):
            return pa.Table.from_pandas(X, preserve_index=False)
        raise TableError("tables of this library need narwhals: pip install narwhals") from error
    except (pa.ArrowException, TypeError) as error:
        said = str(error.args[0] if error.args else error).splitlines()[0]
        raise TableError(
            f"the table has a column that mixes kinds of values ({said}): make it all numbers or all text"
        ) from error


def learnt(
    X: Any, y: Any, *, missing: str, dates: str, categorical: tuple[str, ...]
) -> tuple[np.ndarray, Any, Columns, np.ndarray]:
    """Find out what a table's columns are, and make numbers of them.

    Parameters
    ----------
    X : table
        The inputs.
    y : array-like of shape (n,) or (n, targets)
        The targets.
    missing : {"refuse", "drop", "impute"}
        What is done with rows that lack a value.
    dates : {"refuse", "expand"}
        Whether columns of dates are refused, or made into days and phases of year, week and day.
    categorical : tuple of str
        Columns whose numbers are names of categories.

    Returns
    -------
    X, y, columns, keep
        The numbers of the rows that are kept, their targets, what the columns were, and which rows of
        the table are kept.
    """
    table, y = to_arrow(X), np.asarray(y)
    if y.ndim == 0:
        raise ValueError("y must have one target for each row of X, got one value or none")
    if not table.num_columns:
        raise TableError("the table has no columns: give one input at least")
    if len(y) != table.num_rows:
        raise ValueError(
            f"X has {table.num_rows} rows, but y has {len(y)}: give one target per row"
        )
    impute = missing == "impute"
    columns = learn(table, None, impute=impute, dates=dates, categorical=categorical)
    numbers = columns.matrix(table)
    keep = complete_rows(numbers, columns.owners, missing)
    if missing == "drop" and y.dtype.kind == "f":
        keep = keep & ~np.isnan(y if y.ndim == 1 else y.sum(1))
    if not keep.any():
        raise TableError("no row is left after dropping those with missing values")
    return numbers[keep], y[keep], columns, keep


def encoded(X: Any, columns: Columns, missing: str, unknown: str) -> tuple[np.ndarray, np.ndarray]:
    """The numbers that a fitted model takes for the rows of a table.

    Parameters
    ----------
    X : table
        Rows to predict; columns that the model does not need are ignored.
    columns : Columns
        What the columns were in fitting.
    missing : {"refuse", "drop", "impute"}
        What is done with rows that lack a value. Rows to be dropped are told, not left out.
    unknown : {"refuse", "new"}
        What is done with categories that were not there in fitting.

    Returns
    -------
    X : ndarray of shape (n, d)
        Numbers; those of incomplete rows mean nothing.
    keep : ndarray of shape (n,)
        Which rows are complete.
    """
    table = to_arrow(X)
    columns.check(table.schema.names)
    numbers = columns.matrix(table, unknown)
    keep = complete_rows(numbers, columns.owners, missing)
    return np.where(keep[:, None], numbers, 0.0), keep


def names_of(X: Any) -> list[str]:
    """The names of a table's columns."""
    if isinstance(X, pa.Table | pa.RecordBatch):
        return list(X.schema.names)
    names = X.collect_schema().names() if hasattr(X, "collect_schema") else X.columns
    return [str(name) for name in names]


def is_raw(X: Any, columns: Columns) -> bool:
    """Whether a table has the columns of fitting, and not the numbers made of them."""
    there = set(names_of(X))
    return not there.issuperset(columns.features) or there.issuperset(columns.places)


def _is_pandas(X: Any) -> TypeGuard[Any]:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(X, pandas.DataFrame)
