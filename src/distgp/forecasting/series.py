"""The rows of a table in the order of their time, and the folds that they are forecast in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import numpy as np
import pyarrow as pa

from distgp._util.checks import did_you_mean, is_integer
from distgp.data import rows as frames
from distgp.data.encoding import kind_of, numbers
from distgp.data.table import TableError, pc
from distgp.kernels.names import TIMES, UNITS
from distgp.regressor import DistributedGPRegressor

Length = int | str | timedelta | np.timedelta64
"""A stretch of time: a number of steps, a text such as "1 week", or a duration."""
BINS = (7, 6, 5, 4)
"""Numbers of equal parts that many steps ahead are told in: a week ahead by days, a day by four hours."""
SLACK = 1e-6
"""The share of a step by which times that are meant to be the same may differ."""
LEAST_ROWS = 10
"""Rows that each fold must have to learn from."""


@dataclass(frozen=True, eq=False)
class Fold:
    """The places of rows to learn from and of rows to forecast, from one moment of the past.

    `step` counts how far ahead each row to forecast is, from 1, and `bin` is the part of the horizon that
    it is told in; `origin` is the moment in words.
    """

    number: int
    of: int
    origin: str
    train: np.ndarray
    test: np.ndarray
    step: np.ndarray
    bin: np.ndarray

    def __str__(self) -> str:
        return f"fold {self.number} of {self.of}, with rows up to {self.origin} to learn from"


@dataclass(frozen=True, eq=False)
class Series:
    """Rows in the order of their time: inputs, targets y (n,), and times as given and as numbers (n,).

    Dates are counted in days. A `step` is the median distance of successive times.
    """

    inputs: pa.Table
    y: np.ndarray
    time: str
    target: str
    times: pa.ChunkedArray
    when: np.ndarray
    dated: bool
    step: float

    @staticmethod
    def of(table: frames.Frame, time: str, target: str, drop: bool) -> Series:
        """Read a table; rows without a target or a time are left out where they are to be dropped."""
        rows = as_table(table)
        for name, said in (("time", time), ("target", target)):
            if not isinstance(said, str):
                got = type(said).__name__
                raise TableError(f"{name} must be the name of a column, got a {got}")
            if said not in rows.schema.names:
                index = getattr(getattr(table, "index", None), "names", ())
                hint = (
                    ": it is the index, of which reset_index makes a column"
                    if said in index
                    else ""
                )
                there = rows.schema.names
                near = did_you_mean(said, there)
                raise TableError(f"{name}={said!r} is no column{near} there are {there}{hint}")
        if time == target:
            raise TableError(f"time and target are both {time!r}: name two columns")
        y, (when, dated) = (
            numbers(target, rows.column(target)),
            _numbers_of_times(rows.column(time), time),
        )
        known = np.isfinite(y) & np.isfinite(when)
        if not known.all() and not drop:
            raise TableError(
                f"{int((~known).sum())} of {len(y)} rows have no {target!r} or no {time!r}, or an "
                "infinite one: leave them out, or give the model missing='drop'"
            )
        order = np.flatnonzero(known)[np.argsort(when[known], kind="stable")]
        if not len(order):
            raise TableError(f"no row has both {target!r} and {time!r}: give some that do")
        apart = np.diff(np.unique(when[order]))
        if not len(apart):
            raise TableError(f"all rows have the same {time!r}: a forecast needs times that differ")
        rows = rows.take(pa.array(order))
        inputs = rows.drop_columns([target])
        step = float(np.median(apart))
        return Series(inputs, y[order], time, target, rows.column(time), when[order], dated, step)

    def rows(self, places: np.ndarray) -> pa.Table:
        """The inputs of some rows."""
        return self.inputs.take(pa.array(places))

    def length(self, name: str, value: Length) -> float:
        """Read a stretch of time: steps, or a duration where the times are dates."""
        days = _days(value)
        if days is None and is_integer(value) and value >= 1:
            return value * self.step
        if days is None or not days > 0:
            raise ValueError(
                f"{name} must be a number of steps from 1, or a duration such as '1 week', '36 h' or a "
                f"timedelta, got {value!r:.200}"
            )
        if not self.dated:
            raise ValueError(
                f"{name}={value!r:.200} is a duration, but {self.time!r} holds numbers, whose unit is not "
                "known: give a number of steps, or a column of dates"
            )
        return days

    def said(self, length: float) -> str:
        """A stretch of time in words."""
        if not self.dated:
            return f"{length:g}"
        fits = [
            u for u, (days, _) in TIMES.items() if u != "months" and length >= days * (1 - SLACK)
        ]
        unit = next(
            (u for u in fits[::-1] if _is_whole(length / TIMES[u][0])), (fits or ["seconds"])[-1]
        )
        count = length / TIMES[unit][0]
        return f"1 {unit[:-1]}" if _is_whole(count) and round(count) == 1 else f"{count:.4g} {unit}"

    def folds(self, horizon: float, count: int, window: float | None) -> list[Fold]:
        """Divide the end of the series into stretches to forecast, the earliest first."""
        steps = max(1, round(horizon / self.step))
        bins = next((few for few in BINS if steps % few == 0), min(steps, BINS[0]))
        edges = [part[0] for part in np.array_split(np.arange(1, steps + 1), bins)]
        slack, made = SLACK * self.step, []
        for number in range(1, count + 1):
            end = self.when[-1] - (count - number) * horizon
            origin = end - horizon + slack
            known = self.when <= origin
            if window is not None:
                known &= self.when > origin - window
            test = np.flatnonzero((self.when > origin) & (self.when <= end + slack))
            train = np.flatnonzero(known)
            if len(train) < LEAST_ROWS or not len(test):
                raise ValueError(
                    f"fold {number} of {count} has {len(train)} rows to learn from and {len(test)} to "
                    f"forecast, expected {LEAST_ROWS} and 1 at least: give fewer folds, a shorter horizon "
                    "or a longer window"
                )
            step = np.ceil((self.when[test] - end + horizon) / self.step - SLACK).astype(int)
            step = np.clip(step, 1, steps)
            place = np.searchsorted(edges, step, side="right") - 1
            last = str(self.times[int(train[-1])].as_py())
            made.append(Fold(number, count, last, train, test, step, place))
        return made


def as_table(table: object) -> pa.Table:
    """Read a table of any library; refuse what is none."""
    if not frames.is_table(table):
        raise TableError(
            "expected a table of pandas, polars or pyarrow with columns for time and target, got "
            f"{type(table).__name__}"
        )
    return frames.to_arrow(cast(frames.Frame, table))


def check_model(gp: object) -> None:
    """Refuse what is no model of ours, its class included."""
    if not isinstance(gp, DistributedGPRegressor):
        made = f"the class {gp.__name__}: call it first" if isinstance(gp, type) else f"{gp!r:.200}"
        raise TypeError(
            f"expected a DistributedGPRegressor, such as forecasts are made by, got {made}"
        )


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < SLACK


def _days(value: object) -> float | None:
    """The days of a duration; None where it is none."""
    if isinstance(value, timedelta):
        return value / timedelta(days=1)
    if isinstance(value, np.timedelta64):
        return float(value / np.timedelta64(1, "D"))
    text = value.lower() if isinstance(value, str) else ""
    found = re.fullmatch(r"\s*(\d+\.?\d*)?\s*([a-z]+)\s*", text)
    if found is None or found[2] not in UNITS:
        return None
    return float(found[1] or 1) * TIMES[UNITS[found[2]]][0]


def _numbers_of_times(values: pa.ChunkedArray, name: str) -> tuple[np.ndarray, bool]:
    """Times as numbers, NaN where missing, and whether they are dates, which are counted in days."""
    kind = kind_of(values.type)
    if kind == "number":
        return numbers(name, values), False
    if kind != "date":
        raise TableError(
            f"time={name!r} is a column of {values.type}, expected dates or numbers: make dates of it, by "
            "pandas.to_datetime for one"
        )
    micros = values.cast(pa.timestamp("us", tz=getattr(values.type, "tz", None)), safe=False)
    return numbers(name, pc.cast(micros, pa.int64())) / 86_400e6, True
