"""Tables of pandas, polars and pyarrow through the estimator: text, dates, booleans, missing values."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import distgp
from distgp import DistributedGPRegressor
from distgp.data import rows as frames
from distgp.data.encoding import NewTextWarning
from distgp.data.rows import is_plain, is_table, to_arrow
from distgp.data.table import TableError
from distgp.plotting import plot_slices

FIXED = {"expert": "sparse", "n_inducing": 60, "n_iter": 20}


def rows(n=300, seed=0):
    rng = np.random.default_rng(seed)
    site = rng.choice(["hill", "lake", "town"], n)
    when = np.datetime64("2024-01-01") + rng.integers(0, 700, n).astype("timedelta64[D]")
    table = pd.DataFrame(
        {
            "east": rng.uniform(-2, 2, n),
            "site": site,
            "wet": rng.random(n) < 0.5,
            "when": when.astype("datetime64[us]"),
            "kind": pd.Categorical(rng.choice(["a", "b"], n)),
        }
    )
    y = np.sin(2 * table["east"]) + np.where(site == "lake", 2.0, 0.0) + 0.3 * table["wet"]
    return table, (y + 0.1 * rng.normal(size=n)).to_numpy()


KINDS = {
    "pandas": lambda table: table,
    "polars": lambda table: pl.from_pandas(table),
    "lazy polars": lambda table: pl.from_pandas(table).lazy(),
    "pyarrow": lambda table: pa.Table.from_pandas(table, preserve_index=False),
}


@pytest.fixture(scope="module")
def fitted():
    table, y = rows()
    return DistributedGPRegressor(dates="expand", **FIXED).fit(table, y)


@pytest.mark.parametrize("kind", KINDS)
def test_every_library_gives_the_same_model(fitted, kind):
    table, y = rows()
    gp = DistributedGPRegressor(dates="expand", **FIXED).fit(KINDS[kind](table), y)
    new = rows(50, seed=1)[0]
    np.testing.assert_array_equal(gp.predict(KINDS[kind](new)), fitted.predict(new))


def test_the_model_predicts_well_and_its_file_knows_the_columns(fitted, tmp_path):
    new, y = rows(200, seed=1)
    mean = fitted.predict(new)
    assert np.sqrt(np.mean((mean - y) ** 2)) < 0.4 < 0.4 * np.std(y)
    fitted.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict(pl.from_pandas(new)), mean)
    shuffled = new[["when", "kind", "wet", "site", "east"]].assign(more=1)
    np.testing.assert_array_equal(again.predict(shuffled), mean)  # by name; others are ignored
    np.testing.assert_array_equal(again.predict_interval(new)[0] < mean, True)
    assert again.novelty(new).shape == (200,)


def test_a_model_fitted_by_the_command_line_takes_raw_tables(tmp_path):
    table, y = rows()
    table.drop(columns=["when"]).assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    from typer.testing import CliRunner

    from distgp.cli import app

    arguments = [
        "fit",
        str(tmp_path / "t.csv"),
        "--target",
        "y",
        "-o",
        str(tmp_path / "m.safetensors"),
    ]
    done = CliRunner().invoke(app, [*arguments, "--expert", "sparse", "--n-iter", "5", "-q"])
    assert done.exit_code == 0, done.output
    gp = distgp.load(tmp_path / "m.safetensors")
    assert np.isfinite(gp.predict(rows(20, seed=2)[0])).all()


def test_a_text_column_has_one_lengthscale():
    table, y = rows()
    gp = DistributedGPRegressor(dates="expand", **FIXED).fit(table, y)
    d = gp.model_.schema.n_features
    lengths = gp.kernel_.parameters()["kernel.lengthscale"]
    assert d == 1 + 3 + 1 + 7 + 2 and lengths.shape == (d - 2 - 1,)


def test_texts_are_equally_far_apart_whatever_their_share():
    texts = np.repeat(["common", "rare", "rarer"], [900, 90, 10])
    table = pd.DataFrame({"text": texts})
    y = np.repeat([0.0, 1.0, 2.0], [900, 90, 10]) + 0.1 * np.random.default_rng(0).normal(size=1000)
    gp = DistributedGPRegressor(**FIXED).fit(table, y)
    scale = gp.model_.targets[0].scaling.x_scale
    assert np.ptp(scale) == 0
    one_hot = np.eye(3)[np.unique(texts, return_inverse=True)[1]] / scale
    pairs = np.random.default_rng(0).integers(0, 1000, (200_000, 2))
    square = np.square(one_hot[pairs[:, 0]] - one_hot[pairs[:, 1]]).sum(1).mean()
    assert abs(square - 2.0) < 0.05  # as of two rows of a standardised column of numbers


def test_missing_values_are_refused_dropped_or_imputed():
    table, y = rows()
    table.loc[3, "east"], table.loc[5, "site"] = None, None
    with pytest.raises(
        ValueError, match=r"2 of 300 rows have missing values \(1 in 'east'.*missing='drop'"
    ):
        DistributedGPRegressor(dates="expand", **FIXED).fit(table, y)
    gp = DistributedGPRegressor(dates="expand", missing="drop", **FIXED).fit(
        table, y, np.arange(300) % 3 + 1.0
    )
    kept = [i for i in range(300) if i not in (3, 5)]
    clean = DistributedGPRegressor(dates="expand", **FIXED).fit(
        table.iloc[kept], y[kept], (np.arange(300) % 3 + 1.0)[kept]
    )
    mean, std = gp.predict(table, return_std=True)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(mean)), [3, 5])
    np.testing.assert_array_equal(np.isnan(mean), np.isnan(std))
    np.testing.assert_allclose(mean[kept], clean.predict(table.iloc[kept]), rtol=1e-12)
    filled = DistributedGPRegressor(dates="expand", missing="impute", **FIXED).fit(table, y)
    assert np.isfinite(filled.predict(table)).all()
    value = filled.model_.schema.table.matrix(to_arrow(table))[3, 0]
    np.testing.assert_allclose(value, table["east"].mean())
    shares = filled.model_.schema.table.matrix(to_arrow(table))[5, 1:4]
    np.testing.assert_allclose(shares, table["site"].value_counts(normalize=True).sort_index())


def test_unseen_texts_are_refused_or_new():
    table, y = rows()
    new = table.iloc[:5].assign(site="moon")
    gp = DistributedGPRegressor(dates="expand", **FIXED).fit(table, y)
    with pytest.warns(NewTextWarning, match=r"'site' holds 5 values that were not there .*'moon'"):
        std = gp.predict(new, return_std=True, latent=True)[1]
    gp.set_params(unknown="refuse")
    with pytest.raises(
        ValueError, match=r"'site' holds 5 values that were not there .*'moon'.*unknown='new'"
    ):
        gp.predict(new)
    assert (std > gp.predict(table.iloc[:5], return_std=True, latent=True)[1]).all()


def test_numbers_that_are_labels():
    table, y = rows()
    table = table[["east"]].assign(zone=np.arange(300) % 4)
    gp = DistributedGPRegressor(categorical=["zone"], **FIXED).fit(table, y)
    assert gp.model_.schema.names == ("east", "zone=0", "zone=1", "zone=2", "zone=3")


def test_frames_of_numbers_and_arrays_go_the_old_way():
    table, y = rows()
    plain = table[["east"]].assign(north=1.0 * np.arange(300))
    assert is_plain(plain) and not is_plain(table) and not is_table(plain.to_numpy())
    gp = DistributedGPRegressor(**FIXED).fit(plain, y)
    assert not hasattr(gp, "table_") and list(gp.feature_names_in_) == ["east", "north"]
    array = DistributedGPRegressor(**FIXED).fit(plain.to_numpy(), y)
    np.testing.assert_array_equal(gp.predict(plain), array.predict(plain.to_numpy()))
    np.testing.assert_array_equal(gp.predict(pl.from_pandas(plain)), gp.predict(plain))
    np.testing.assert_array_equal(gp.predict(pa.Table.from_pandas(plain)), gp.predict(plain))


def test_more_rows_may_come_as_tables():
    table, y = rows()
    gp = DistributedGPRegressor(dates="expand", **FIXED).fit(table.iloc[:200], y[:200])
    gp.partial_fit(pl.from_pandas(table.iloc[200:]), y[200:])
    assert gp.experts_.row_count() == 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t, "'when' holds dates .*dates='expand'"),
        (
            lambda t: t.assign(when=[{1, 2}] * 300),
            "mixes kinds of values|expected numbers, text or dates",
        ),
        (
            lambda t: t.assign(when=[f"row {i}" for i in range(300)]),
            "text with 300 different values",
        ),
        (lambda t: t.assign(when=np.inf), "'when' holds infinite values"),
    ],
)
def test_mistakes_are_told(change, message):
    table, y = rows()
    with pytest.raises(ValueError, match=message):
        DistributedGPRegressor(**FIXED).fit(change(table), y)


def test_an_array_for_a_model_of_a_table_is_told_the_columns_of_the_table():
    table = pd.DataFrame({"when": pd.date_range("2024", periods=30), "city": ["u", "v", "w"] * 10})
    gp = DistributedGPRegressor(training=None, dates="expand").fit(table, np.arange(30.0))
    for call in (gp.predict, gp.novelty, lambda X: plot_slices(gp, X)):
        with pytest.raises(
            ValueError, match=r"X has 2 features, .* with its columns 'when', 'city'"
        ):
            call(np.ones((5, 2)))


def test_targets_are_not_imputed_and_the_advice_says_so():
    table, y = pd.DataFrame({"a": np.arange(30.0)}), np.arange(30.0)
    y[3] = np.nan
    with pytest.raises(ValueError, match="since targets are never imputed") as told:
        DistributedGPRegressor(missing="impute", training=None).fit(table, y)
    assert 'missing="drop" does it' in str(told.value) and 'missing="impute"' not in str(told.value)
    assert (
        DistributedGPRegressor(missing="drop", training=None).fit(table, y).experts_.row_count()
        == 29
    )


def test_a_table_without_a_column_is_refused(fitted):
    with pytest.raises(ValueError, match=r"lacks the column\(s\) 'site'"):
        fitted.predict(rows(5)[0].drop(columns=["site"]))


def test_a_column_that_was_renamed_is_asked_for(fitted):
    said = r"lacks the column\(s\) 'site' .* did you mean 'Sites'\? it has .*: give all columns"
    with pytest.raises(ValueError, match=said):
        fitted.predict(rows(5)[0].rename(columns={"site": "Sites"}))


MISTAKES = {
    "a file's name": (lambda t, y: ("t.csv", y), r"got the text 't.csv': read a file first"),
    "a target's name": (lambda t, y: (t, "y"), r"got the text 'y': give the values, .*pop\('y'\)"),
    "a column": (lambda t, y: (t["s"], y), r"X must have rows and columns.* table\[\['name'\]\]"),
    "no columns": (lambda t, y: (t[[]], y), "the table has no columns: give one"),
    "twice": (lambda t, y: (t[["a", "a"]], y), "more than one column 'a': rename them"),
    "infinite": (lambda t, y: (t[["a"]] / 0, y), r"contains infinity .*: correct those values"),
    "one row": (lambda t, y: (t[:1], y[:1]), r"1 sample.*required by .*: give more rows"),
    "no rows": (lambda t, y: (t[:0], y[:0]), "no rows: give two"),
    "complex": (lambda t, y: (t, y + 1j), "Complex data not supported: give the real"),
    "complex column": (lambda t, y: (t.assign(a=1j), y), "none that tables know .*: make it all"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_with_tables_are_told_with_the_remedy(name):
    table = pd.DataFrame({"a": np.arange(1.0, 31.0), "s": ["u", "v"] * 15})
    X, y = MISTAKES[name][0](table, np.arange(30.0))
    with pytest.raises(ValueError, match=MISTAKES[name][1]):
        DistributedGPRegressor(training=None).fit(X, y)


def test_values_of_another_kind_are_told_with_the_remedy(fitted):
    with pytest.raises(ValueError, match=r"'east' is text, expected numbers .*pandas.to_numeric"):
        fitted.predict(rows(5)[0].assign(east="far"))
    with pytest.raises(TypeError, match=r"one row for each observation.* pandas.DataFrame makes"):
        fitted.predict({"east": 1.0})
    with pytest.raises(ValueError, match=r"table.iloc\[\[0\]\]"):
        fitted.predict(rows(5)[0].iloc[0])
    with pytest.raises(ValueError, match="names of columns of X, got 'site': give"):
        DistributedGPRegressor(categorical="site").fit(*rows(30))
    with pytest.raises(ValueError, match=r"between 0 and 1 such as 0.9, got 5$"):
        fitted.predict_quantiles(rows(5)[0], [5, 95])


def test_rows_that_are_not_predicted_are_nan_everywhere():
    table, y = rows(200)
    gp = DistributedGPRegressor(dates="expand", missing="drop", **FIXED).fit(table, y)
    table.loc[3, "east"] = None
    mean, covariance = gp.predict(table.head(6), return_cov=True)
    assert np.isnan(mean[3]) and np.isnan(covariance[3]).all() and np.isnan(covariance[:, 3]).all()
    assert np.isfinite(np.delete(np.delete(covariance, 3, 0), 3, 1)).all()
    assert np.isnan(gp.sample_y(table.head(6), 3)[3]).all() and np.isnan(
        gp.novelty(table.head(6))[3]
    )
    assert np.isfinite(gp.score(table, y)) and np.isfinite(gp.nlpd(table, y))


@pytest.mark.parametrize("missing", ["drop", "impute"])
def test_the_policy_holds_where_training_rows_were_complete(missing):
    table, y = rows(200)
    plain = table[["east"]].assign(north=1.0 * np.arange(200))
    gp = DistributedGPRegressor(missing=missing, **FIXED).fit(plain, y)
    plain.loc[3, "north"] = None
    assert np.isnan(gp.predict(plain)[3]) == (missing == "drop")
    assert np.isfinite(np.delete(gp.predict(plain), 3)).all()


def test_time_zones_are_kept_apart():
    table, y = rows(200)
    table = table[["when"]]
    zoned = table.assign(
        when=table["when"].dt.tz_localize(
            "America/New_York", ambiguous=True, nonexistent="shift_forward"
        )
    )
    gp = DistributedGPRegressor(dates="expand", **FIXED).fit(zoned, y)
    naive = DistributedGPRegressor(dates="expand", **FIXED).fit(table, y)
    np.testing.assert_allclose(gp.predict(zoned), naive.predict(table))  # as clocks show them
    utc = zoned.assign(when=zoned["when"].dt.tz_convert("UTC"))
    np.testing.assert_allclose(gp.predict(utc), gp.predict(zoned))
    with pytest.raises(ValueError, match=r"with a time zone \(America/New_York\) in fitting"):
        gp.predict(table)
    with pytest.raises(ValueError, match="without a time zone in fitting"):
        naive.predict(zoned)
    with pytest.raises(ValueError, match="held dates in fitting, and now holds int64"):
        naive.predict(table.assign(when=np.arange(200)))


@pytest.mark.parametrize(
    "kind", [lambda t: pl.from_pandas(t).lazy(), lambda t: pa.RecordBatch.from_pandas(t)]
)
def test_lazy_frames_and_batches_are_tables(kind, fitted):
    new = rows(20, seed=1)[0]
    np.testing.assert_array_equal(fitted.predict(kind(new)), fitted.predict(new))


def test_odd_tables_are_refused_in_one_line():
    table, y = rows(50)
    twice = pd.concat([table[["east"]], table[["east"]]], axis=1)
    for X, target, message in (
        (twice.assign(site="a"), y, "more than one column 'east'"),
        (table, None, "one target for each row"),
        (pd.DataFrame({"site": []}), [], "0 sample"),
    ):
        with pytest.raises(ValueError, match=message) as told:
            DistributedGPRegressor(dates="expand", **FIXED).fit(X, target)
        assert "\n" not in str(told.value)


def test_plots_take_raw_tables(fitted):
    from distgp import plotting

    table, y = rows(60)
    assert len(plotting.plot_slices(fitted, table, features=["east", "site"])) == 2
    plotting.plot_residuals(fitted, table, y)
    plotting.plot_training(fitted)


def test_labels_need_names():
    with pytest.raises(ValueError, match="categorical names columns of a table"):
        DistributedGPRegressor(categorical=["zone"], **FIXED).fit(
            np.zeros((50, 2)), np.arange(50.0)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_every_library_are_named_as_groups(kind):
    table, y = rows(300)
    gp = DistributedGPRegressor(dates="expand", calibrate="mondrian", **FIXED)
    given = KINDS[kind](table)
    lower, _ = gp.fit(given, y, groups="site").predict_interval(given, groups="site")
    np.testing.assert_array_equal(lower, gp.predict_interval(given, groups=table["site"])[0])
    with pytest.raises(
        ValueError, match=r"groups='sit' names a column, .* did you mean 'site'.* it has 'east'"
    ):
        gp.fit(given, y, groups="sit")


def test_a_column_with_a_number_for_a_name_is_named_as_groups():
    X = pd.DataFrame({0: np.linspace(-1, 1, 60), 1: np.arange(60) % 2})
    gp = DistributedGPRegressor(calibrate="mondrian", **FIXED).fit(X, np.sin(X[0]), groups="1")
    found, wanted = (gp.predict_interval(X, groups=groups) for groups in ("1", X[1]))
    np.testing.assert_array_equal(found, wanted)


def plain_rows(n=60):
    """A frame of numbers, which scikit-learn reads."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "b"])
    return X, np.sin(X["a"]) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize("kind", [float, object, "Float64"])
