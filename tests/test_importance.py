"""Permutation importance: scikit-learn's numbers, of the columns of the table."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.inspection import permutation_importance

from distgp import DistributedGPRegressor
from distgp.diagnostics import importance as room

FIXED = {"expert": "exact", "n_experts": 1, "training": None}


def data(n=120, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, 2 * X[:, 0] + np.sin(X[:, 1]) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize("most", [1, room.MOST_NUMBERS])
def test_numbers_are_those_of_scikit_learn(most, monkeypatch):
    monkeypatch.setattr(room, "MOST_NUMBERS", most)
    X, y = data()
    gp = DistributedGPRegressor(**FIXED).fit(X[:80], y[:80])
    found = gp.importance(X[80:], y[80:], n_repeats=3, random_state=7)
    wanted: Any = permutation_importance(gp, X[80:], y[80:], n_repeats=3, random_state=7)
    np.testing.assert_allclose(found.falls, wanted.importances, atol=1e-10)
    np.testing.assert_allclose(found.mean, wanted.importances_mean, atol=1e-10)
    np.testing.assert_allclose(found.std, wanted.importances_std, atol=1e-10)
    assert found.columns == ("x0", "x1", "x2", "x3")
    first, second = str(found).splitlines()[:2]
    assert first == "column  fall of R²" and second.startswith("x0      ")


def test_columns_are_those_of_the_table():
    X, y = data()
    rng = np.random.default_rng(1)
    table = pd.DataFrame(X[:, :2], columns=["size", "age"]).assign(
        site=rng.choice(["hill", "lake", "town"], 120), idle=rng.choice(["a", "b"], 120)
    )
    y = y + 3.0 * (table["site"] == "lake")
    gp = DistributedGPRegressor(missing="drop", **FIXED).fit(table[:80], y[:80])
    assert list(gp.feature_names_in_) == ["size", "age", "site", "idle"]
    assert gp.n_features_in_ == 4 and gp.feature_relevance_.shape == (4,)
    assert gp.feature_relevance_.sum() == pytest.approx(1)
    found = gp.importance(table[80:], y[80:])
    assert found.columns == ("size", "age", "site", "idle")
    assert found.mean[[0, 2]].min() > 0.2 and abs(found.mean[3]) < 0.1
    torn = table[80:].copy()
    torn.loc[torn.index[0], "size"] = np.nan
    whole = gp.importance(torn[1:], y[81:])
    np.testing.assert_allclose(gp.importance(torn, y[80:]).falls, whole.falls)


def test_mistakes_are_named():
    X, y = data()
    gp = DistributedGPRegressor(**FIXED).fit(X, y)
    with pytest.raises(ValueError, match="n_repeats must be a positive integer, got 0"):
        gp.importance(X, y, n_repeats=0)
    with pytest.raises(ValueError, match=r"y must have the shape of the predictions, \(120,\)"):
        gp.importance(X, y[1:])
    for swapped in (y, pd.Series(y)):
        with pytest.raises(ValueError, match=r"X must have rows and .* give X first and y second"):
            gp.importance(swapped, X)


def additive(n=120, mean="constant", **options):
    """A model of two columns that act by themselves; the second explains four times the variance."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n)})
    y = np.sin(table["a"]) + 2 * np.sin(table["b"]) + 0.05 * rng.normal(size=n)
    kernel = "matern52(columns=a) + matern52(columns=b)"
    quick = {"expert": "exact", "n_experts": 1, "n_iter": 20} | options
    gp = DistributedGPRegressor(kernel=kernel, mean=mean, **quick)
    return gp.fit(table[:80], y[:80]), table[80:], y[80:]


def test_shares_of_additive_parts_are_those_of_the_variance():
    gp, table, y = additive()
    found = gp.importance(table, y)
    parts = {name: mean for name, (mean, _) in gp.decompose(table).items() if name != "level"}
    total = gp.predict(table)
    wanted = {
        name: np.cov(mean, total)[0, 1] / np.var(total, ddof=1) for name, mean in parts.items()
    }
    assert found.shares == pytest.approx(wanted)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    truth = np.column_stack([np.sin(table["a"]), 2 * np.sin(table["b"])])
    share = np.cov(truth[:, 1], truth.sum(1))[0, 1] / np.var(truth.sum(1), ddof=1)
    assert found.shares["Matern52(b)"] == pytest.approx(share, abs=0.03)
    assert "\n\npart         share of the predictions' variance\nMatern52(a)  0." in str(found)


def test_a_trend_is_a_part_and_targets_are_averaged():
    gp, table, y = additive(mean="linear")
    assert list(gp.importance(table, y).shares) == ["level", "Matern52(a)", "Matern52(b)"]
    parts = {"a": np.array([[1.0, 0.0], [3.0, 1.0]]), "b": np.array([[0.0, 0.0], [2.0, 3.0]])}
    assert room.shares_of(parts) == pytest.approx({"a": 0.375, "b": 0.625})
    assert room.shares_of({"a": np.arange(3.0), "b": -np.arange(3.0)}) is None


def test_shares_that_are_not_known_are_none():
    X, y = data()
    assert DistributedGPRegressor(**FIXED).fit(X, y).importance(X, y).shares is None
    gp, table, y = additive(expert="nearest", n_neighbors=20)
    found = gp.importance(table, y)
    assert found.shares is None and "part" not in str(found)
