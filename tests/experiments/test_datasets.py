"""The UCI data sets: shapes, splits and units, on the real files where they are."""

from pathlib import Path

import numpy as np
import pytest
from helpers import PUBLISHED, real

from experiments.datasets import TASKS
from experiments.study import Options
from experiments.uci import UCI
from experiments.uci_page import published


@real
@pytest.mark.parametrize(
    ("name", "rows", "tests", "mean"),
    [
        ("co", 22_191, 14_542, 2.214),
        ("nox", 22_191, 14_542, 6.878),
        ("pm2.5", 33_096, 8_661, 9.884),
        ("traffic", 29_650, 18_554, 32.308),
    ],
)
def test_rows_and_units(name, rows, tests, mean):
    task = TASKS[name](PUBLISHED, True)
    assert task.X.shape == (rows, len(task.features)) and len(task.y) == rows
    assert task.X_test.shape == (tests, len(task.features)) and len(task.y_test) == tests
    assert np.isfinite(task.X).all() and np.isfinite(task.X_test).all()
    assert task.y.mean() == pytest.approx(mean, abs=1e-3)
    assert (task.X.std(0) > 0).all()


@real
def test_traffic_knows_the_calendar():
    task = TASKS["traffic"](PUBLISHED, True)
    column = dict(zip(task.features, task.X.T, strict=True))
    night = column["cos hour"] > 0.9
    assert task.y[night].mean() < 0.5 * task.y.mean()
    assert task.y[column["weekend"] == 1].mean() < task.y[column["weekend"] == 0].mean()
    working = column["weekend"] == 0
    free = working & (column["holiday"] == 1)
    assert 0 < free.mean() < 0.06 and task.y[free].mean() < 0.8 * task.y[working].mean()
    assert column["temp"].min() > 200


@real
@pytest.mark.parametrize(("name", "rows"), [("pm2.5", 41_757), ("traffic", 40_575)])
def test_no_hour_is_in_both_parts_of_a_random_split(name, rows):
    """The traffic table has 48,204 rows of 40,575 hours, and one volume for each hour."""
    task = TASKS[name](PUBLISHED, True).at_random()
    assert (len(task.y), len(task.y_test)) == (4 * rows // 5, rows - 4 * rows // 5)
    if task.hours is not None and task.hours_test is not None:
        assert len(task.hours) == len(task.y) and len(task.hours_test) == len(task.y_test)
        assert len(set(task.hours.tolist()) | set(task.hours_test.tolist())) == rows
        assert not set(task.hours.tolist()) & set(task.hours_test.tolist())
    else:
        assert name == "pm2.5"


@real
def test_a_random_split_of_traffic_keeps_rows_together_with_their_hours():
    task = TASKS["traffic"](PUBLISHED, True)
    known = dict(zip(task.hours.tolist(), task.y.tolist(), strict=True))
    known |= dict(zip(task.hours_test.tolist(), task.y_test.tolist(), strict=True))
    split = task.at_random(seed=3)
    assert split.y.tolist() == [known[hour] for hour in split.hours.tolist()]
    assert split.y_test.tolist() == [known[hour] for hour in split.hours_test.tolist()]
    assert not np.array_equal(split.y, task.at_random(seed=4).y)


@real
def test_one_small_cell():
    options = Options(quick=True, data=Path(PUBLISHED))
    cells = {(c["task"], c["model"]): c for c in UCI().cells(options)}
    cell = cells["nox", "robust"] | {"every": 40, "rounds": 3, "M": 3}
    rows = {row["method"]: row for row in UCI().run(cell, options)}
    assert {"poe", "gpoe", "bcm", "rbcm", "grbcm", "opt", "opt-local"} <= rows.keys()
    assert all(
        np.isfinite([row["rmse"], row["nlpd"], row["training_s"]]).all() for row in rows.values()
    )
    timed = {
        row["method"]: row["seconds"] for row in UCI().run(cell | {"model": "timing"}, options)
    }
    assert {"poe", "opt", "opt-local"} <= timed.keys() and min(timed.values()) > 0
    shared = UCI().run(cell | {"model": "fedavg"}, options)
    assert {"pooled", "two-level", "opt-printed", "npae"} <= {row["method"] for row in shared}


def test_the_papers_table():
    table = published()
    assert len(table) == 4 * 3 * 7 * 3
    assert table["co", 20, "opt", "rmse"] == (1.519, 0.005)
    assert table["traffic", 60, "grbcm", "nlpd"] == (7.829, 0.143)
