"""Rows of files and rows of this process are fitted alike, with all that is given for each row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from distgp import DistributedGPRegressor, selection
from distgp.data import moments, parquet
from distgp.data.rows import Rows, Schema
from distgp.data.table import TableError
from distgp.engines import LocalEngine
from distgp.file_rows import Sample
from distgp.selection import RepeatsWarning

KINDS = {
    "exact": {"expert": "exact", "n_experts": 3},
    "sparse": {"expert": "sparse", "n_experts": 2, "n_inducing": 15},
    "nearest": {"expert": "nearest", "n_inducing": 10, "n_neighbors": 20},
}


class Several(LocalEngine):
    """As many workers as wanted, all of them in this process."""

    def __init__(self, workers=3):
        super().__init__()
        self.count = workers

    @property
    def workers(self):
        return self.count


ALL = pytest.mark.parametrize("kind", KINDS)
INPUTS = ["a", "b", "site"]


# The target is positive, and most tests look at its intervals without a transform.
pytestmark = pytest.mark.filterwarnings(
    "ignore::distgp.diagnostics.calibration.NegativeBoundWarning"
)


@pytest.fixture(scope="module")
def table():
    """Rows with a text, a weight, a noise variance, a time and a group, in no order of time."""
    rng = np.random.default_rng(0)
    n = 240
    rows = {"a": rng.uniform(-2, 2, n), "b": rng.normal(5.0, 3.0, n)}
    rows["site"] = rng.choice(["hill", "lake", "shore"], n)
    level = np.sin(2 * rows["a"]) + 0.5 * rows["b"] + (rows["site"] == "lake")
    rows["y"] = np.exp(0.3 * level + 0.1 * rng.normal(size=n))
    rows["w"] = rng.choice([0.5, 1.0, 2.0], n)
    rows["v"] = rng.uniform(0.01, 0.1, n)
    rows["when"] = rng.permutation(n).astype(float)
    rows["who"] = [f"g{i % 12}" for i in range(n)]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def path(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for part in range(3):
        table[part * 80 : part * 80 + 80].to_parquet(folder / f"{part}.parquet", row_group_size=33)
    return str(folder)


def both(table, path, options, named=(), **given):
    """The same fit of the rows in this process, and of those in files."""
    here = DistributedGPRegressor(n_iter=5, **options)
    here.fit(table[INPUTS], table["y"], **{kind: table[name] for kind, name in given.items()})
    there = DistributedGPRegressor(n_iter=5, **options)
    there.fit_parquet(path, "y", features=INPUTS, **given)
    return here, there


def alike(here, there, table):
    groups = table["who"] if here.calibrate == "mondrian" else None
    found, wanted = (
        [
            *gp.predict(table[INPUTS], return_std=True),
            *gp.predict_interval(table[INPUTS], 0.5, groups=groups),
        ]
        for gp in (there, here)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@ALL
def test_weights_and_noise_of_rows_are_read_with_them(table, path, kind):
    alike(*both(table, path, KINDS[kind], sample_weight="w"), table)
    alike(*both(table, path, KINDS[kind], sample_weight="w", noise_variance="v"), table)


def test_columns_of_weights_are_no_inputs(table, path):
    gp = DistributedGPRegressor(**KINDS["exact"], n_iter=2)
    gp.fit_parquet(path, "y", drop=["when", "who"], sample_weight="w", noise_variance="v")
    assert [column.name for column in gp.table_.inputs] == INPUTS
    gp.fit_parquet(path, "y", features=["a", "w"], sample_weight="w")
    assert [column.name for column in gp.table_.inputs] == ["a", "w"]


def test_rows_of_no_weight_are_left_out(table, tmp_path):
    some = table.assign(w=np.arange(len(table)) % 3.0, y=np.where(table.index % 3, table.y, 1e9))
    some.to_parquet(tmp_path / "t.parquet")
    gp = DistributedGPRegressor(**KINDS["exact"], n_iter=5)
    gp.fit_parquet(tmp_path / "t.parquet", "y", features=INPUTS, sample_weight="w")
    assert gp.experts_.row_count() == 160 and gp.predict(table[INPUTS]).max() < 1e3


def test_weights_count_in_the_choice_on_a_sample(table, path):
    here, there = both(table, path, {"kernel": "auto", "expert": "exact"}, sample_weight="w")
    assert [t.nlpd for t in here.choice_.trials] == pytest.approx(
        [t.nlpd for t in there.choice_.trials], rel=1e-6
    )
    alike(here, there, table)


@pytest.mark.parametrize("transform", ["log", "yeo-johnson"])
@ALL
def test_targets_are_transformed_where_they_are(table, path, kind, transform):
    options = KINDS[kind] | {"target_transform": transform}
    here, there = both(table, path, options, sample_weight="w")
    alike(here, there, table)
    assert here.model_.targets[0].transform == there.model_.targets[0].transform


def test_a_transform_is_learnt_from_a_sample_and_used_on_all_rows(table, path, monkeypatch):
    monkeypatch.setattr(selection, "TRIAL_SAMPLE", 100)
    options = KINDS["exact"] | {"target_transform": "yeo-johnson"}
    here, there = both(table, path, options)
    scales = [gp.model_.targets[0].transform.scale for gp in (here, there)]
    assert scales[0] != scales[1] and scales[0] == pytest.approx(scales[1], rel=0.3)
    assert there.experts_.row_count() == 240
    np.testing.assert_allclose(there.predict(table[INPUTS]), table["y"], rtol=0.4)


def test_targets_that_cannot_be_transformed_are_refused(table, path, tmp_path):
    gp = DistributedGPRegressor(**KINDS["exact"], target_transform="log")
    table.assign(y=table.y - 2).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="target_transform='log' needs positive targets, got"):
        gp.fit_parquet(tmp_path / "t.parquet", "y", features=INPUTS)
    with pytest.raises(ValueError, match="noise_variance is in the target's units"):
        gp.fit_parquet(path, "y", features=INPUTS, noise_variance="v")


@pytest.mark.parametrize("weight", [{}, {"sample_weight": "w"}])
@ALL
def test_a_linear_mean_is_that_of_all_rows(table, path, kind, weight, monkeypatch):
    monkeypatch.setattr(moments, "MOMENT_ROWS", 50)
    here, there = both(table, path, KINDS[kind] | {"mean": "linear"}, **weight)
    for name in ("x_mean", "x_scale", "y_mean", "y_scale", "slope"):
        found, wanted = (getattr(gp.model_.targets[0].scaling, name) for gp in (there, here))
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    alike(here, there, table)


@pytest.mark.parametrize(
    ("validation", "given"),
    [("last", {}), ("last", {"time": "when"}), ("groups", {"groups": "who"})],
)
def test_the_choice_holds_out_by_a_column(table, path, validation, given):
    options = {"kernel": "auto", "expert": "exact", "validation": validation}
    here, there = both(table, path, options, **given)
    assert here.choice_.best.name == there.choice_.best.name
    assert [t.nlpd for t in here.choice_.trials] == pytest.approx(
        [t.nlpd for t in there.choice_.trials], rel=1e-6
    )
    alike(here, there, table)


def test_values_of_sampled_rows_are_those_of_their_rows(table, path, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH_ROWS", 7)
    for workers in (1, 4):
        stretches, _ = parquet.place(Several(workers), parquet.ParquetRows.open(path), 4, "y")
        for rows in ([0, 3, 81, 200, 239], range(240), [100]):
            for name in ("who", "when"):
                found = parquet.values_of(stretches, name, np.array(rows))
                np.testing.assert_array_equal(found, table[name].iloc[list(rows)])


def test_what_is_given_for_rows_without_use_is_refused(path):
    gp = DistributedGPRegressor(**KINDS["exact"])
    for given in ("time", "groups"):
        with pytest.raises(ValueError, match=f"{given}= says which rows are held out"):
            gp.fit_parquet(path, "y", features=["a"], **{given: "who"})


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"calibrate": "conformal"}, {"sample_weight": "w"}),
        ({"calibrate": "conformal"}, {"noise_variance": "v"}),
        ({"calibrate": "conformal", "validation": "last"}, {}),
        ({"calibrate": "mondrian"}, {"groups": "who"}),
        ({"calibrate": "conformal", "target_transform": "log", "mean": "linear"}, {}),
    ],
)
@ALL
def test_intervals_are_calibrated_on_rows_that_are_held_out(table, path, kind, options, given):
    here, there = both(table, path, KINDS[kind] | options, **given)
    alike(here, there, table)
    assert there.experts_.row_count() == here.experts_.row_count() or "w" in given.values()
    found, wanted = (gp.model_.targets[0].calibration for gp in (there, here))
    assert len(found.scores) == 48 and found.groups == wanted.groups
    for a, b in zip(
        (found.scores, *found.by_group), (wanted.scores, *wanted.by_group), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("validation", ["random", "last"])
def test_how_many_workers_there_are_changes_nothing(table, path, validation):
    """Sums of sparse experts do not depend on how rows are divided, and neither does all that is here."""
    options = {
        "expert": "sparse",
        "n_inducing": table[["a", "b"]].to_numpy()[:20],
        "training": None,
    }
    options |= {"kernel": "rbf", "mean": "linear", "target_transform": "yeo-johnson"}
    options |= {"calibrate": "conformal", "validation": validation}
    found = []
    for engine in (Several(1), Several(4)):
        gp = DistributedGPRegressor(engine=engine, **options)
        gp.fit_parquet(path, "y", features=["a", "b"], sample_weight="w")
        found.append(gp.predict_with_interval(table[["a", "b"]]))
    np.testing.assert_allclose(*found, rtol=1e-8)


def fitted(gp, table):
    """Tell which rows have their target among those that experts were conditioned on."""
    y = np.concatenate([item.rows_held().y.flatten() for item in gp.experts_.gathered().here])
    scaling = gp.model_.targets[0].scaling
    return np.isin(np.round(table["y"], 9), np.round(y * scaling.y_scale + scaling.y_mean, 9))


@pytest.mark.parametrize("validation", ["random", "last"])
@pytest.mark.parametrize("workers", [1, 5])
def test_rows_that_are_held_out_of_many_are_not_fitted(
    table, path, monkeypatch, validation, workers
):
    """The sample has 100 of 240 rows, of which a fifth is held out."""
    monkeypatch.setattr(selection, "TRIAL_SAMPLE", 100)
    gp = DistributedGPRegressor(
        **KINDS["nearest"] | {"n_inducing": 0, "n_neighbors": 500, "training": None},
        kernel="rbf",
        calibrate="conformal",
        validation=validation,
        engine=Several(workers),
    )
    gp.fit_parquet(path, "y", features=["a", "b"])
    assert gp.experts_.row_count() == 220 and len(gp.model_.targets[0].calibration.scores) == 20
    held = ~fitted(gp, table)
    assert held.sum() == 20 and (validation == "random" or held[220:].all())
    out = table[held]
    mean, std = gp.predict(out[["a", "b"]], return_std=True)
    scores = np.sort(np.abs(out["y"] - mean) / std)
    np.testing.assert_allclose(gp.model_.targets[0].calibration.scores, scores, rtol=1e-9)


@pytest.mark.parametrize("workers", [1, 5])
def test_copies_of_rows_that_are_held_out_are_not_fitted(table, tmp_path, monkeypatch, workers):
    """The sample has 100 of 720 rows, which are 240 three times in any order."""
    monkeypatch.setattr(selection, "TRIAL_SAMPLE", 100)
    three = table.iloc[np.random.default_rng(0).permutation(720) % 240]
    three.to_parquet(tmp_path / "t.parquet")
    gp = DistributedGPRegressor(
        **KINDS["sparse"], training=None, calibrate="conformal", engine=Several(workers)
    )
    with pytest.warns(RepeatsWarning, match="about 66.7 % of the 720 rows have the same inputs"):
        gp.fit_parquet(tmp_path / "t.parquet", "y", features=INPUTS)
    held, scores = ~fitted(gp, table), gp.model_.targets[0].calibration.scores
    assert 0 < held.sum() <= len(scores) <= 20
    assert gp.experts_.row_count() == 720 - 3 * held.sum()
    mean, std = gp.predict(table[INPUTS], return_std=True)
    found = np.abs(table["y"] - mean) / std
    np.testing.assert_allclose(np.unique(scores.round(9)), np.sort(found[held]), atol=1e-8)


def test_copies_that_are_not_held_out_in_the_sample_stay_in_the_files():
    """Where all inputs are the same, none can be left out by them."""
    X, held = np.array([[1.0], [1.0], [2.0], [3.0], [3.0]]), np.array([1, 0, 1, 1, 1], dtype=bool)
    given = {"rows": Rows(X, X[:, 0], Schema(1)), "numbers": np.array([3, 5, 8, 9, 11])}
    left = Sample(**given, copies=np.array([9, 9, 4, 2, 2])).left_out(held)
    assert left.numbers.tolist() == [3, 8, 9, 11]
    assert len(left.inputs) == 1 and left.copies == 3 and left.total == 7


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"validation": "groups"}, {"groups": "who"}, "give calibrate='mondrian', or call fit"),
        ({"validation": "last"}, {"time": "when"}, "leave time= out, or call fit"),
        ({"calibrate": "mondrian"}, {}, "needs the group of each row"),
    ],
)
def test_what_cannot_be_held_out_of_files_is_refused(path, options, given, message):
    gp = DistributedGPRegressor(**KINDS["exact"] | {"calibrate": "conformal"} | options)
    with pytest.raises(ValueError, match=message):
        gp.fit_parquet(path, "y", features=["a"], **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"sample_weight": "lost"},
            "sample_weight must name a column of the files, which have 'a'",
        ),
        ({"noise_variance": np.ones(3)}, "noise_variance must name a column .* got array"),
        ({"sample_weight": "b"}, "sample_weight must be at least 0, got -.* in the column 'b'"),
        ({"noise_variance": "b"}, "noise_variance must be positive, got -.* in the column 'b'"),
        ({"sample_weight": "site"}, "column 'site' is text, expected numbers"),
    ],
)
def test_mistakes_are_told(path, given, message):
    gp = DistributedGPRegressor(**KINDS["exact"], n_iter=2)
    with pytest.raises(TableError, match=message):
        gp.fit_parquet(path, "y", features=["a"], **given)
