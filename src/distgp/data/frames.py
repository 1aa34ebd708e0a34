"""Tables of pandas, polars and pyarrow in Python, as on the command line: from columns to numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import narwhals as nw
import numpy as np
import pyarrow as pa
from narwhals.dependencies import is_pandas_dataframe

from distgp.data.encoding import Columns, complete_rows, learn
from distgp.data.table import TableError

if TYPE_CHECKING:
    from narwhals.typing import IntoFrame
    from numpy.typing import ArrayLike

Frame: TypeAlias = "IntoFrame | pa.RecordBatch"
"""A table of pandas, polars, pyarrow or a library like them."""


def is_table(X: object) -> bool:
    """Whether X is a table with named columns, of pandas, polars, pyarrow or a library like them."""
    if isinstance(X, pa.RecordBatch) or type(X).__name__ == "LazyFrame":
        return True
    named = hasattr(X, "columns")
    return named and (hasattr(X, "__arrow_c_stream__") or hasattr(X, "__dataframe__"))


def is_plain(X: object) -> bool:
    """Whether a table is a pandas frame of numbers without missing values, which scikit-learn reads."""
    if not is_pandas_dataframe(X):
        return False
    if not all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in X.dtypes):
        return False
    return not bool(X.isna().to_numpy().any())


def to_arrow(X: Frame) -> pa.Table:
    """Convert a table to Arrow's memory format, without pandas' index.

    A column of what Arrow has no type for, such as numbers and texts mixed, raises a TableError.
    """
    if isinstance(X, pa.RecordBatch):
        X = pa.Table.from_batches([X])
    if isinstance(X, pa.Table):
        return X
    if is_pandas_dataframe(X):
        if not X.columns.is_unique:
            twice = X.columns[X.columns.duplicated()][0]
            raise TableError(f"the table has more than one column {twice!r}: rename them")
        X = X.rename(columns=str).reset_index(drop=True)
    try:
        frame = nw.from_native(X)
        return (frame.collect() if isinstance(frame, nw.LazyFrame) else frame).to_arrow()
    except (pa.ArrowException, TypeError) as error:
        said = str(error.args[0] if error.args else error).splitlines()[0]
        raise TableError(
            f"the table has a column that mixes kinds of values ({said}): make it all numbers or all text"
        ) from error


def learnt(
    X: Frame, y: ArrayLike | None, *, missing: str, **options: Any
) -> tuple[np.ndarray, np.ndarray, Columns, np.ndarray]:
    """Find out what a table's columns are, with the options of `learn_columns`, and make numbers of them.

    Returned are the inputs and targets of the rows kept, the columns, and which rows of the table are kept.
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
    columns = learn(table, None, impute=missing == "impute", **options)
    numbers = columns.matrix(table)
    keep = complete_rows(numbers, columns.owners, missing)
    if missing == "drop" and y.dtype.kind == "f":
        keep = keep & ~np.isnan(y if y.ndim == 1 else y.sum(1))
    if not keep.any():
        raise TableError("no row is left after dropping those with missing values")
    return numbers[keep], y[keep], columns, keep


def encoded(
    X: Frame, columns: Columns, missing: str, unknown: str
) -> tuple[np.ndarray, np.ndarray]:
    """Make the numbers (n, d) that a fitted model takes for a table's rows, and tell which are complete.

    Columns that the model does not need are ignored. Rows to be dropped are told, not left out: their
    numbers mean nothing.
    """
    table = to_arrow(X)
    columns.check(table.schema.names)
    numbers = columns.matrix(table, unknown)
    keep = complete_rows(numbers, columns.owners, missing)
    return np.where(keep[:, None], numbers, 0.0), keep


def names_of(X: Frame) -> list[str]:
    """List the names of a table's columns."""
    table: Any = X  # the libraries have no type in common
    if isinstance(X, pa.Table | pa.RecordBatch):
        return list(table.schema.names)
    names = table.collect_schema().names() if hasattr(X, "collect_schema") else table.columns
    return [str(name) for name in names]


def is_raw(X: Frame, columns: Columns) -> bool:
    """Whether a table has the columns of fitting, and not the numbers made of them."""
    there = set(names_of(X))
    return not there.issuperset(columns.features) or there.issuperset(columns.places)
