"""The three UCI data sets of section 5.2, as four tasks: features, units and splits by time.

The paper states neither features nor units. Features here are what is known at the hour itself; no
year, which could only extrapolate, and no other target. RMSE fits the paper's in mg/m³ for CO, and in
tens (NOx, PM2.5) and hundreds (traffic) of the published units; its traffic NLPD fits vehicles/h only.

The first sums are of the copies that the results were made with, which were written by other programs than the
archive's; the second of their values, so that a file with the same values passes however it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from distgp.paper.download import Published, locate

ARCHIVE = "https://archive.ics.uci.edu/static/public/"
GAS_TURBINE = Published(
    "Gas Turbine CO and NOx Emission",
    ARCHIVE + "551/gas+turbine+co+and+nox+emission+data+set.zip",
    {
        "gt_2011.csv": "d87ceef9aa59533cc7d924d10de241b1b06ecd11f9b26bab59191ea0f8a76b9a",
        "gt_2012.csv": "be54b9d0e1a7de40c55d32fa489e75de892b000c066b5a09f09a19124ee29100",
        "gt_2013.csv": "13c437bb440ec2045bd12057e6654c41dd4107a661eac16ba2e878e897a08f9e",
        "gt_2014.csv": "c2a03c92c9c3207aad0c6be7de8d9b5b4bfa4720ad0efb2c1f21b6cec4d3f3fa",
        "gt_2015.csv": "9b08f35fde0d4b138232a605db4093c2b8bf9d6757e6f1fbd9534ad616c13591",
    },
    {
        "gt_2011.csv": "96a39ef37be4af9f4928d46d6c1a8ca8b07210fbabc1b9c841b5abac92a098b6",
        "gt_2012.csv": "11e615c4ff2dd7aa6d9b2384f7e10ae120f53f6d0b3611f579bd8b6d0149bcf1",
        "gt_2013.csv": "04bfa30f920c802c30314bd6365033cecfa84287474242ce7ff571b9e20ad91f",
        "gt_2014.csv": "3a8c19b6c8d25ed2a898a38fd4ec130d36bf0d69bd164a3f7a285cf079014034",
        "gt_2015.csv": "21e13d253b451d46845465fc1088b3707ec3d1d381d1cb9095d0819e9f5766b4",
    },
)
BEIJING = Published(
    "Beijing PM2.5",
    ARCHIVE + "381/beijing+pm2+5+data.zip",
    {
        "PRSA_data_2010.1.1-2014.12.31.csv": "77b185392c567d67bf0ddaa27cf57f6f1198e463a665d86360f3910c313719bd",
    },
    {
        "PRSA_data_2010.1.1-2014.12.31.csv": "55a43dd835a6f490f0be434e0507f373f6eb4be55e3fb97203a0785213ab5e34",
    },
)
TRAFFIC = Published(
    "Metro Interstate Traffic Volume",
    ARCHIVE + "492/metro+interstate+traffic+volume.zip",
    {
        "Metro_Interstate_Traffic_Volume.csv": "1b92185e2b9cd407e3ea626d10eb010a2ee82f820a48c6d8b690535511c1061a",
    },
    {
        "Metro_Interstate_Traffic_Volume.csv": "0408bd49ad2e1fbf5429a096279bf2dfd839584a75ab57a12fe79017698dc991",
    },
)
EMISSIONS = {"co": "CO", "nox": "NOX"}
UNITS = {"co": 1.0, "nox": 10.0, "pm2.5": 10.0, "traffic": 100.0}
"""Published units (mg/m³, µg/m³, vehicles/h) in a unit of the paper's RMSE: NLPD there is larger by the logarithm."""
SENSORS = ("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP")


@dataclass(frozen=True, eq=False)
class Task:
    """Rows to learn from and later ones to predict, in units of the paper's RMSE."""

    name: str
    features: tuple[str, ...]
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def gas_turbine_years(
    target: str, folder: Path | str | None = None, verify: bool = True
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Sensors and target of each year, in units of the paper's RMSE."""
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
    """CO or NOx from the nine sensors: 2011–2013, then 2014–2015."""
    years = gas_turbine_years(target, folder, verify)
    before, after = (2011, 2012, 2013), (2014, 2015)
    return Task(
        target,
        SENSORS,
        np.concatenate([years[year][0] for year in before]),
        np.concatenate([years[year][1] for year in before]),
        np.concatenate([years[year][0] for year in after]),
        np.concatenate([years[year][1] for year in after]),
    )


def beijing(folder: Path | str | None = None, verify: bool = True) -> Task:
    """PM2.5 from weather and the time of day and year: 2010–2013, then 2014."""
    (path,) = locate(BEIJING, folder, verify).values()
    options = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    table = csv.read_csv(path, convert_options=options)
    table = table.filter(table["pm2.5"].is_valid())
    year, month, day, hour = _matrix(table, ["year", "month", "day", "hour"]).T
    wind = np.array(table["cbwd"].to_pylist())
    weather = _matrix(table, ["DEWP", "TEMP", "PRES", "Iws", "Is", "Ir"])
    weather[:, 3:] = np.log1p(weather[:, 3:])  # sums over hours, over several orders of magnitude
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
    """Traffic volume from weather, calendar and the time of day: 2012–2016, then 2017–2018."""
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
    free = np.isin(day.astype(object), list(holidays)).astype(
        float
    )  # the whole day, not its first hour
    weather = _matrix(table, ["temp", "rain_1h", "snow_1h", "clouds_all"])
    kinds = np.array(table["weather_main"].to_pylist())
    usual = np.median(weather[year < 2017, 0])
    temperature = np.where(weather[:, 0] < 100.0, usual, weather[:, 0])
    columns = {
        **_cycle("hour", hour, 24),
        **_cycle("half day", hour, 12),
        **_cycle("weekday", weekday, 7),
        **_cycle("day of year", day_of_year, 365.25),
        "weekend": (weekday >= 5).astype(float),
        "holiday": free,
        "temp": temperature,  # zero kelvin is a fault
        "log rain": np.log1p(np.minimum(weather[:, 1], 100.0)),
        "log snow": np.log1p(weather[:, 2]),
        "clouds": weather[:, 3],
        "fog": np.isin(kinds, ["Fog", "Mist", "Haze", "Smoke"]).astype(float),
        "snowing": (kinds == "Snow").astype(float),
    }
    y = _matrix(table, ["traffic_volume"])[:, 0] / UNITS["traffic"]
    return _split("traffic", columns, y, year < 2017)


TASKS: dict[str, Callable[[Path | str | None, bool], Task]] = {
    "co": lambda folder, verify: gas_turbine("co", folder, verify),
    "nox": lambda folder, verify: gas_turbine("nox", folder, verify),
    "pm2.5": beijing,
    "traffic": traffic,
}


def _matrix(table: pa.Table, names: Sequence[str]) -> np.ndarray:
    columns = [table[name].cast(pa.float64()).to_numpy() for name in names]
    return np.column_stack(columns)


def _cycle(name: str, values: np.ndarray, period: float) -> dict[str, np.ndarray]:
    """A time on a circle, so that its end meets its beginning."""
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
