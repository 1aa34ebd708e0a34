"""Rows in this process, as numbers: from arrays, and from tables of pandas, polars and pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import narwhals as nw
import numpy as np
import pyarrow as pa
from narwhals.dependencies import is_pandas_dataframe
from numpy.typing import ArrayLike

from distgp._util.checks import did_you_mean
from distgp.data.encoding import Columns, complete_rows, learn, listed
from distgp.data.table import TableError

if TYPE_CHECKING:
    import pandas
    from narwhals.typing import IntoFrame

NOTHING_LEFT = "no row is left after dropping those with missing values"
ABSENT = ("None", "nan", "<NA>", "NaT")
"""Texts of the values that libraries have for what is missing."""
ONE_DIMENSION = (
    "X must have rows and columns, got values of another dimension: where these are targets, "
    "give X first and y second. Reshape your data by X.reshape(-1, 1) where it is one column, "
    "or X.reshape(1, -1) where it is one row; of a table these are table[['name']] and table.iloc[[0]]"
)
REMEDIES = {
    "contains infinity": "correct those values, or leave their rows out",
    "while a minimum of 2 is required": "give more rows; nothing can be learnt from so few",
    "Complex data not supported": "give the real and the imaginary part as two columns, or two targets",
}
"""What to do about what scikit-learn says of arrays."""
STRANGE = ("interval", "period")
"""Types of pandas whose values become texts where they are categories."""
Frame: TypeAlias = "IntoFrame | pa.RecordBatch"
"""A table of pandas, polars, pyarrow or a library like them."""


@dataclass(frozen=True, eq=False)
class Schema:
    """The input columns: how many, their names (None for arrays), and the table they were made of."""

    n_features: int
    names: tuple[str, ...] | None = None
    table: Columns | None = None  # where there was more to do than to take its numbers

    @staticmethod
    def of(columns: Columns) -> Schema:
        """The schema of the numbers that were made of the columns of a table."""
        return Schema(len(columns.features), tuple(columns.features), columns)

    @property
    def columns(self) -> Columns | None:
        """The columns of the table, or those of a frame of numbers; None for arrays."""
        if self.table is not None or self.names is None:
            return self.table
        return Columns.of_numbers(self.names)

    @property
    def given(self) -> tuple[str, ...] | None:
        """The names of the columns as their user gave them; None for arrays."""
        return self.names if self.table is None else tuple(self.table.places)

    @property
    def places(self) -> list[tuple[int, ...]]:
        """The places of the numbers made of each column."""
        if self.table is None:
            return [(place,) for place in range(self.n_features)]
        return list(self.table.places.values())

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """The places of the numbers made of each text column."""
        return [] if self.table is None else self.table.blocks

    def check_width(self, X: np.ndarray, model: str) -> None:
        """Refuse numbers of another count of columns than those made of the training rows."""
        wants = f"is expecting {self.n_features} features as input: give the columns that it was fitted to"
        if self.table is not None:
            wants = (
                f"was fitted to a table: give one with its columns {listed([*self.table.places])}"
            )
        if X.shape[1] != self.n_features:
            raise ValueError(f"X has {X.shape[1]} features, but {model} {wants}")


@dataclass(frozen=True, eq=False)
class Rows:
    """Training inputs (n, d) and targets (n,) or (n, targets), with all that was given for each row.

    A row counts as `weight` copies; its `noise` is the variance of its target's.
    """

    X: np.ndarray
    y: np.ndarray
    schema: Schema
    weight: np.ndarray | None = None
    noise: np.ndarray | None = None
    time: ArrayLike | None = None
    groups: ArrayLike | None = None

    @staticmethod
    def of(
        X: np.ndarray,
        y: np.ndarray,
        schema: Schema,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
        time: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Rows:
        """Build rows from what `fit` takes for each, checked."""
        weight = numbers_of_rows("sample_weight", sample_weight, len(X), least=0.0)
        weight = None if weight is not None and (weight == 1.0).all() else weight
        noise = numbers_of_rows("noise_variance", noise_variance, len(X))
        one_of_each("time", time, len(X))
        one_of_each("groups", groups, len(X))
        return Rows(X, y, schema, weight, noise, time, groups)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def targets(self) -> np.ndarray:
        """The targets in columns, (n, targets)."""
        return self.y[:, None] if self.y.ndim == 1 else self.y

    def take(self, which: np.ndarray) -> Rows:
        """Some of the rows."""
        more = {name: getattr(self, name) for name in ("weight", "noise", "time", "groups")}
        kept = {name: None if v is None else taken(v, which) for name, v in more.items()}
        return replace(self, X=self.X[which], y=self.y[which], **kept)

    def with_weight(self) -> Rows:
        """The rows whose weight is not zero."""
        if self.weight is None or (self.weight > 0).all():
            return self
        return self.take(np.flatnonzero(self.weight))


def taken(values: ArrayLike, which: np.ndarray) -> ArrayLike:
    """Some of an array's values; of pandas' as a Series, since an array would lose time zones."""
    series = getattr(values, "iloc", None)
    return np.asarray(values)[which] if series is None else series[which]


def kept(values: ArrayLike | None, keep: np.ndarray, name: str) -> ArrayLike | None:
    """The values given for those rows of a table that are kept."""
    if values is None or keep.all():
        return values
    one_of_each(name, values, len(keep))
    return taken(values, np.flatnonzero(keep))


def one_of_each(name: str, values: object, n: int) -> None:
    """Refuse values, where some are given, that are not one for each of n rows."""
    if values is None:
        return
    try:
        shape = np.asarray(values).shape
    except ValueError:
        shape = None
    if shape != (n,):
        got = "rows of different lengths" if shape is None else f"values of shape {shape}"
        raise ValueError(f"{name} must have one value for each of the {n} rows, got {got}")


def column_of(X: object, value: object, name: str) -> ArrayLike | None:
    """Values as given, or those of a named column of a table."""
    if not isinstance(value, str):
        return value  # pyright: ignore[reportReturnType]
    there = names_of(X) if is_table(X) else []
    if value not in there:
        known = f"{did_you_mean(value, there)} it has {listed(there)}" if there else ""
        raise ValueError(
            f"{name}={value!r} names a column, but X has no column of that name{known}: give one value per "
            "row, or the name of a column of a table"
        )
    place, table = there.index(value), getattr(X, "iloc", None)
    return np.asarray(to_arrow(X).column(place)) if table is None else table[:, place]


def numbers_of_rows(
    name: str, values: object, n: int, least: float | None = None
) -> np.ndarray | None:
    """Read one finite number per row, or one for all: positive by default, else at least `least`."""
    if values is None:
        return None
    found = _floats(values, f"{name} must be one number for each row")
    found = np.full(n, found) if found.ndim == 0 else found
    if found.shape != (n,):
        raise ValueError(f"{name} must have one number for each of the {n} rows, got {found.shape}")
    bad = ~np.isfinite(found) | (found <= 0.0 if least is None else found < least)
    if bad.any():
        expected = "positive" if least is None else f"at least {least:g}"
        row = int(np.argmax(bad))
        raise ValueError(f"{name} must be {expected} and finite, got {found[row]:g} in row {row}")
    if not found.any():
        raise ValueError(f"{name} is zero in all rows: give some rows a positive weight")
    return found


def _floats(values: object, expected: str) -> np.ndarray:
    """Copy values into an array of float64."""
    if _are_dates(values):
        raise ValueError(f"{expected}, got dates or durations")
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{expected}, got {values!r:.60}") from error


def observed_targets(y: object, shape: tuple[int, ...]) -> np.ndarray:
    """Targets that were observed, as numbers of this shape."""
    found = _floats(y, f"y must be numbers of shape {shape}")
    if found.shape != shape:
        raise ValueError(f"y must have the shape of the predictions, {shape}, got {found.shape}")
    return found


def check_varies(targets: np.ndarray) -> None:
    """Refuse a target (a column of targets) that does not vary."""
    constant = np.flatnonzero(np.ptp(targets, axis=0) == 0)
    if len(constant):
        which = "y" if targets.shape[1] == 1 else f"target column {constant[0]}"
        raise ValueError(
            f"{which} is constant ({targets[0, constant[0]]:g} in all {len(targets)} rows), so there is "
            "nothing to learn: check the target, or give normalize=False and training=None"
        )


def refuse_dates(X: object, y: object = None, tables: bool = True) -> None:
    """Refuse arrays of dates, which NumPy would turn into numbers of nanoseconds.

    Where the model takes `tables` of other than numbers, that is the remedy.
    """
    if y is not None and _are_dates(y):
        raise ValueError(
            "y holds dates or durations: make numbers in a unit of your choice of them, such as "
            "y / numpy.timedelta64(1, 's') of durations"
        )
    if getattr(getattr(X, "dtype", None), "kind", "") in ("m", "M"):
        raise ValueError(
            'X holds dates or times: give a table with a column of them and dates="expand", such as '
            'pandas.DataFrame({"when": X})'
            if tables
            else "X holds dates or times: make numbers in a unit of your choice of them, such as "
            "(X - X.min()) / numpy.timedelta64(1, 'D')"
        )


def _are_dates(values: object) -> bool:
    """Whether values are dates or durations, in whatever holds them."""
    try:
        return np.asarray(values).dtype.kind in "mM"
    except (TypeError, ValueError):  # ragged or strange: told of by those who read them
        return False


@contextmanager
def as_numbers(names: str, tables: bool = True) -> Iterator[None]:
    """Say what was expected where values that are no numbers fail in a block.

    Where the model takes `tables` of other than numbers, that is among the remedies.
    """
    try:
        yield
    except (TypeError, OverflowError) as error:
        table = "; pandas.DataFrame makes tables of dictionaries" if "dict" in str(error) else ""
        raise type(error)(
            f"{names} must be arrays or tables of numbers, with one row for each observation: "
            f"{error}{table}"
        ) from error
    except ValueError as error:
        if "could not convert" in str(error):
            text = "; columns of X may hold text where X is a table" if tables else ""
            raise ValueError(
                f"{names} must be numbers, {error}: convert them, by pandas.to_numeric for one{text}"
            ) from error
        if str(error).startswith(("Expected 2D array", "Expected a 2-dimensional")):
            raise ValueError(ONE_DIMENSION) from error
        said = str(error).partition("\n")[0]
        if remedy := next((more for part, more in REMEDIES.items() if part in said), None):
            raise ValueError(f"{said.removesuffix('.')}: {remedy}") from error
        what, found, _ = str(error).partition("contains NaN.")
        if not found:
            raise
        fill, impute = " or fill them in", ' or missing="impute"'
        if what == "Input y ":
            fill, impute = ", since targets are never imputed", ""
        does = f'; given X as a table (pandas, polars, pyarrow), missing="drop"{impute} does it'
        raise ValueError(
            f"{what}contains NaN: leave those rows out{fill}{does if tables else ''}"
        ) from error


def refuse_texts(X: object) -> None:
    """Refuse the name of a file, and one column or one row of a table with texts."""
    if isinstance(X, str | Path):
        raise ValueError(
            f"X must be an array or a table, got the text {str(X)!r:.1000}: read a file first, by "
            "pandas.read_csv for one, or call fit_parquet"
        )
    if getattr(X, "ndim", 0) == 1 and getattr(getattr(X, "dtype", None), "kind", "") == "O":
        raise ValueError(ONE_DIMENSION)


def refuse_text_targets(y: object) -> None:
    """Refuse the name of a column as targets."""
    if isinstance(y, str):
        raise ValueError(
            f"y must have one target for each row of X, got the text {y!r}: give the values, such as "
            f"y=table.pop({y!r}) with X=table"
        )


def is_table(X: object) -> bool:
    """Whether X is a table with named columns, of pandas, polars, pyarrow or a library like them."""
    if isinstance(X, pa.RecordBatch) or type(X).__name__ == "LazyFrame":
        return True
    named = hasattr(X, "columns")
    return named and (hasattr(X, "__arrow_c_stream__") or hasattr(X, "__dataframe__"))


def is_plain(X: object, names: Sequence[str] | None = None) -> bool:
    """Whether a table is a pandas frame of numbers without missing values, which scikit-learn reads.

    Given the names of the columns that are expected, it has these and no others, in their order.
    """
    if not is_pandas_dataframe(X):
        return False
    if X.columns.empty or not X.columns.is_unique:
        return False  # what is wrong with it is told where it is made one of Arrow
    if names is not None and (not len(X) or names_of(X) != list(names)):
        return False
    numbers = all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in X.dtypes)
    return numbers and not X.isna().to_numpy().any()


def to_arrow(X: Frame) -> pa.Table:
    """Convert a table to Arrow's memory format, without pandas' index."""
    if isinstance(X, pa.RecordBatch):
        X = pa.Table.from_batches([X])
    if isinstance(X, pa.Table):
        return X
    if is_pandas_dataframe(X):
        if not X.columns.is_unique:
            twice = X.columns[X.columns.duplicated()][0]
            raise TableError(f"the table has more than one column {twice!r}: rename them")
        X = _with_texts(X.rename(columns=str).reset_index(drop=True))
    try:
        frame = nw.from_native(X)
        return (frame.collect() if isinstance(frame, nw.LazyFrame) else frame).to_arrow()
    except (pa.ArrowException, TypeError) as error:
        said = str(error.args[0] if error.args else error).splitlines()[0]
        raise TableError(
            f"the table has a column that mixes kinds of values, or is of none that tables know ({said}): "
            "make it all numbers or all text"
        ) from error


def _with_texts(X: pandas.DataFrame) -> pandas.DataFrame:
    """Make texts such as "(0, 1]" of categories that Arrow has no type for: those of `pandas.cut`."""
    of = {name: getattr(kind, "categories", None) for name, kind in X.dtypes.items()}
    found = [n for n, c in of.items() if str(getattr(c, "dtype", "")).startswith(STRANGE)]
    return X.assign(**{name: X[name].cat.rename_categories(str) for name in found})


def learnt(
    X: Frame, y: ArrayLike | None, *, missing: str, target: str | None = None, **options: Any
) -> tuple[np.ndarray, np.ndarray, Columns, np.ndarray]:
    """Find out what a table's columns are, with the options of `learn_columns`, and make numbers of them.

    The targets are y, or the column `target`. Returned are X, y, the columns, and which rows are kept.
    """
    table = to_arrow(X)
    if not table.num_columns:
        raise TableError("the table has no columns: give one input at least")
    given = targets_of(table.num_rows, y) if target is None else None
    columns = learn(table, target, impute=missing == "impute", **options)
    inputs, names = columns.matrix(table), columns.owners
    if given is None:
        given = columns.targets(table)
        keep = complete_rows(np.column_stack([inputs, given]), [*names, columns.target], missing)
    else:
        keep = complete_rows(inputs, names, missing)
        if missing == "drop":
            keep = keep & have_targets(given)
    if not keep.any():
        raise TableError(NOTHING_LEFT)
    return inputs[keep], given[keep], columns, keep


def with_targets(
    X: Any, y: ArrayLike, keep: np.ndarray | None
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Keep those rows of X that have all their targets, of those to be kept; and tell which these are."""
    targets = targets_of(len(X), y)
    has = have_targets(targets)
    keep = has if keep is None else keep & has
    if not keep.any():
        raise TableError(NOTHING_LEFT)
    return X[keep], targets[keep], keep


