"""Columns of tables turned into numbers, in fitting and after it."""

import numpy as np
import pyarrow as pa
import pytest
from tables import TABLE

from distgp.data.encoding import NewTextWarning, complete_rows, learn
from distgp.data.table import TableError


def test_columns_become_numbers():
    columns = learn(TABLE, "y", dates="expand")
    assert columns.features == [
        "x", "flag", "site=a", "site=b",
        "when.days", "when.year_sin", "when.year_cos", "when.week_sin", "when.week_cos",
        "when.day_sin", "when.day_cos",
        "day.days", "day.year_sin", "day.year_cos", "day.week_sin", "day.week_cos",
    ]  # fmt: skip
    X = columns.matrix(TABLE)
    first = dict(zip(columns.features, X[0], strict=True))
    assert first["flag"] == 1 and first["site=a"] == 0 and first["site=b"] == 1
    assert first["when.days"] == 18267.5 and first["day.days"] == 18267.0  # a Monday
    assert first["when.week_cos"] == pytest.approx(np.cos(2 * np.pi * 0.5 / 7))
    assert first["day.week_sin"] == pytest.approx(0, abs=1e-12)
    assert first["when.day_cos"] == pytest.approx(-1)
    assert np.isnan(X[2, columns.features.index("when.days")])
    assert np.isnan(X[3, columns.features.index("site=a")])
    np.testing.assert_array_equal(columns.targets(TABLE), [1, 2, np.nan, 4])


def test_categories_are_those_of_fitting():
    columns = learn(TABLE, "y", features=["site"])
    new = pa.table({"site": pa.array(["a", "zebra", "a"]).dictionary_encode()})
    with pytest.raises(
        TableError, match="1 values that were not there in fitting, such as 'zebra'"
    ):
        columns.matrix(new)
    t = (1 + np.sqrt(3)) / 2  # as far from (1, 0) and (0, 1) as they are from each other
    with pytest.warns(NewTextWarning, match="1 values that were not there in fitting"):
        found = columns.matrix(new, "new")
    np.testing.assert_array_equal(found, [[1, 0], [t, t], [1, 0]])
    np.testing.assert_allclose(np.linalg.norm(found[1] - np.eye(2), axis=1), np.sqrt(2))
    by_number = learn(TABLE, "y", features=["x"], categorical=["x"])
    assert by_number.features == ["x=1", "x=2", "x=3", "x=4"]


def test_incomplete_rows_are_refused_or_left_out():
    values = np.array([[1.0, 2.0], [np.nan, 2.0], [3.0, np.nan]])
    np.testing.assert_array_equal(complete_rows(values, ["a", "b"], "drop"), [True, False, False])
    message = "2 of 3 rows have missing values .1 in 'a', 1 in 'b'.*missing='drop'"
    with pytest.raises(TableError, match=message):
        complete_rows(values, ["a", "b"], "refuse")
    values[0, 1] = np.inf
    with pytest.raises(TableError, match="column 'b' holds infinite values"):
        complete_rows(values, ["a", "b"], "drop")


def test_a_mistyped_choice_is_refused_with_the_choices():
    with pytest.raises(
        ValueError, match="missing must be 'refuse' or 'drop' or 'impute', got 'dorp'"
    ):
        complete_rows(np.zeros((1, 1)), ["x"], "dorp")
    with pytest.raises(ValueError, match="dates must be 'refuse' or 'expand', got True"):
        learn(TABLE, "y", features=["x"], dates=True)
    with pytest.raises(ValueError, match="unknown must be 'refuse' or 'new', got 'none'"):
        learn(TABLE, "y", features=["x"]).matrix(TABLE, "none")


BAD_COLUMNS = [
    (TABLE, {"target": "z"}, "no column 'z'; the table has 'y', 'x'"),
    (TABLE, {"categorical": ["Sites"]}, "no column 'Sites'; did you mean 'site'. the table has"),
    (TABLE, {}, "column 'when' holds dates .*leave it out, or make .*dates='expand'$"),
    (TABLE, {"target": "site"}, "the target 'site' is text, expected numbers"),
    (TABLE, {"features": ["y"]}, "no input columns are left"),
    (TABLE.slice(0, 0), {}, "columns but no rows"),
    (pa.table({"y": [1.0], "n": pa.nulls(1)}), {}, "column 'n' is empty"),
    (pa.table({"y": [1.0], "l": [[1, 2]]}), {}, "column 'l' is list.*leave it out$"),
    (pa.table({"y": range(101), "id": list(map(str, range(101)))}), {}, "101 different values"),
]


@pytest.mark.parametrize(("table", "options", "message"), BAD_COLUMNS, ids=range(len(BAD_COLUMNS)))
def test_columns_that_cannot_be_used(table, options, message):
    with pytest.raises(TableError, match=message):
        learn(table, **{"target": "y"} | options)


NUMBERS = [f"{value:.2f}" for value in np.linspace(-3, 3, 40)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["?", *NUMBERS],
            "40 of its 41 different values are numbers, but not '.': leave such cells",
        ),
        (["n/a", *map(str, range(10))], "10 of its 11 different values are numbers, but not 'n/a'"),
        ([f"{day:02}.12.2024" for day in range(1, 32)], "31 different values are dates: convert"),
        ([f"name {i}" for i in range(40)], "40 different values in 40 rows"),
        (
            [value.replace(".", ",") for value in NUMBERS],
            "its numbers have commas, such as '-0,08'",
        ),
    ],
)
def test_numbers_dates_and_names_do_not_become_categories(texts, message):
    table = pa.table({"x": texts})
    with pytest.raises(TableError, match=message) as told:
        learn(table, None)
    assert "categorical=['x']" in str(told.value) and "--" not in str(told.value)
    assert len(learn(table, None, categorical=["x"]).features) == len(texts)
    declared = pa.table({"x": pa.array(texts).dictionary_encode()})
    assert len(learn(declared, None).features) == len(texts)


def test_labels_that_are_numbers_stay_labels():
    for texts in (["1", "2", "3", "other"] * 9, [*map(str, range(12))] * 3, ["a", "b"] * 20):
        assert len(learn(pa.table({"x": texts}), None).features) == len(set(texts))


@pytest.mark.parametrize("count", [30, 300])
def test_numbers_with_decimal_commas_are_told(count):
    texts = [f"{i},5" for i in range(count)]
    table = pa.table({"a": texts, "y": np.arange(float(count))})
    with pytest.raises(TableError, match=r"its numbers have commas, such as '0,5': .*decimal=','"):
        learn(table, "y")
    with pytest.raises(TableError, match=r"'y' is text, expected numbers with points, got '0,5'"):
        learn(pa.table({"a": np.arange(float(count)), "y": texts}), "y")
    few = pa.table({"a": ["1,5", "2,5"] * 15, "y": np.arange(30.0)})
    assert learn(few, "y").inputs[0].categories == ("1,5", "2,5")
