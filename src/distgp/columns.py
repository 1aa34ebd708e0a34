"""From the columns of a table to the numbers that a GP takes, and back to the same at prediction.

What was learnt of the columns when a model was fitted, their kinds and categories, is stored with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute

from distgp.tables import TableError

MOST_CATEGORIES = 100
INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls a frame's index in files: not a column that anyone meant."""
DAY = 86_400.0
WEEK_START = 4.0  # 1970-01-01 was a Thursday; Mondays are day 4 of the epoch
YEAR = 365.2425

pc: Any = pyarrow.compute  # its functions are made when it is imported: no tool knows them
Kind = Literal["number", "category", "date"]


@dataclass(frozen=True)
class Column:
    """One input column of a table."""

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    time_of_day: bool = False
    boolean: bool = False

    @property
    def features(self) -> list[str]:
        """The names of the numbers made of it."""
        if self.kind == "category":
            return [f"{self.name}={category}" for category in self.categories]
        if self.kind == "date":
            cycles = ["year", "week", *(["day"] if self.time_of_day else [])]
            return [
                f"{self.name}.days",
                *(f"{self.name}.{cycle}_{wave}" for cycle in cycles for wave in ("sin", "cos")),
            ]
        return [self.name]

    def encode(self, values: pa.Array, unknown: str) -> np.ndarray:
        """The numbers, (rows, features); missing values become NaN."""
        if self.kind == "category":
            return self._one_hot(values, unknown)
        if self.kind == "date":
            return self._waves(values)
        return _numbers(self.name, values)[:, None]

    def _one_hot(self, values: pa.Array, unknown: str) -> np.ndarray:
        codes = pc.index_in(_text(values), pa.array(self.categories, pa.string()))
        strange = pc.and_(pc.is_valid(values), pc.is_null(codes))
        if unknown == "refuse" and (count := pc.sum(strange).as_py()):
            example = _text(values).filter(strange)[0].as_py()
            raise TableError(
                f"column {self.name!r} holds {count} values that were not there in fitting, such as "
                f"{example!r}: correct them, or treat them as none of the known ones "
                "(--unknown-categories zero)"
            )
        index = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False)
        hot = (index[:, None] == np.arange(len(self.categories))).astype(np.float64)
        hot[pc.is_null(values).to_numpy(zero_copy_only=False)] = np.nan
        return hot

    def _waves(self, values: pa.Array) -> np.ndarray:
        """Days since 1970 for trends, and the phase in year, week and day for cycles."""
        stamps = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        seconds = pc.fill_null(stamps.cast(pa.float64()), math.nan).to_numpy(zero_copy_only=False)
        days = seconds / 1e6 / DAY
        phases = [days / YEAR, (days - WEEK_START) / 7.0, *([days] if self.time_of_day else [])]
        angles = [2.0 * math.pi * (phase - np.floor(phase)) for phase in phases]
        waves = [wave for angle in angles for wave in (np.sin(angle), np.cos(angle))]
        return np.stack([days, *waves], axis=1)


