"""The columns of a table: learnt when a model is fitted, they encode rows in prediction as in fitting.

What was learnt of the columns, their kinds and categories, is stored with the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from distgp.data.column import Column, check_choices, distinct, kind_of, numbers
from distgp.data.table import TableError, refuse_repeated

MOST_NAMES = 50
"""The most columns that an error message lists."""
INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")
"""Names that pandas gives a frame's index in files: not columns that anyone meant."""


@dataclass(frozen=True)
class Columns:
    """The input columns of a model, and the name of its target ("" where it has none).

    `fill` has what stands for a missing value in each of the features: the mean of the training rows.
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
        """The features that are made of each column, by their numbers."""
        edges = pairwise(accumulate((len(c.features) for c in self.inputs), initial=0))
        return {c.name: tuple(range(*edge)) for c, edge in zip(self.inputs, edges, strict=True)}

    @property
    def owners(self) -> list[str]:
        """The column that each feature is made of."""
        return [column.name for column in self.inputs for _ in column.features]

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """The features of each text column."""
        places = self.places
        return [places[column.name] for column in self.inputs if column.kind == "category"]

    @property
    def days(self) -> frozenset[int]:
        """Features that are days since 1970."""
        places = self.places
        return frozenset(places[c.name][0] for c in self.inputs if c.kind == "date")

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of the lengthscale that each feature has: those of a text column share one."""
        shared = {column.name for column in self.inputs if column.kind == "category"}
        pairs = zip(self.owners, self.features, strict=True)
        keys = [(name, "" if name in shared else feature) for name, feature in pairs]
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        return tuple(number[key] for key in keys)

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
        """Encode the inputs as X, (rows, features); where a value is missing, NaN or what `fill` says.

        A category that was not there in fitting is refused, or with unknown="new" taken as a new one.
        """
        check_choices(unknown=unknown)
        parts = [column.encode(batch.column(column.name), unknown) for column in self.inputs]
        X = np.concatenate(parts, axis=1)
        return X if self.fill is None else np.where(np.isnan(X), self.fill, X)

    def targets(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Read the targets y, (rows,), in float64; NaN where one is missing."""
        return numbers(self.target, batch.column(self.target))


def learn(table: pa.Table, target: str | None, impute: bool = False, **options: Any) -> Columns:
    """Find out what the columns of a table in memory are; the options are those of `learn_columns`.

    With `impute`, missing numbers get the mean of the others, and missing texts the share of each text.
    """
    refuse_repeated(table.schema.names, "the table")
    if table.num_rows == 0:
        raise TableError("the table has columns but no rows")
    n, inputs = table.num_rows, [name for name in table.schema.names if name != target]
    empty = {name for name in inputs if table.column(name).null_count == n}
    schema = pa.schema(f.with_type(pa.null()) if f.name in empty else f for f in table.schema)
    columns = learn_columns(schema, lambda name: distinct(table.column(name)), target, **options)
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

    `texts_of` gives the different values, as text, of the column of a name, and is asked for categories
    alone. The target is None where the table holds inputs alone. Inputs are the `features`, in order, by
    default all columns but the target, without those to `drop`; the numbers of `categorical` ones are names
    of categories. Columns of `dates` are refused, or expanded into days and phases of year, week and day.
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
    if target is not None and kind_of(schema.field(target).type) not in ("number", "empty"):
        raise TableError(f"the target {target!r} is {schema.field(target).type}, expected numbers")
    inputs = (
        Column.learn(name, schema.field(name).type, texts_of, name in labels, dates)
        for name in kept
    )
    return Columns(target or "", tuple(inputs))


def complete_rows(values: np.ndarray, names: Sequence[str], missing: str) -> np.ndarray:
    """Tell which rows have all their values, (rows,), given those of columns of these names.

    Infinite values are refused; missing ones, which are NaN, where `missing` is "refuse". Imputed rows
    are complete here.
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
    """Join names for an error message: the first of them where there are many."""
    shown = ", ".join(map(repr, names[:MOST_NAMES]))
    return shown + (f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else "")
