"""The columns of a table: learnt when a model is fitted, they encode rows in prediction as in fitting.

The encoding is done by pyarrow on whole columns. scikit-learn's OneHotEncoder would need arrays of Python
objects instead, many times the size and the time, and would see a missing value as a category of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import types

from distgp._util.checks import did_you_mean, warn_user
from distgp.data.table import TableError, pc, refuse_repeated
from distgp.data.values import (
    Values,
    as_text,
    categories_of,
    distinct,
    kind_of,
    numbers,
    refuse_misread,
    type_in_words,
    with_comma,
    zone_of,
)

CYCLES = {"year": (0.0, 365.2425), "week": (4.0, 7.0), "day": (0.0, 1.0)}
"""A day since 1970 at which each cycle begins, and its length: 1970-01-01 was a Thursday."""
MOST_NAMES = 50  # columns that an error message lists
INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")  # pandas' names of an index in files

Kind = Literal["number", "category", "date"]
CHOICES = {
    "missing": ("refuse", "drop", "impute"),
    "dates": ("refuse", "expand"),
    "unknown": ("refuse", "new"),
}
"""The ways to treat rows with missing values, columns of dates, and categories not seen in fitting."""


class NewTextWarning(UserWarning):
    """Rows to predict hold texts that were not there in fitting."""


def check_choices(**given: object) -> None:
    """Refuse a value of ``missing``, ``dates`` or ``unknown`` that is not among its `CHOICES`."""
    for name, value in given.items():
        if value not in CHOICES[name]:
            listed = " or ".join(map(repr, CHOICES[name]))
            raise ValueError(f"{name} must be {listed}, got {value!r}")


@dataclass(frozen=True)
class Column:
    """One input column of a table, with what was learnt of it when the model was fitted.

    Phases of dates are those of clocks in their time zone; booleans are numbers written as true or false.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    time_of_day: bool = False
    boolean: bool = False
    zone: str = ""

    @staticmethod
    def learn(
        name: str,
        type_: pa.DataType,
        texts_of: Callable[[str], set[str]],
        labels: bool = False,
        dates: str = "refuse",
        rows: int = 0,
    ) -> Column:
        """Find out what a column of so many rows holds; numbers that are `labels` make a category."""
        kind = kind_of(type_)
        kind = "category" if labels and kind != "empty" else kind
        if kind == "number":
            return Column(name, kind, boolean=types.is_boolean(type_))
        if kind == "category":
            texts = texts_of(name)
            if not labels and not types.is_dictionary(type_):
                refuse_misread(name, texts, rows)
            return Column(name, kind, categories_of(name, texts))
        if kind == "date" and dates == "expand":
            return Column(name, kind, time_of_day=types.is_timestamp(type_), zone=zone_of(type_))
        if kind == "date":
            raise TableError(
                f"column {name!r} holds dates ({type_}), not numbers: leave it out, or make days and "
                "phases of year, week and day of it with dates='expand'"
            )
        is_ = "empty" if kind == "empty" else f"{type_}, expected numbers, text or dates"
        raise TableError(f"column {name!r} is {is_}: leave it out")

    @property
    def features(self) -> list[str]:
        """The names of the numbers made of it."""
        if self.kind == "category":
            return [f"{self.name}={category}" for category in self.categories]
        if self.kind == "date":
            waves = [f"{cycle}_{wave}" for cycle in self._cycles for wave in ("sin", "cos")]
            return [f"{self.name}.{part}" for part in ("days", *waves)]
        return [self.name]

    @property
    def _cycles(self) -> list[str]:
        """The cycles of a date: without a time of day, all but the last."""
        return [*CYCLES] if self.time_of_day else [*CYCLES][:-1]

    def encode(self, values: Values, unknown: str) -> np.ndarray:
        """Turn values into numbers, (rows, features), with NaN where a value is missing."""
        if self.kind == "category":
            return self._one_hot(values, unknown)
        if self.kind == "date":
            return self._waves(values)
        return numbers(self.name, values)[:, None]

    def _one_hot(self, values: Values, unknown: str) -> np.ndarray:
        """Give every category a column of 0 and 1; refuse unknown ones, or put them far from all."""
        texts = as_text(values)
        codes = pc.index_in(texts, pa.array(self.categories, pa.string()))
        strange = pc.and_(pc.is_valid(values), pc.is_null(codes))
        if count := pc.sum(strange).as_py():
            example = texts.filter(strange)[0].as_py()
            found = (
                f"column {self.name!r} holds {count} values that were not there in fitting, such as "
                f"{example!r}"
            )
            if unknown == "refuse":
                raise TableError(
                    f"{found}: correct them, or take them as new ones with unknown='new'"
                )
            warn_user(
                f"{found}: they are taken as a new text, unlike each of those known, which makes "
                "predictions less certain. Where they are slips of the pen, correct them; "
                "unknown='refuse' makes them an error",
                NewTextWarning,
            )
        index, k = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False), len(self.categories)
        hot = (index[:, None] == np.arange(k)).astype(np.float64)
        if unknown == "new":
            # As far from the others as they are from each other: (t, …, t) is at distance √2 from all k
            # unit vectors, kt² − 2t + 1 = 2.
            hot[strange.to_numpy(zero_copy_only=False)] = (1.0 + math.sqrt(1.0 + k)) / k
        hot[pc.is_null(values).to_numpy(zero_copy_only=False)] = np.nan
        return hot

    def _waves(self, values: Values) -> np.ndarray:
        """Give days since 1970 for trends, and the phase in year, week and day for cycles."""
        stamps = self._micros(self._stamps(values), "").cast(pa.int64())
        # Beyond 2⁵³ microseconds, 285 years from 1970, a number of float64 loses some of them.
        micros = stamps.cast(pa.float64(), safe=False)
        micros = pc.fill_null(micros, math.nan).to_numpy(zero_copy_only=False)
        days = micros / 1e6 / 86_400.0
        phases = [(days - CYCLES[cycle][0]) / CYCLES[cycle][1] for cycle in self._cycles]
        angles = [2.0 * math.pi * (phase - np.floor(phase)) for phase in phases]
        waves = [wave for angle in angles for wave in (np.sin(angle), np.cos(angle))]
        return np.stack([days, *waves], axis=1)

    def _stamps(self, values: Values) -> Values:
        """Return dates and times as clocks show them; refuse those of another kind than in fitting."""
        kind, zone = values.type, zone_of(values.type)
        if types.is_integer(kind) or types.is_floating(kind):
            raise TableError(
                f"column {self.name!r} held dates in fitting, and now holds {kind}: give dates"
            )
        if bool(zone) != bool(self.zone):
            had, has = (
                f"with a time zone ({z})" if z else "without a time zone" for z in (self.zone, zone)
            )
            raise TableError(
                f"column {self.name!r} held times {had} in fitting, and now holds times {has}: convert them"
            )
        if not zone:
            return values
        return pc.local_timestamp(self._micros(values, self.zone))

    def _micros(self, values: Values, zone: str) -> Values:
        """Return times in microseconds; refuse those of so many years that there are too many."""
        finer = getattr(values.type, "unit", "") == "ns"  # whose last digits may go
        try:
            return values.cast(pa.timestamp("us", tz=zone or None), safe=not finer)
        except pa.ArrowInvalid as error:
            if types.is_string(values.type) or types.is_large_string(values.type):
                raise TableError(
                    f"column {self.name!r} held dates in fitting, and now holds texts, of which one "
                    "cannot be read as a date: write dates as 2026-01-31, or convert them, for "
                    f"example by pandas.to_datetime ({error})"
                ) from error
            raise TableError(
                f"column {self.name!r} holds dates more than 290,000 years from 1970, expected nearer "
                f"ones: correct them, or give years as numbers ({error})"
            ) from error


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
    def of_dates(self) -> frozenset[int]:
        """Features that are made of dates: days, and phases of year, week and day."""
        places = self.places
        return frozenset(j for c in self.inputs if c.kind == "date" for j in places[c.name])

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of the lengthscale that each feature has: those of a text column share one."""
        shared = {feature for block in self.blocks for feature in block[1:]}
        own = (feature not in shared for feature in range(len(self.features)))
        return tuple(number - 1 for number in accumulate(own))

    def types(self, target: bool = False) -> dict[str, pa.DataType | None]:
        """Tell what the inputs in a CSV file are to be read as, and the target if asked."""
        # None stands for what they are found to be: dates must not be made of numbers.
        kinds = {"number": pa.float64(), "category": pa.string(), "date": None}
        known = {c.name: pa.bool_() if c.boolean else kinds[c.kind] for c in self.inputs}
        return known | ({self.target: pa.float64()} if target else {})

    def check(self, names: Sequence[str], target: bool = False) -> None:
        """Refuse a table whose columns, these names, lack an input or, if asked, the target."""
        wanted = [column.name for column in self.inputs] + ([self.target] if target else [])
        there = set(names)
        if lacking := [name for name in wanted if name not in there]:
            others = there.difference(wanted)
            near = next(filter(None, (did_you_mean(name, others, "") for name in lacking)), ";")
            lacks = f"the column(s) {listed(lacking)} that the model needs"
            remedy = "give all columns that it was fitted to, under their names"
            if lacking == [self.target]:
                lacks = f"the target {self.target!r} that predictions are compared with"
                remedy = "give it under this name, or name another target"
            raise TableError(f"the table lacks {lacks}{near} it has {listed(names)}: {remedy}")

    def matrix(self, batch: pa.RecordBatch | pa.Table, unknown: str = "refuse") -> np.ndarray:
        """Encode the inputs as X, (rows, features); where a value is missing, NaN or what `fill` says."""
        check_choices(unknown=unknown)
        parts = [column.encode(batch.column(column.name), unknown) for column in self.inputs]
        X = np.concatenate(parts, axis=1)
        return X if self.fill is None else np.where(np.isnan(X), self.fill, X)

    def targets(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Read the targets y, (rows,), in float64; NaN where one is missing."""
        return numbers(self.target, batch.column(self.target))