@dataclass(frozen=True)
class Columns:
    """The input columns of a model and its target."""

    target: str
    inputs: tuple[Column, ...]

    @property
    def features(self) -> list[str]:
        """The names of all numbers, in order."""
        return [feature for column in self.inputs for feature in column.features]

    def types(self) -> dict[str, pa.DataType]:
        """What the columns of a CSV file are to be read as."""
        kinds = {"number": pa.float64(), "category": pa.string()}
        known = {c.name: kinds[c.kind] for c in self.inputs if c.kind in kinds and not c.boolean}
        known |= {c.name: pa.bool_() for c in self.inputs if c.boolean}
        return known | ({self.target: pa.float64()} if self.target else {})

    def check(self, names: Sequence[str], target: bool = False) -> None:
        """Refuse a table that lacks a column."""
        wanted = [column.name for column in self.inputs] + ([self.target] if target else [])
        if lacking := [name for name in wanted if name not in names]:
            raise TableError(
                f"the table lacks the column(s) {', '.join(map(repr, lacking))} that the model needs; "
                f"it has {', '.join(map(repr, names))}"
            )

    def matrix(self, batch: pa.RecordBatch | pa.Table, unknown: str = "refuse") -> np.ndarray:
        """X, (rows, features), in float64; missing values are NaN."""
        parts = [column.encode(_column(batch, column.name), unknown) for column in self.inputs]
        return np.concatenate(parts, axis=1)

    def targets(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """y, (rows,); missing values are NaN."""
        return _numbers(self.target, _column(batch, self.target))


def learn(table: pa.Table, target: str, **options: Any) -> Columns:
    """Find out what the columns of a table in memory are; options as of `learn_columns`."""
    if table.num_rows == 0:
        raise TableError("the table has a header but no rows")
    columns = learn_columns(
        table.schema, lambda name: distinct(table.column(name)), target, **options
    )
    for column in columns.inputs:
        values = table.column(column.name)
        if values.null_count == len(values):
            raise TableError(
                f"column {column.name!r} is empty: leave it out with --drop {column.name}"
            )
    return columns


def learn_columns(
    schema: pa.Schema,
    texts_of: Callable[[str], set[str]],
    target: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    dates: str = "refuse",
) -> Columns:
    """Find out what the columns are, from their types and, for text, the values that there are."""
    names = schema.names
    for name in (target, *(features or ()), *drop, *categorical):
        if name not in names:
            raise TableError(f"no column {name!r}; the table has {', '.join(map(repr, names))}")
    given = dict.fromkeys(features) if features else [n for n in names if not INDEX.fullmatch(n)]
    kept = [n for n in given if n != target and n not in drop]
    if not kept:
        raise TableError(f"no input columns are left beside the target {target!r}")
    if _kind_of(schema.field(target).type) not in ("number", "empty"):
        raise TableError(f"the target {target!r} is {schema.field(target).type}, expected numbers")
    kinds = {name: schema.field(name).type for name in kept}
    inputs = [_learn(n, kind, texts_of, n in categorical, dates) for n, kind in kinds.items()]
    return Columns(target, tuple(inputs))


def _learn(
    name: str, type_: pa.DataType, texts_of: Callable[[str], set[str]], text: bool, dates: str
) -> Column:
    kind = "category" if text else _kind_of(type_)
    if kind == "empty":
        raise TableError(f"column {name!r} is empty: leave it out with --drop {name}")
    if kind == "number":
        return Column(name, "number", boolean=pa.types.is_boolean(type_))
    if kind == "date":
        if dates == "refuse":
            raise TableError(
                f"column {name!r} holds dates ({type_}), which are not numbers: leave it out with "
                f"--drop {name}, or make days and phases of year, week and day of it with --dates expand"
            )
        return Column(name, "date", time_of_day=pa.types.is_timestamp(type_))
    if kind == "category":
        return Column(name, "category", _categories(name, texts_of(name)))
    raise TableError(
        f"column {name!r} is {type_}, expected numbers, text or dates: leave it out with "
        f"--drop {name}"
    )


def distinct(values: Any) -> set[str]:
    """The values of a column, as text, without missing ones."""
    return {value for value in pc.unique(_text(values)).to_pylist() if value is not None}


def _categories(name: str, texts: set[str]) -> tuple[str, ...]:
    found = sorted(texts)
    if len(found) > MOST_CATEGORIES:
        raise TableError(
            f"column {name!r} is text with {len(found)} different values, more than {MOST_CATEGORIES}: "
            f"it looks like a name or a number; leave it out with --drop {name}, or convert it"
        )
    return tuple(found)


def complete_rows(values: np.ndarray, names: Sequence[str], missing: str) -> np.ndarray:
    """Which rows have all their values; infinite ones are refused."""
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
            "them, or leave those rows out with --missing drop"
        )
    return np.asarray(~absent.any(1))


def _kind_of(kind: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_null(kind):
        return "empty"
    if (
        is_.is_integer(kind)
        or is_.is_floating(kind)
        or is_.is_boolean(kind)
        or is_.is_decimal(kind)
    ):
        return "number"
    if is_.is_timestamp(kind) or is_.is_date(kind):
        return "date"
    value = kind.value_type if is_.is_dictionary(kind) else kind
    text = is_.is_string(value) or is_.is_large_string(value) or is_.is_string_view(value)
    return "category" if text or is_.is_dictionary(kind) else "other"


def _column(batch: pa.RecordBatch | pa.Table, name: str) -> Any:
    values = batch.column(name)
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _text(values: Any) -> Any:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.string())


def _numbers(name: str, values: pa.Array) -> np.ndarray:
    try:
        wide = values.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise TableError(
            f"column {name!r} is {values.type}, expected numbers as in fitting: {error}"
        ) from error
    return pc.fill_null(wide, math.nan).to_numpy(zero_copy_only=False)
