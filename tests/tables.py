"""A table with a column of every kind, and missing values; and a series every half an hour."""

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa

TABLE = pa.table(
    {
        "y": [1.0, 2.0, None, 4.0],
        "x": [1, 2, 3, 4],
        "flag": [True, False, True, None],
        "site": ["b", "a", "b", None],
        "when": [
            dt.datetime(2020, 1, 6, 12),
            dt.datetime(1970, 1, 1),
            None,
            dt.datetime(2021, 7, 1),
        ],
        "day": [dt.date(2020, 1, 6)] * 4,
    }
)


def half_hourly(days: int, seed: int = 0) -> pd.DataFrame:
    """A load every half an hour from a Monday on, with a column that says which days are holidays.

    It has a daily rhythm of two waves, quiet weekends and holidays (every tenth day), a trend, errors that
    last for hours, and noise.
    """
    rng = np.random.default_rng(seed)
    when = pd.date_range("2026-03-02", periods=48 * days, freq="30min")
    steps = np.arange(len(when))
    day, hour = steps // 48, (steps % 48) / 2
    holiday = (day % 10 == 9).astype(float)
    load = 30 + 8 * np.sin(np.pi * (hour - 7) / 12) + 3 * np.sin(np.pi * hour / 6) + 0.02 * day
    load -= 4 * (day % 7 >= 5) + 5 * holiday
    shocks, lasting = 0.4 * rng.normal(size=len(steps)), np.zeros(len(steps))
    for i in steps[1:]:
        lasting[i] = 0.9 * lasting[i - 1] + shocks[i]
    load += lasting + 0.3 * rng.normal(size=len(steps))
    return pd.DataFrame({"when": when, "holiday": holiday, "load": load})