def test_rows_without_a_target_are_dropped_everywhere(kind):
    X, y = plain_rows()
    lacking = y.astype(kind)
    lacking[3] = None
    weight, kept = np.linspace(0.5, 1.5, 60), np.arange(60) != 3
    gp = DistributedGPRegressor(missing="drop", **FIXED)
    found = gp.fit(X, lacking, weight).predict(X)
    wanted = DistributedGPRegressor(**FIXED).fit(X[kept], y[kept], weight[kept])
    np.testing.assert_array_equal(found, wanted.predict(X))
    gp.partial_fit(X, lacking, weight)
    np.testing.assert_array_equal(
        gp.predict(X), wanted.partial_fit(X[kept], y[kept], weight[kept]).predict(X)
    )
    texts = X.assign(text="x")
    gp = DistributedGPRegressor(missing="drop", **FIXED).fit(texts, y).partial_fit(texts, lacking)
    assert gp.experts_.row_count() == 119
    with pytest.raises(ValueError, match="no row is left after dropping"):
        gp.partial_fit(texts, np.full(60, np.nan))


def test_no_complete_row_to_predict_is_nan():
    X, y = plain_rows()
    for texts in (False, True):
        X = X.assign(site="lake") if texts else X
        gp = DistributedGPRegressor(missing="drop", **FIXED).fit(X, y)
        new = X.iloc[:3].assign(a=np.nan)
        assert np.isnan(gp.predict(new, return_std=True)).all()
        assert np.isnan(gp.predict_interval(new)).all() and np.isnan(gp.novelty(new)).all()
        assert (
            np.isnan(gp.sample_y(new, 2)).all()
            and np.isnan(gp.predict(new, return_cov=True)[1]).all()
        )
        assert np.isnan(gp.score(new, y[:3])) and np.isnan(gp.nlpd(new, y[:3]))


