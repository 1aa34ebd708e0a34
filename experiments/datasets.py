"""The three UCI data sets of section 5.2, as four tasks: features, units and splits by time.

The paper states neither features nor units. Features here are what is known at the hour itself; no
year, which could only extrapolate, and no other target. RMSE fits the paper's in mg/m³ for CO, and in
tens (NOx, PM2.5) and hundreds (traffic) of the published units; its traffic NLPD fits vehicles/h only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv
from torch import Tensor

from distgp import metrics
from distgp.data import Shard
from distgp.experts import Prediction
from experiments.download import BEIJING, GAS_TURBINE, TRAFFIC, locate
from experiments.study import Row

EMISSIONS = {"co": "CO", "nox": "NOX"}
UNITS = {"co": 1.0, "nox": 10.0, "pm2.5": 10.0, "traffic": 100.0}
"""Published units (mg/m³, µg/m³, vehicles/h) per unit of the paper's RMSE; NLPD in published units is
larger by the logarithm of this number."""
SENSORS = ("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP")


BEFORE, AFTER = (2011, 2012, 2013), (2014, 2015)
"""The years of the gas turbine to learn from, and those to test on."""
Years: TypeAlias = dict[int, tuple[np.ndarray, np.ndarray]]
"""Sensors and targets of each year."""


@dataclass(frozen=True, eq=False)
class Task:
    """Rows to learn from and later ones to predict.

    Parameters
    ----------
    name : str
        The target.
    features : tuple of str
        The names of the d columns.
    X, X_test : ndarray of shape (n, d) and (N, d)
        The features of the rows to learn from, and of those to predict.
    y, y_test : ndarray of shape (n,) and (N,)
        Their targets, in units of the paper's RMSE.
    hours, hours_test : ndarray of shape (n,) and (N,), optional
        The hours of these rows, where the table has several rows of one hour.
    """

    name: str
    features: tuple[str, ...]
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    hours: np.ndarray | None = None
    hours_test: np.ndarray | None = None

    def every(self, step: int) -> Task:
        """Every step-th row of both parts."""
        train, test = np.arange(len(self.y)), len(self.y) + np.arange(len(self.y_test))
        return self.divided(train[::step], test[::step])

    def earlier(self) -> Task:
        """The same task without its test years: learn from the first two thirds of the other rows,
        predict their last third.
        """
        train, test = np.split(np.arange(len(self.y)), [2 * len(self.y) // 3])
        return self.divided(train, test)

    def at_random(self, seed: int = 0) -> Task:
        """The rows of both parts divided anew: learn from 80 % of them, drawn at random, predict the rest.

        Of the rows of one hour only the first is kept. The others have the same target and nearly the
        same features: drawn to the other part, they would tell it.
        """
        rows = np.arange(len(self.y) + len(self.y_test))
        if self.hours is not None and self.hours_test is not None:
            rows = np.unique(np.concatenate([self.hours, self.hours_test]), return_index=True)[1]
        order = np.random.default_rng(seed).permutation(len(rows))
        return self.divided(*np.split(rows[order], [4 * len(rows) // 5]))

    def divided(self, train: np.ndarray, test: np.ndarray) -> Task:
        """The task with other rows to learn from and to predict, by their places in both parts."""
        X, y = np.concatenate([self.X, self.X_test]), np.concatenate([self.y, self.y_test])
        made = replace(self, X=X[train], y=y[train], X_test=X[test], y_test=y[test])
        if self.hours is None or self.hours_test is None:
            return made
        hours = np.concatenate([self.hours, self.hours_test])
        return replace(made, hours=hours[train], hours_test=hours[test])


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task in standard units, on a device.

    Parameters
    ----------
    y_test : ndarray of shape (N,)
        The targets to predict, in the task's units.
    data : Shard
        The rows to learn from: every column and the target with mean 0 and variance 1.
    X_test : Tensor of shape (N, d)
        The inputs to predict at, in the same units.
    mean, scale : float
        Mean and standard deviation of the target.
    """

    y_test: np.ndarray
    data: Shard
    X_test: Tensor
    mean: float
    scale: float

    @staticmethod
    def of(task: Task, device: str, columns: Sequence[str] | None = None) -> Prepared:
        """Standardise a task by its rows to learn from.

        Parameters
        ----------
        task : Task
            The task.
        device : str
            The device that the numbers are moved to.
        columns : sequence of str, optional
            The features to keep, by default all.

        Returns
        -------
        Prepared
        """
        names = task.features if columns is None else columns
        which = [task.features.index(name) for name in names]
        X, X_test = task.X[:, which], task.X_test[:, which]
        centre, width = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1.0)
        mean, scale = float(task.y.mean()), float(task.y.std())

        def tensor(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float64, device=device)

        data = Shard.of(tensor((X - centre) / width), tensor((task.y - mean) / scale))
        return Prepared(task.y_test, data, tensor((X_test - centre) / width), mean, scale)

    def scores(self, prediction: Prediction) -> Row:
        """RMSE, NLPD and coverage of predicted observations, in the task's units."""
        mean = prediction.mean.cpu().numpy() * self.scale + self.mean
        variance = prediction.variance.cpu().numpy() * self.scale**2
        return {
            "rmse": metrics.rmse(self.y_test, mean),
            "nlpd": metrics.nlpd(self.y_test, mean, variance),
            "coverage": metrics.coverage(self.y_test, mean, variance, 0.9),
        }


