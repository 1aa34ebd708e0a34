"""The values of one column of a table: their kind, as numbers, as texts, and as categories."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from distgp.data.table import TableError, pc

MOST_CATEGORIES = 100
FEW_CATEGORIES = 5  # texts up to which any make a category
MOSTLY, ALONE, FEW_ROWS = 0.8, 0.9, 20
"""Texts are refused as a category where more than `MOSTLY` of them are numbers or dates, or where more
than the share `ALONE` of the rows, and so many rows at least, have a text of their own."""
_LIKE_A_NUMBER = re.compile(r"\s*[-+]?(\d[\d.,]*|[.,]\d+)([eE][-+]?\d+)?\s*")
_LIKE_A_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
Values: TypeAlias = "pa.Array | pa.ChunkedArray"
TYPES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "number": (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal),
    "date": (types.is_timestamp, types.is_date),
    "category": (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        lambda type_: types.is_dictionary(type_) and kind_of(type_.value_type) != "other",
    ),
    "empty": (types.is_null,),
}


def kind_of(type_: pa.DataType) -> str:
    """Tell the kind of a column of this type, "empty" and "other" included."""
    return next((kind for kind, tests in TYPES.items() if any(t(type_) for t in tests)), "other")


def type_in_words(type_: pa.DataType) -> str:
    """Return "text" for all types of texts, and the name of any other type."""
    return "text" if kind_of(type_) == "category" else str(type_)


def numbers(name: str, values: Values) -> np.ndarray:
    """Turn values into float64, (rows,); missing ones become NaN."""
    try:
        wide = values.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise TableError(
            f"column {name!r} is {type_in_words(values.type)}, expected numbers as in fitting ({error}): "
            "correct it, or convert it, by pandas.to_numeric for one"
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


def zone_of(type_: pa.DataType) -> str:
    """Return the time zone of a type of times; "" for none."""
    return getattr(type_, "tz", None) or ""


def categories_of(name: str, texts: set[str]) -> tuple[str, ...]:
    """Sort the texts of a category; refuse more than `MOST_CATEGORIES`."""
    found = sorted(texts)
    if len(found) > MOST_CATEGORIES:
        looks = "a name or a number; convert it,"
        if _LIKE_A_DATE.match(found[len(found) // 2]):
            looks = "dates; make times of them, by pandas.to_datetime for one,"
        raise TableError(
            f"column {name!r} is text with {len(found)} different values, more than {MOST_CATEGORIES}: "
            f"it looks like {looks} or leave it out"
        )
    return tuple(found)


def with_comma(texts: set[str]) -> str | None:
    """Return a number with a comma among texts that are all numbers; None where there is no such."""
    if not all(_LIKE_A_NUMBER.fullmatch(text) for text in texts):
        return None
    return min((text for text in texts if "," in text), default=None)


def refuse_misread(name: str, texts: set[str], rows: int) -> None:
    """Refuse texts that are numbers or dates with a few others among them, or all names of one row."""
    if len(texts) > FEW_CATEGORIES and (example := with_comma(texts)):
        raise TableError(
            f"column {name!r} is text, since its numbers have commas, such as {example!r}: write them with "
            "points, by pandas.read_csv(…, decimal=',') for one, or say that they are labels by "
            f"categorical=[{name!r}]"
        )
    if not FEW_CATEGORIES < len(texts) <= MOST_CATEGORIES:
        return
    dates = {text for text in texts if _LIKE_A_DATE.match(text)}
    numbers = {text for text in texts if _LIKE_A_NUMBER.fullmatch(text)} - dates
    others = sorted(texts - dates - numbers)
    misread = others if len(numbers) > len(dates) else len(dates) > MOSTLY * len(texts)
    if misread and len(texts) - len(others) > MOSTLY * len(texts):
        kind, by = (
            ("numbers", "to_numeric") if len(numbers) > len(dates) else ("dates", "to_datetime")
        )
        mark = f", but not {others[0]!r}: leave such cells empty," if others else ": convert them"
        raise TableError(
            f"column {name!r} is text, though {len(texts) - len(others)} of its {len(texts)} different "
            f"values are {kind}{mark} by pandas.{by} for one, or say that they are labels by "
            f"categorical=[{name!r}]"
        )
    if rows >= FEW_ROWS and len(texts) > ALONE * rows:
        raise TableError(
            f"column {name!r} is text with {len(texts)} different values in {rows} rows, so that it tells "
            f"nothing of other rows: leave it out, or say that they are labels by "
            f"categorical=[{name!r}]"
        )
