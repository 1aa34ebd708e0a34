"""From the columns of a table to the inputs and targets of a GP, in prediction as in fitting.

What was learnt of the columns when a model was fitted, their kinds and categories, is stored with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from distgp.data.column import Column, check_choices, distinct, numbers
from distgp.data.locate import TableError
from distgp.data.table import refuse_repeated

_LIKE_A_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
MOST_CATEGORIES = 100
MOST_NAMES = 50
"""The most columns that an error message lists."""
INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")
"""What pandas calls a frame's index in files: not a column that anyone meant."""


@dataclass(frozen=True)
class Columns:
    """The input columns of a model, and the name of its target ("" where it has none).

    Parameters
    ----------
    target : str
        The target's name.
    inputs : tuple of Column
        The input columns.
    fill : tuple of float, optional
        What stands for a missing value in each of the features: the mean of the training rows.
    """

    target: str
    inputs: tuple[Column, ...]
    fill: tuple[float, ...] | None = None

    @staticmethod
    def of_numbers(names: Iterable[str]) -> Columns:
        """Columns that are numbers already, by their names."""
        return Columns("", tuple(Column(str(name), "number") for name in names))

    @property
    def features(self) -> list[str]:
        """The names of all numbers made of the inputs, in order."""
        return [feature for column in self.inputs for feature in column.features]

    @property
    def places(self) -> dict[str, tuple[int, ...]]:
        """Which features are made of each column."""
        found, start = {}, 0
        for column in self.inputs:
            stop = start + len(column.features)
            found[column.name] = tuple(range(start, stop))
            start = stop
        return found

    @property
    def owners(self) -> list[str]:
        """The column that each feature is made of."""
        return [column.name for column in self.inputs for _ in column.features]

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """The features of each text column."""
        return [self.places[column.name] for column in self.inputs if column.kind == "category"]

    @property
    def days(self) -> frozenset[int]:
        """Features that are days since 1970."""
        return frozenset(self.places[c.name][0] for c in self.inputs if c.kind == "date")

    @property
    def groups(self) -> tuple[int, ...]:
        """Which lengthscale each feature has: those of one text column share one."""
        found: list[int] = []
        for column in self.inputs:
            size, start = len(column.features), (found[-1] + 1 if found else 0)
            one = column.kind == "category"
            found += [start] * size if one else range(start, start + size)
        return tuple(found)

    def types(self, target: bool = False) -> dict[str, pa.DataType | None]:
        """Tell what the inputs in a CSV file are to be read as, and the target if asked.

        None stands for what they are found to be: dates must not be made of numbers.
        """
        kinds = {"number": pa.float64(), "category": pa.string(), "date": None}
        known = {c.name: pa.bool_() if c.boolean else kinds[c.kind] for c in self.inputs}
        return known | ({self.target: pa.float64()} if target else {})

    def check(self, names: Sequence[str], target: bool = False) -> None:
        """Refuse a table whose columns, these names, lack an input or, if asked, the target."""
        wanted = [column.name for column in self.inputs] + ([self.target] if target else [])
        there = set(names)
        if lacking := [name for name in wanted if name not in there]:
            raise TableError(
                f"the table lacks the column(s) {_listed(lacking)} that the model needs; it has "
                f"{_listed(names)}"
            )

    def matrix(self, batch: pa.RecordBatch | pa.Table, unknown: str = "refuse") -> np.ndarray:
        """Encode the inputs.

        Parameters
        ----------
        batch : pyarrow.RecordBatch or pyarrow.Table
            Rows of a table that has all input columns.
        unknown : {"refuse", "new"}
            Whether a category that was not there in fitting is refused, or taken as a new one.

        Returns
        -------
        ndarray of shape (rows, features)
            X in float64; where a value is missing, NaN or what `fill` says.
        """
        check_choices(unknown=unknown)
        parts = [column.encode(_column(batch, column.name), unknown) for column in self.inputs]
        X = np.concatenate(parts, axis=1)
        return X if self.fill is None else np.where(np.isnan(X), self.fill, X)

    def targets(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Read the targets y, (rows,), in float64; NaN where one is missing."""
        return numbers(self.target, _column(batch, self.target))


def learn(table: pa.Table, target: str | None, impute: bool = False, **options: Any) -> Columns:
    """Find out what the columns of a table in memory are.

    Parameters
    ----------
    table : pyarrow.Table
        All rows.
    target : str or None
        The column to predict; None where the table holds inputs alone.
    impute : bool, default=False
        Whether missing values get the mean of the others, and missing texts the share of each text.
    **options
        As for `learn_columns`.

    Returns
    -------
    Columns
    """
    refuse_repeated(table.schema.names, "the table")
    if table.num_rows == 0:
        raise TableError("the table has columns but no rows")
    columns = learn_columns(
        table.schema, lambda name: distinct(table.column(name)), target, **options
    )
    for column in columns.inputs:
        values = table.column(column.name)
        if values.null_count == len(values):
            raise _empty(column.name)
    if not impute:
        return columns
    return replace(columns, fill=tuple(np.nanmean(columns.matrix(table), axis=0).tolist()))


def learn_columns(
    schema: pa.Schema,
    texts_of: Callable[[str], set[str]],
    target: str | None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    dates: str = "refuse",
) -> Columns:
    """Find out what the columns of a table are, from their types and the different texts in them.

    Parameters
    ----------
    schema : pyarrow.Schema
        The table's columns and their types.
    texts_of : callable
        Gives the different values, as text, of the column of a name; asked only for categories.
    target : str or None
        The column to predict; None where the table holds inputs alone.
    features : sequence of str, optional
        The input columns, in order; all but the target by default.
    drop : sequence of str
        Columns to leave out.
    categorical : sequence of str
        Columns whose numbers are names of categories.
    dates : {"refuse", "expand"}
        Whether columns of dates are refused, or made into days and phases of year, week and day.

    Returns
    -------
    Columns

    Raises
    ------
    TableError
        If a column is not there, or holds what no numbers can be made of.
    """
    check_choices(dates=dates)
    names, dropped, labels = set(schema.names), set(drop), set(categorical)
    for name in (*(() if target is None else (target,)), *(features or ()), *drop, *categorical):
        if name not in names:
            raise TableError(f"no column {name!r}; the table has {_listed(schema.names)}")
    meant = [name for name in schema.names if not INDEX.fullmatch(name)]
    given = dict.fromkeys(features) if features else meant
    kept = [name for name in given if name != target and name not in dropped]
    if not kept:
        raise TableError(f"no input columns are left beside the target {target!r}")
    if target is not None and _kind_of(schema.field(target).type) not in ("number", "empty"):
        raise TableError(f"the target {target!r} is {schema.field(target).type}, expected numbers")
    types = {name: schema.field(name).type for name in kept}
    inputs = [_learn(n, type_, texts_of, n in labels, dates) for n, type_ in types.items()]
    return Columns(target or "", tuple(inputs))


def complete_rows(values: np.ndarray, names: Sequence[str], missing: str) -> np.ndarray:
    """Tell which rows have all their values.

    Parameters
    ----------
    values : ndarray of shape (rows, columns)
        Numbers; NaN where a value is missing.
    names : sequence of str
        The names of the columns.
    missing : {"refuse", "drop", "impute"}
        Whether incomplete rows are an error, or left out; imputed ones are complete here.

    Returns
    -------
    ndarray of shape (rows,)
        True for the rows to keep.

    Raises
    ------
    TableError
        If values are infinite, or missing where that is refused.
    """
    check_choices(missing=missing)
    infinite = np.isinf(values).any(0)
    if infinite.any():
        name = names[int(np.argmax(infinite))]
        raise TableError(f"column {name!r} holds infinite values: correct or remove those rows")
    absent = np.isnan(values)
    if missing == "refuse" and absent.any():
        counts = {n: int(c) for n, c in zip(names, absent.sum(0), strict=True) if c}
        listed = ", ".join(f"{c} in {n!r}" for n, c in list(counts.items())[:5])
        raise TableError(
            f"{int(absent.any(1).sum())} of {len(values)} rows have missing values ({listed}): fill "
            "them, leave those rows out with missing='drop' (--missing drop), or fill them with means by "
            "missing='impute' (--missing impute)"
        )
    return np.asarray(~absent.any(1))


def _listed(names: Sequence[str]) -> str:
    """Names for an error message: the first of them where there are many."""
    shown = ", ".join(map(repr, names[:MOST_NAMES]))
    return shown + (f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else "")


def _learn(
    name: str, type_: pa.DataType, texts_of: Callable[[str], set[str]], text: bool, dates: str
) -> Column:
    kind = "category" if text else _kind_of(type_)
    if kind == "empty":
        raise _empty(name)
    if kind == "number":
        return Column(name, "number", boolean=pa.types.is_boolean(type_))
    if kind == "category":
        return Column(name, "category", _categories(name, texts_of(name)))
    if kind == "date" and dates == "expand":
        stamp = pa.types.is_timestamp(type_)
        return Column(name, "date", time_of_day=stamp, zone=(type_.tz or "") if stamp else "")
    if kind == "date":
        raise TableError(
            f"column {name!r} holds dates ({type_}), not numbers: leave it out (--drop {name}), or "
            "make days and phases of year, week and day of it with dates='expand' (--dates expand)"
        )
    raise TableError(
        f"column {name!r} is {type_}, expected numbers, text or dates: leave it out (--drop {name})"
    )


def _categories(name: str, texts: set[str]) -> tuple[str, ...]:
    found = sorted(texts)
    if len(found) > MOST_CATEGORIES:
        looks = (
            "dates; make times of them, by pandas.to_datetime for one,"
            if _LIKE_A_DATE.match(found[len(found) // 2])
            else "a name or a number; convert it,"
        )
        raise TableError(
            f"column {name!r} is text with {len(found)} different values, more than {MOST_CATEGORIES}: "
            f"it looks like {looks} or leave it out (--drop {name})"
        )
    return tuple(found)


def _empty(name: str) -> TableError:
    return TableError(f"column {name!r} is empty: leave it out (--drop {name})")


def _kind_of(type_: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_null(type_):
        return "empty"
    if any(
        holds(type_) for holds in (is_.is_integer, is_.is_floating, is_.is_boolean, is_.is_decimal)
    ):
        return "number"
    if is_.is_timestamp(type_) or is_.is_date(type_):
        return "date"
    value = type_.value_type if is_.is_dictionary(type_) else type_
    text = is_.is_string(value) or is_.is_large_string(value) or is_.is_string_view(value)
    return "category" if text or is_.is_dictionary(type_) else "other"


def _column(batch: pa.RecordBatch | pa.Table, name: str) -> Any:
    values = batch.column(name)
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