def test_tables_without_rows_and_columns_of_another_length_are_told():
    X, y = plain_rows()
    for table in (X, X.assign(site="lake")):
        gp = DistributedGPRegressor(**FIXED).fit(table, y)
        for call in (gp.predict, gp.predict_interval, gp.novelty):
            for empty in (table.iloc[:0], pl.from_pandas(table.iloc[:0])):
                with pytest.raises(ValueError, match="columns but no rows"):
                    call(empty)
        for wrong in (y[:5], np.ones(0)):
            with pytest.raises(
                ValueError, match=r"X has 60 rows, but y has|inconsistent numbers|0 sample"
            ):
                gp.partial_fit(table, wrong)
            with pytest.raises(ValueError, match="y must have the shape of the predictions"):
                gp.score(table, wrong)
            with pytest.raises(ValueError, match="sample_weight must have one number for each"):
                gp.partial_fit(table, y, wrong)
            with pytest.raises(ValueError, match="sample_weight must have one number for each"):
                gp.score(table, y, wrong)


@pytest.mark.parametrize(
    "of", [np.asarray, list, pd.Series, pl.Series, lambda y: pd.DataFrame({"y": y})]
)
@pytest.mark.parametrize("kind", ["M8[ms]", "m8[ms]"])
def test_targets_that_are_dates_or_durations_are_refused(of, kind):
    X, y = plain_rows()
    dates = of(np.arange(60).astype(kind))
    for table in (X, X.to_numpy(), X.assign(site="lake")):
        gp = DistributedGPRegressor(**FIXED | {"n_iter": 1})
        with pytest.raises(ValueError, match=r"y holds dates or durations: make numbers"):
            gp.fit(table, dates)
        with pytest.raises(ValueError, match=r"dates or durations"):
            gp.fit(table, y).score(table, dates)
        with pytest.raises(ValueError, match=r"dates or durations"):
            gp.partial_fit(table, dates)


