"""A window that moves over a half-hourly series: what it knows, and what it has forgotten."""

import numpy as np
import pandas as pd
import pytest
from tables import half_hourly

from distgp import DistributedGPRegressor
from distgp.forecasting import MovingWindow

GIVEN = {"expert": "exact", "n_experts": 1, "n_iter": 5, "dates": "expand"}
KERNEL = "periodic(24 h, columns=when) + matern32(6 h, columns=when.days) + linear(columns=holiday)"
NAMED = {"time": "when", "target": "load"}


@pytest.fixture
def window():
    gp = DistributedGPRegressor(kernel=KERNEL, validation="last", **GIVEN)
    return MovingWindow(gp, length="3 days", **NAMED).fit(half_hourly(10)[:240])


def test_it_knows_the_rows_of_the_last_stretch_alone(window):
    table = half_hourly(10)
    assert window.rows.column("when").to_pylist() == list(table["when"][96:240])
    theta = window.gp.kernel_.parameters()
    window.update(table[240:300].sample(frac=1.0, random_state=0))
    assert window.rows.column("when").to_pylist() == list(table["when"][156:300])
    assert window.gp.training is not None
    for name, value in window.gp.kernel_.parameters().items():
        if not name.endswith("period"):  # which is in standard deviations of the rows
            assert value.equal(theta[name])
    changed = table[:300].assign(load=lambda t: t["load"].where(t.index >= 156, 1e3))
    other = MovingWindow(window.gp, length="3 days", **NAMED)
    other.gp = DistributedGPRegressor(
        kernel=window.gp.kernel_, noise=window.gp.noise_, **{**GIVEN, "training": None}
    )
    other.fit(changed)
    new = table[300:320][["when", "holiday"]]
    for mine, theirs in zip(
        window.gp.predict(new, return_std=True), other.gp.predict(new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_hyperparameters_follow_when_it_is_fitted_again(window):
    before = window.gp.noise_
    window.update(half_hourly(10)[240:300])
    assert window.gp.noise_ == before
    assert window.fit().gp.noise_ != before and window.rows.num_rows == 144


def test_times_may_be_numbers_and_rows_incomplete():
    hours = np.arange(120.0)
    table = pd.DataFrame({"hour": hours, "load": np.sin(hours / 4)})
    table.loc[110, "load"] = np.nan
    gp = DistributedGPRegressor(expert="exact", n_experts=1, n_iter=3, missing="drop")
    window = MovingWindow(gp, time="hour", target="load", length=50).fit(table[:100])
    assert window.rows.num_rows == 50
    assert window.update(table[100:]).rows.column("hour").to_pylist() == [
        hour for hour in range(70, 120) if hour != 110
    ]


def test_a_row_that_comes_again_takes_the_place_of_the_old_one(window):
    table = half_hourly(10)
    again = table[230:250].assign(load=99.0, holiday=1.0)
    window.update(again).update(again)
    assert window.rows.column("when").to_pylist() == list(table["when"][106:250])
    assert window.rows.column("load").to_pylist()[-20:] == [99.0] * 20
    assert window.rows.column("holiday").to_pylist()[-20:] == [1.0] * 20


def test_where_times_are_shared_a_row_is_known_by_its_inputs():
    hours = np.repeat(np.arange(30.0), 2)
    table = pd.DataFrame({"hour": hours, "site": ["a", "b"] * 30, "load": np.sin(hours)})
    table["place"] = table["site"].astype("category").where(table["hour"] > 3)
    gp = DistributedGPRegressor(expert="exact", n_experts=1, n_iter=2, missing="impute")
    window = MovingWindow(gp, time="hour", target="load", length=10).fit(table)
    right = table[-3:-1].assign(load=[7.0, 8.0])
    assert window.update(right).rows.num_rows == 20
    last = window.rows.to_pandas().sort_values(["hour", "site"])[["hour", "site", "load"]][-3:]
    assert last.to_numpy().tolist()[:2] == [[28.0, "b", 7.0], [29.0, "a", 8.0]]
    more = pd.concat([table[-1:].assign(load=one) for one in (1.0, 2.0)])
    assert window.update(more).rows.num_rows == 21, "what is given twice at once is two rows"


def test_whole_numbers_may_be_followed_by_fractions():
    hours = np.arange(60)
    table = pd.DataFrame({"hour": hours, "load": np.sin(hours / 4)})
    gp = DistributedGPRegressor(expert="exact", n_experts=1, n_iter=2)
    window = MovingWindow(gp, time="hour", target="load", length=20).fit(table)
    window.update(table[-2:].assign(hour=[58.5, 59.5]))
    assert window.rows.column("hour").to_pylist()[-4:] == [58.0, 58.5, 59.0, 59.5]


def test_mistakes_are_told(window):
    with pytest.raises(ValueError, match=r"the new rows lack \['holiday'\]; they need \['when'"):
        window.update(half_hourly(10)[240:].drop(columns="holiday"))
    table, before = half_hourly(10)[240:], window.rows
    for wrong, said in (
        (table.to_numpy(), "expected a table of pandas, polars or pyarrow .* got ndarray"),
        (table.assign(load="much"), "the new rows have values of another kind .*'much'"),
        (
            table.assign(when=table["when"].dt.tz_localize("Europe/Berlin")),
            "give times with a time zone in both, or in neither",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            window.update(wrong)
    assert window.rows is before
    with pytest.raises(TypeError, match="got the class DistributedGPRegressor: call it first"):
        MovingWindow(DistributedGPRegressor, length=3, **NAMED)
    empty = MovingWindow(DistributedGPRegressor(), length=3, **NAMED)
    with pytest.raises(ValueError, match="call fit first"):
        empty.update(half_hourly(1))
    with pytest.raises(ValueError, match="fit expects a table the first time"):
        empty.fit()
    with pytest.raises(ValueError, match="length must be a number of steps from 1, or a duration"):
        MovingWindow(DistributedGPRegressor(), length=0, **NAMED).fit(half_hourly(1))