def learn(table: pa.Table, target: str | None, impute: bool = False, **options: Any) -> Columns:
    """Find out what the columns of a table in memory are; `impute` fills missing values with the means."""
    refuse_repeated(table.schema.names, "the table")
    if table.num_rows == 0:
        raise TableError("the table has columns but no rows: give two at least")
    n, inputs = table.num_rows, [name for name in table.schema.names if name != target]
    empty = {name for name in inputs if table.column(name).null_count == n}
    schema = pa.schema(f.with_type(pa.null()) if f.name in empty else f for f in table.schema)

    def texts_of(name: str) -> set[str]:
        return distinct(table.column(name))

    columns = learn_columns(schema, texts_of, target, rows=n, **options)
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
    rows: int = 0,
) -> Columns:
    """Find out what the columns of a table are, from their types and the different texts in them.

    `texts_of` gives the different texts of a category, in so many `rows`. The target is None where the
    table holds inputs alone. Inputs are the `features`, in order, by default all columns but the target,
    without those to `drop`; numbers of `categorical` columns are names of categories.
    """
    check_choices(dates=dates)
    for option, value in (("features", features), ("drop", drop), ("categorical", categorical)):
        if isinstance(value, str):
            raise TableError(
                f"{option} must be a list of columns, such as [{value!r}], got {value!r}"
            )
    names, dropped, labels = set(schema.names), set(drop), set(categorical)
    for name in (*(() if target is None else (target,)), *(features or ()), *drop, *categorical):
        if name not in names:
            near = did_you_mean(name, names)
            raise TableError(f"no column {name!r}{near} the table has {listed(schema.names)}")
    meant = [name for name in schema.names if not INDEX.fullmatch(name)]
    given = dict.fromkeys(features) if features else meant
    kept = [name for name in given if name != target and name not in dropped]
    if not kept:
        raise TableError(f"no input columns are left beside the target {target!r}")
    if target is not None and kind_of(schema.field(target).type) not in ("number", "empty"):
        type_, hint = schema.field(target).type, ""
        if kind_of(type_) == "category" and (example := with_comma(texts_of(target))):
            hint = f" with points, got {example!r}: read them by pandas.read_csv(…, decimal=',')"
        raise TableError(f"the target {target!r} is {type_in_words(type_)}, expected numbers{hint}")
    fields = (schema.field(name) for name in kept)
    inputs = (Column.learn(f.name, f.type, texts_of, f.name in labels, dates, rows) for f in fields)
    return Columns(target or "", tuple(inputs))


def complete_rows(values: np.ndarray, names: Sequence[str], missing: str) -> np.ndarray:
    """Tell which rows have all their values, (rows,); refuse infinite ones, and NaN if to be refused."""
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
            "them, leave those rows out with missing='drop', or fill them with means by missing='impute'"
        )
    return np.asarray(~absent.any(1))


def listed(names: Sequence[str]) -> str:
    """Join names for an error message: the first of them where there are many."""
    shown = ", ".join(map(repr, names[:MOST_NAMES]))
    return shown + (f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else "")