def test_labels_of_rows_that_are_dropped_are_dropped_too():
    table, y = rows(60)
    y = y.copy()
    label = np.arange(len(table)) % 3
    table.loc[4, "east"], y[7] = np.nan, np.nan
    whole = np.delete(np.arange(len(table)), [4, 7])
    for X in (table, table[["east"]]):
        options = {"expert": "exact", "training": None, "missing": "drop", "dates": "expand"}
        gp = DistributedGPRegressor(partition=label, **options).fit(X, y)
        by_hand = DistributedGPRegressor(partition=label[whole], **options)
        by_hand.fit(X.iloc[whole], y[whole])
        np.testing.assert_array_equal(gp.predict(X.iloc[:4]), by_hand.predict(X.iloc[:4]))
        with pytest.raises(ValueError, match="partition must have one value for each of the"):
            DistributedGPRegressor(partition=label[1:], **options).fit(X, y)


@pytest.mark.parametrize("cut", [pd.cut, pd.qcut])
def test_intervals_are_categories_by_their_texts(cut):
    table, y = rows(60)
    table["depth"] = cut(table["east"], 3)
    gp = DistributedGPRegressor(expert="exact", training=None, dates="expand").fit(table, y)
    (depth,) = (column for column in gp.table_.inputs if column.name == "depth")
    assert set(depth.categories) == {str(one) for one in table["depth"].cat.categories}
    written = table.assign(depth=table["depth"].astype(str))
    np.testing.assert_array_equal(gp.predict(written), gp.predict(table))