def have_targets(y: np.ndarray) -> np.ndarray:
    """Tell which rows have all their targets, (rows,)."""
    if y.dtype.kind == "O":
        absent = np.array([str(value) in ABSENT for value in y.ravel()]).reshape(y.shape)
    else:
        absent = np.isnan(y) if y.dtype.kind == "f" else np.zeros(y.shape, dtype=bool)
    return np.asarray(~(absent if y.ndim == 1 else absent.any(1)))


def targets_of(n: int, y: ArrayLike | None) -> np.ndarray:
    """Return targets as an array, one for each of n rows."""
    refuse_text_targets(y)
    found = np.asarray(y)
    if found.ndim == 0:
        raise ValueError("y must have one target for each row of X, got one value or none")
    if len(found) != n:
        raise ValueError(f"X has {n} rows, but y has {len(found)}: give one target per row")
    return found


def encoded(
    X: Frame, columns: Columns, missing: str, unknown: str
) -> tuple[np.ndarray, np.ndarray]:
    """Make the numbers (n, d) that a fitted model takes for a table's rows, and tell which are complete.

    Rows to be dropped are told, not left out: their numbers mean nothing.
    """
    table = to_arrow(X)
    columns.check(table.schema.names)
    if not table.num_rows:
        raise TableError("the table has columns but no rows: give one row at least")
    numbers = columns.matrix(table, unknown)
    keep = complete_rows(numbers, columns.owners, missing)
    return np.where(keep[:, None], numbers, 0.0), keep


def names_of(X: Frame) -> list[str]:
    """List the names of a table's columns."""
    table: Any = X  # the libraries have no type in common
    if isinstance(X, pa.Table | pa.RecordBatch):
        return table.schema.names
    names = table.collect_schema().names() if hasattr(X, "collect_schema") else table.columns
    return [str(name) for name in names]


def is_raw(X: Frame, columns: Columns) -> bool:
    """Whether a table has the columns of fitting, and not the numbers made of them."""
    there = set(names_of(X))
    return not there.issuperset(columns.features) or there.issuperset(columns.places)
