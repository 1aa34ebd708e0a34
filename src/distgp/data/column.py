"""One column of a table, and the numbers that a GP takes for it.

The encoding is done by pyarrow on whole columns. scikit-learn's OneHotEncoder would need arrays of Python
objects instead, many times the size and the time, and would see a missing value as a category of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute

from distgp.data.locate import TableError

DAY = 86_400.0
WEEK_START = 4.0  # 1970-01-01 was a Thursday; Mondays are day 4 of the epoch
YEAR = 365.2425

pc: Any = pyarrow.compute  # its functions are made when it is imported: no tool knows them
Kind = Literal["number", "category", "date"]
CHOICES = {
    "missing": ("refuse", "drop", "impute"),
    "dates": ("refuse", "expand"),
    "unknown": ("refuse", "new"),
}
"""What can be asked for where a column holds more than numbers."""


def check_choices(**given: str) -> None:
    """Refuse a choice that is not there.

    Parameters
    ----------
    **given
        Any of ``missing`` (rows with missing values), ``dates`` (columns of dates) and ``unknown``
        (categories that were not there in fitting), each with one of its `CHOICES`.

    Raises
    ------
    ValueError
        With the list of choices.
    """
    for name, value in given.items():
        if value not in CHOICES[name]:
            listed = " or ".join(map(repr, CHOICES[name]))
            raise ValueError(f"{name} must be {listed}, got {value!r}")


@dataclass(frozen=True)
class Column:
    """One input column of a table, with what was learnt of it when the model was fitted.

    Parameters
    ----------
    name : str
        Its name in the table.
    kind : {"number", "category", "date"}
        What it holds.
    categories : tuple of str
        The values of a category, in the order of their columns of 0 and 1.
    time_of_day : bool
        Whether a date comes with a time, so that the phase in the day counts.
    boolean : bool
        Whether a number is written as true or false.
    zone : str
        The time zone of dates with a time, whose phases are those of the clocks there; "" for none.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    time_of_day: bool = False
    boolean: bool = False
    zone: str = ""

    @property
    def features(self) -> list[str]:
        """The names of the numbers made of it."""
        if self.kind == "category":
            return [f"{self.name}={category}" for category in self.categories]
        if self.kind == "date":
            cycles = ["year", "week", *(["day"] if self.time_of_day else [])]
            waves = [f"{self.name}.{cycle}_{wave}" for cycle in cycles for wave in ("sin", "cos")]
            return [f"{self.name}.days", *waves]
        return [self.name]

    def encode(self, values: pa.Array, unknown: str) -> np.ndarray:
        """Turn values of the column into numbers.

        Parameters
        ----------
        values : pyarrow.Array
            The values of some rows.
        unknown : {"refuse", "new"}
            Whether a category that was not there in fitting is refused ("refuse") or taken as a new one
            ("new"), which is as far from each of the known as they are from each other.

        Returns
        -------
        ndarray of shape (rows, features)
            Numbers; NaN where a value is missing.
        """
        if self.kind == "category":
            return self._one_hot(values, unknown)
        if self.kind == "date":
            return self._waves(values)
        return numbers(self.name, values)[:, None]

    def _one_hot(self, values: pa.Array, unknown: str) -> np.ndarray:
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
        index = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False)
        hot = (index[:, None] == np.arange(len(self.categories))).astype(np.float64)
        if unknown == "new":
            hot[strange.to_numpy(zero_copy_only=False)] = beyond(len(self.categories))
        hot[pc.is_null(values).to_numpy(zero_copy_only=False)] = np.nan
        return hot

    def _stamps(self, values: pa.Array) -> pa.Array:
        """Dates and times as clocks show them, refused where they are of another kind than in fitting."""
        kind = values.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            raise TableError(
                f"column {self.name!r} held dates in fitting, and now holds {kind}: give dates"
            )
        zone = (kind.tz or "") if pa.types.is_timestamp(kind) else ""
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

    def _waves(self, values: pa.Array) -> np.ndarray:
        """Give days since 1970 for trends, and the phase in year, week and day for cycles."""
        stamps = self._stamps(values).cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        micros = pc.fill_null(stamps.cast(pa.float64()), math.nan).to_numpy(zero_copy_only=False)
        days = micros / 1e6 / DAY
        phases = [days / YEAR, (days - WEEK_START) / 7.0, *([days] if self.time_of_day else [])]
        angles = [2.0 * math.pi * (phase - np.floor(phase)) for phase in phases]
        waves = [wave for angle in angles for wave in (np.sin(angle), np.cos(angle))]
        return np.stack([days, *waves], axis=1)


def beyond(k: int) -> float:
    """The t for which (t, …, t) lies at distance √2 from all k unit vectors: kt² − 2t + 1 = 2."""
    return (1.0 + math.sqrt(1.0 + k)) / k


def numbers(name: str, values: pa.Array) -> np.ndarray:
    """Turn values into float64, (rows,); missing ones become NaN."""
    try:
        wide = values.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise TableError(
            f"column {name!r} is {values.type}, expected numbers as in fitting: {error}"
        ) from error
    return pc.fill_null(wide, math.nan).to_numpy(zero_copy_only=False)


def as_text(values: Any) -> Any:
    """Turn values of any type into text."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.string())


def distinct(values: Any) -> set[str]:
    """List the different values of a column, as text, without missing ones."""
    return {value for value in pc.unique(as_text(values)).to_pylist() if value is not None}
