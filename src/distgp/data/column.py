"""One column of a table: it learns what it holds when a model is fitted, and encodes values after that.

The encoding is done by pyarrow on whole columns. scikit-learn's OneHotEncoder would need arrays of Python
objects instead, many times the size and the time, and would see a missing value as a category of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from distgp.data.table import TableError

DAY = 86_400.0
CYCLES = {"year": (0.0, 365.2425), "week": (4.0, 7.0), "day": (0.0, 1.0)}
"""A day since 1970 at which each cycle begins, and its length: 1970-01-01 was a Thursday."""
MOST_CATEGORIES = 100
_LIKE_A_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}")

pc: Any = pyarrow.compute  # its functions are made when it is imported: no tool knows them
Values: TypeAlias = "pa.Array | pa.ChunkedArray"
Kind = Literal["number", "category", "date"]
TYPES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "number": (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal),
    "date": (types.is_timestamp, types.is_date),
    "category": (types.is_string, types.is_large_string, types.is_string_view, types.is_dictionary),
    "empty": (types.is_null,),
}
"""The Arrow types of each kind of column."""
CHOICES = {
    "missing": ("refuse", "drop", "impute"),
    "dates": ("refuse", "expand"),
    "unknown": ("refuse", "new"),
}
"""The ways to treat rows with missing values, columns of dates, and categories not seen in fitting."""


def check_choices(**given: object) -> None:
    """Refuse a value of ``missing``, ``dates`` or ``unknown`` that is not among its `CHOICES`."""
    for name, value in given.items():
        if value not in CHOICES[name]:
            listed = " or ".join(map(repr, CHOICES[name]))
            raise ValueError(f"{name} must be {listed}, got {value!r}")


@dataclass(frozen=True)
class Column:
    """One input column of a table, with what was learnt of it when the model was fitted.

    A category has its texts in the order of their columns of 0 and 1. A date may come with a time of day,
    whose phase counts then, and with a time zone, whose clocks give the phases. A number may be written
    as true or false (boolean).
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
    ) -> Column:
        """Find out what a column holds, from its type and, for a category, the different texts in it.

        Numbers that are `labels` make a category. Dates are refused, or taken where `dates` is "expand".
        """
        kind = kind_of(type_)
        kind = "category" if labels and kind != "empty" else kind
        if kind == "number":
            return Column(name, kind, boolean=types.is_boolean(type_))
        if kind == "category":
            return Column(name, kind, _categories(name, texts_of(name)))
        if kind == "date" and dates == "expand":
            return Column(name, kind, time_of_day=types.is_timestamp(type_), zone=_zone(type_))
        if kind == "date":
            raise TableError(
                f"column {name!r} holds dates ({type_}), not numbers: leave it out (--drop {name}), or "
                "make days and phases of year, week and day of it with dates='expand' (--dates expand)"
            )
        is_ = "empty" if kind == "empty" else f"{type_}, expected numbers, text or dates"
        raise TableError(f"column {name!r} is {is_}: leave it out (--drop {name})")

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
        """Turn values into numbers, (rows, features), with NaN where a value is missing.

        A category that was not there in fitting is refused, or, where `unknown` is "new", put as far from
        each of the known ones as they are from each other.
        """
        if self.kind == "category":
            return self._one_hot(values, unknown)
        if self.kind == "date":
            return self._waves(values)
        return numbers(self.name, values)[:, None]

    def _one_hot(self, values: Values, unknown: str) -> np.ndarray:
        """Give every category a column of 0 and 1."""
        texts = as_text(values)
        codes = pc.index_in(texts, pa.array(self.categories, pa.string()))
        strange = pc.and_(pc.is_valid(values), pc.is_null(codes))
        if unknown == "refuse" and (count := pc.sum(strange).as_py()):
            example = texts.filter(strange)[0].as_py()
            raise TableError(
                f"column {self.name!r} holds {count} values that were not there in fitting, such as "
                f"{example!r}: correct them, or take them as new ones with unknown='new' "
                "(--unknown-categories new)"
            )
        index, k = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False), len(self.categories)
        hot = (index[:, None] == np.arange(k)).astype(np.float64)
        if (
            unknown == "new"
        ):  # (t, …, t) is at distance √2 from all k unit vectors: kt² − 2t + 1 = 2
            hot[strange.to_numpy(zero_copy_only=False)] = (1.0 + math.sqrt(1.0 + k)) / k
        hot[pc.is_null(values).to_numpy(zero_copy_only=False)] = np.nan
        return hot

    def _waves(self, values: Values) -> np.ndarray:
        """Give days since 1970 for trends, and the phase in year, week and day for cycles."""
        stamps = self._stamps(values).cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        micros = pc.fill_null(stamps.cast(pa.float64()), math.nan).to_numpy(zero_copy_only=False)
        days = micros / 1e6 / DAY
        phases = [(days - CYCLES[cycle][0]) / CYCLES[cycle][1] for cycle in self._cycles]
        angles = [2.0 * math.pi * (phase - np.floor(phase)) for phase in phases]
        waves = [wave for angle in angles for wave in (np.sin(angle), np.cos(angle))]
        return np.stack([days, *waves], axis=1)

    def _stamps(self, values: Values) -> Values:
        """Return dates and times as clocks show them; refuse those of another kind than in fitting."""
        kind, zone = values.type, _zone(values.type)
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
        return pc.local_timestamp(values.cast(pa.timestamp("us", tz=self.zone), safe=False))


def kind_of(type_: pa.DataType) -> str:
    """Tell the kind of a column of this type, "empty" and "other" included."""
    return next((kind for kind, tests in TYPES.items() if any(t(type_) for t in tests)), "other")


def numbers(name: str, values: Values) -> np.ndarray:
    """Turn values into float64, (rows,); missing ones become NaN."""
    try:
        wide = values.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise TableError(
            f"column {name!r} is {values.type}, expected numbers as in fitting: {error}"
        ) from error
    return pc.fill_null(wide, math.nan).to_numpy(zero_copy_only=False)


def as_text(values: Values) -> Values:
    """Turn values of any type into text."""
    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.string())


def distinct(values: Values) -> set[str]:
    """List the different values of a column, as text, without missing ones."""
    return {value for value in pc.unique(as_text(values)).to_pylist() if value is not None}


def _zone(type_: pa.DataType) -> str:
    """Return the time zone of a type of times; "" for none."""
    return getattr(type_, "tz", None) or ""


def _categories(name: str, texts: set[str]) -> tuple[str, ...]:
    """Sort the texts of a category; refuse more than `MOST_CATEGORIES`."""
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
