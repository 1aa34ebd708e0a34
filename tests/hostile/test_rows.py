"""What is given for each row: of the wrong length, type or time zone, for every method that takes it.

Methods and arguments are found by their signatures, so that new ones are tried too.
"""

import copy
import datetime
import inspect

import numpy as np
import pandas as pd
import pytest
from hostile.trial import data, outcome, tiny

import distgp

N = 24
PER_ROW = ("y", "sample_weight", "noise_variance", "time", "groups")
"""Names of arguments that have one value for each row."""
NEEDS = {"time": {"validation": "last"}, "groups": {"validation": "groups"}}
"""Parameters without which an argument is refused, whatever it holds."""


def stamps(zone=None, unit="ns"):
    return pd.Series(pd.date_range("2024-01-01", periods=N, freq="D", tz=zone, unit=unit))


RIGHT = np.linspace(0.5, 2.0, N)
VALUES = {
    "one too few": RIGHT[1:],
    "one too many": np.r_[RIGHT, 1.0],
    "none": RIGHT[:0],
    "one for all": 1.0,
    "a column": RIGHT[:, None],
    "a row": RIGHT[None],
    "three dimensions": RIGHT.reshape(2, 3, 4),
    "ragged": [[1.0], [1.0, 2.0]] * (N // 2),
    "a mapping": {"a": 1.0},
    "a generator": (value for value in RIGHT),
    "texts": [f"{value}" for value in RIGHT],
    "words": ["one", "two"] * (N // 2),
    "mixed": [1.0, "two"] * (N // 2),
    "absent": [None] * N,
    "not numbers": np.where(np.arange(N) == 3, np.nan, RIGHT),
    "infinite": np.where(np.arange(N) == 3, np.inf, RIGHT),
    "negative": -RIGHT,
    "zero": np.zeros(N),
    "huge": 1e300 * RIGHT,
    "tiny": 1e-300 * RIGHT,
    "complex": RIGHT + 1j,
    "whole": np.arange(N),
    "true or false": np.arange(N) % 2 == 0,
    "another index": pd.Series(RIGHT, index=np.arange(N)[::-1]),
    "two indices": pd.DataFrame({"a": RIGHT, "b": RIGHT}),
    "dates": stamps(),
    "dates in seconds": stamps(unit="s").to_numpy(),
    "dates of a zone": stamps("Europe/Berlin"),
    "dates of two zones": [*stamps("UTC")[: N // 2], *stamps("Asia/Tokyo")[N // 2 :]],
    "dates with and without a zone": [*stamps("UTC")[: N // 2], *stamps()[N // 2 :]],
    "dates of Python with zones": [
        datetime.datetime(
            2024, 1, 1 + i, tzinfo=datetime.timezone(datetime.timedelta(hours=i % 5 - 2))
        )
        for i in range(N)
    ],
    "an hour that comes twice": pd.date_range(
        "2024-10-27", periods=N, freq="15min", tz="Europe/Berlin"
    ),
    "an hour that is left out": pd.date_range(
        "2024-03-31", periods=N, freq="15min", tz="Europe/Berlin"
    ),
    "dates of Arrow with a zone": stamps("America/New_York").astype(
        "timestamp[us, America/New_York][pyarrow]"
    ),
    "dates and absent zones": [*stamps("UTC")[: N - 1], pd.NaT],
    "days of Python": [datetime.date(1500 + 20 * i, 1, 1) for i in range(N)],
    "durations": stamps() - stamps()[0],
    "an absent date": stamps().where(np.arange(N) != 3),
    "categories": pd.Categorical(["a", "b"] * (N // 2)),
    "intervals": pd.cut(RIGHT, 3),
}


def methods(kind):
    """Every public method of an estimator with what it takes for each row."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        takes = inspect.signature(method).parameters
        if not name.startswith("_") and "X" in takes:
            for argument in PER_ROW:
                if argument in takes:
                    yield name, argument


CASES = [
    (kind, name, argument)
    for kind in (distgp.DistributedGPRegressor, distgp.SparseGridGP)
    for name, argument in methods(kind)
]


def test_methods_are_found():
    found = {(name, argument) for _, name, argument in CASES}
    expected = {("fit", "groups"), ("partial_fit", "y"), ("predict", "noise_variance")}
    assert expected <= found and len(CASES) >= 15


@pytest.mark.parametrize(("kind", "name", "argument"), CASES)
def test_every_value_for_every_argument_of_rows(kind, name, argument):
    X, y = data(N)
    grid = kind is distgp.SparseGridGP
    needs = NEEDS.get(argument, {}) if name == "fit" else {}
    new = kind(level=2, training=None) if grid else tiny(**needs)
    begun = new if name == "fit" else new.fit(X, y)
    for what, value in VALUES.items():
        made = copy.deepcopy(begun)
        takes = inspect.signature(getattr(kind, name)).parameters
        given = {"X": X} | ({"y": y} if "y" in takes else {}) | {argument: value}
        given |= {"q": 0.5} if "q" in takes else {}
        found = outcome(
            "arguments of rows", lambda made=made, given=given: getattr(made, name)(**given)
        )
        if found is None or found is made:
            continue
        found = getattr(found, "falls", found)  # of importance
        numbers = np.concatenate([np.ravel(part) for part in np.atleast_1d(found)])
        assert np.isfinite(numbers).all() or name in ("score", "nlpd", "importance"), what