def test_categories_of_what_is_no_text_number_or_date_are_refused():
    table = rows(60)[0].assign(depth=pd.Categorical([(1, 2), (3, 4)] * 30))
    with pytest.raises(TableError, match=r"'depth' is dictionary.*expected numbers, text or dates"):
        DistributedGPRegressor(dates="expand").fit(table, rows(60)[1])


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_dates_of_all_centuries(unit, zone):
    """The days of the calendar, told by Python's own, also where nanoseconds have no room for them."""
    years = np.array([1, 1500, 1683, 1684, 1970, 2255, 2256, 9000])
    dates = [datetime.date(int(year), 1, 14) for year in years]
    stamps = pd.Series(dates).astype(f"datetime64[{unit}]").dt.tz_localize(zone)
    table = pd.DataFrame({"when": stamps, "east": np.arange(8.0)})
    gp = DistributedGPRegressor(expert="exact", training=None, dates="expand", noise=1e-6)
    gp.fit(table, years.astype(float))
    days = [(date - datetime.date(1970, 1, 1)).days for date in dates]
    found, _ = frames.encoded(table, gp.model_.schema.columns, "refuse", "refuse")
    np.testing.assert_array_equal(found[:, 0], days)
    assert np.isfinite(gp.predict(table)).all()


def test_dates_too_far_to_count_are_refused():
    stamps = np.array(["2000-01-01", "400000-01-01"] * 20, dtype="datetime64[s]")
    table = pd.DataFrame({"when": stamps, "east": np.arange(40.0)})
    with pytest.raises(TableError, match="'when' holds dates more than 290,000 years from 1970"):
        DistributedGPRegressor(dates="expand").fit(table, np.arange(40.0))


@pytest.mark.parametrize("text", ["31.12.2020", "yesterday"])
def test_texts_that_are_no_dates_are_named(text):
    stamps = pd.date_range("2020-01-01", periods=40)
    table = pd.DataFrame({"when": stamps, "east": np.arange(40.0)})
    gp = DistributedGPRegressor(expert="exact", training=None, dates="expand")
    gp.fit(table, np.arange(40.0))
    with pytest.raises(
        TableError, match=r"'when' held dates in fitting.*write dates as 2026-01-31"
    ):
        gp.predict(table.head(2).assign(when=text))
    assert np.isfinite(gp.predict(table.head(2).assign(when="2020-01-05"))).all()