def gas_turbine_years(target: str, folder: Path | str | None = None, verify: bool = True) -> Years:
    """Read the gas turbine's data, year by year.

    Parameters
    ----------
    target : {"co", "nox"}
        The emission to predict.
    folder, verify
        As for `experiments.download.locate`.

    Returns
    -------
    dict of int to (ndarray of shape (n, 9), ndarray of shape (n,))
        The sensors, and the target in units of the paper's RMSE.
    """
    column, unit = EMISSIONS[target], UNITS[target]
    tables = {
        int(name[3:7]): csv.read_csv(path)
        for name, path in locate(GAS_TURBINE, folder, verify).items()
    }
    return {
        year: (_matrix(table, SENSORS), _matrix(table, [column])[:, 0] / unit)
        for year, table in tables.items()
    }


def gas_turbine(target: str, folder: Path | str | None = None, verify: bool = True) -> Task:
    """CO or NOx from the nine sensors: learn from 2011–2013, predict 2014–2015."""
    years = gas_turbine_years(target, folder, verify)
    return Task(target, SENSORS, *joined(years, BEFORE), *joined(years, AFTER))


def joined(years: Years, which: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Sensors and targets of several years, in one."""
    X, y = zip(*(years[year] for year in which), strict=True)
    return np.concatenate(X), np.concatenate(y)


def beijing(folder: Path | str | None = None, verify: bool = True) -> Task:
    """PM2.5 from weather and the time of day and year: learn from 2010–2013, predict 2014."""
    (path,) = locate(BEIJING, folder, verify).values()
    options = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    table = csv.read_csv(path, convert_options=options)
    table = table.filter(table["pm2.5"].is_valid())
    year, month, day, hour = _matrix(table, ["year", "month", "day", "hour"]).T
    wind = np.array(table["cbwd"].to_pylist())
    weather = _matrix(table, ["DEWP", "TEMP", "PRES", "Iws", "Is", "Ir"])
    weather[:, 3:] = np.log1p(weather[:, 3:])  # sums over hours: several orders of magnitude
    columns = {
        **dict(
            zip(("DEWP", "TEMP", "PRES", "log Iws", "log Is", "log Ir"), weather.T, strict=True)
        ),
        **_cycle("hour", hour, 24),
        **_cycle("day of year", 30.44 * (month - 1) + day, 365.25),
        **{f"wind {name}": (wind == name).astype(float) for name in ("NE", "NW", "SE", "cv")},
    }
    y = _matrix(table, ["pm2.5"])[:, 0] / UNITS["pm2.5"]
    return _split("pm2.5", columns, y, year < 2014)


def traffic(folder: Path | str | None = None, verify: bool = True) -> Task:
    """Traffic volume from weather, calendar and time of day: learn from 2012–2016, predict 2017–2018."""
    (path,) = locate(TRAFFIC, folder, verify).values()
    table = csv.read_csv(
        path, convert_options=csv.ConvertOptions(column_types={"date_time": pa.string()})
    )
    stamps = [stamp[:16].replace("T", " ") for stamp in table["date_time"].to_pylist()]
    time = np.array(stamps, dtype="datetime64[m]")
    day = time.astype("datetime64[D]")
    hour = (time - day).astype(int) / 60.0
    weekday = (day.astype(int) + 3) % 7  # 1 January 1970 was a Thursday; Monday is 0
    year = time.astype("datetime64[Y]").astype(int) + 1970
    day_of_year = (day - day.astype("datetime64[Y]")).astype(int)
    named = np.array(table["holiday"].to_pylist())
    holidays = set(day[(named != "None") & (named != None)].tolist())  # noqa: E711
    # The file names a holiday at its first hour only; it counts for the whole day here.
    free = np.isin(day.astype(object), list(holidays)).astype(float)
    weather = _matrix(table, ["temp", "rain_1h", "snow_1h", "clouds_all"])
    kinds = np.array(table["weather_main"].to_pylist())
    usual = np.median(weather[year < 2017, 0])
    temperature = np.where(weather[:, 0] < 100.0, usual, weather[:, 0])  # 0 kelvin is a fault
    columns = {
        **_cycle("hour", hour, 24),
        **_cycle("half day", hour, 12),
        **_cycle("weekday", weekday, 7),
        **_cycle("day of year", day_of_year, 365.25),
        "weekend": (weekday >= 5).astype(float),
        "holiday": free,
        "temp": temperature,
        "log rain": np.log1p(np.minimum(weather[:, 1], 100.0)),
        "log snow": np.log1p(weather[:, 2]),
        "clouds": weather[:, 3],
        "fog": np.isin(kinds, ["Fog", "Mist", "Haze", "Smoke"]).astype(float),
        "snowing": (kinds == "Snow").astype(float),
    }
    y = _matrix(table, ["traffic_volume"])[:, 0] / UNITS["traffic"]
    before = year < 2017
    task = _split("traffic", columns, y, before)
    return replace(task, hours=time[before], hours_test=time[~before])


TASKS: dict[str, Callable[[Path | str | None, bool], Task]] = {
    "co": lambda folder, verify: gas_turbine("co", folder, verify),
    "nox": lambda folder, verify: gas_turbine("nox", folder, verify),
    "pm2.5": beijing,
    "traffic": traffic,
}
"""How to read each task, from a folder, with or without verification of the files."""


def _matrix(table: pa.Table, names: Sequence[str]) -> np.ndarray:
    columns = [table[name].cast(pa.float64()).to_numpy() for name in names]
    return np.column_stack(columns)


def _cycle(name: str, values: np.ndarray, period: float) -> dict[str, np.ndarray]:
    """A periodic time as a point on a circle, so that the end of a period meets its beginning."""
    angle = 2.0 * np.pi * values / period
    return {f"sin {name}": np.sin(angle), f"cos {name}": np.cos(angle)}


def _split(
    name: str,
    columns: dict[str, np.ndarray],
    y: np.ndarray,
    before: np.ndarray,
) -> Task:
    X = np.column_stack(list(columns.values()))
    return Task(name, tuple(columns), X[before], y[before], X[~before], y[~before])
