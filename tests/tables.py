"""A table with a column of every kind, and missing values."""

import datetime as dt

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
