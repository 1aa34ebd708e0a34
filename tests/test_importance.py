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
