"""What "auto" measures: how rows are held out, which candidate is taken, and what the user is told."""

import threading
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import RidgeCV

import distgp
from distgp import DistributedGPRegressor, selection
from distgp.data.rows import Rows, Schema, learnt
from distgp.data.shard import sizes
from distgp.experts import ExactExpert
from distgp.pipeline import place, starting_point
from distgp.plan import FIRST_KERNEL, resolve
from distgp.selection import (
    ChoiceWarning,
    CoverWarning,
    NeighboursWarning,
    RepeatsWarning,
    _folds,
    alone,
    candidates,
    hold_out,
    trials,
)
from distgp.selection.candidates import (
    EXACT_ALONE,
    KERNELS_TRIED,
    QUICK,
    SLOWER,
    ways_to_fit,
)
from distgp.selection.residuals import Residuals, warn_of_cover, warn_of_neighbours
from distgp.selection.sentences import why
from distgp.selection.trials import Choice, Trial, divisions
from distgp.training import Fact, Learning, LogNormal, learning
from distgp.training.stage import LARGEST_SIGNAL


@pytest.fixture
def few_are_many(monkeypatch):
    """Other ways than one exact GP are measured from 300 rows on."""
    monkeypatch.setattr(selection, "EXACT_ALONE", 300)
    monkeypatch.setattr("distgp.selection.candidates.EXACT_ALONE", 300)


def smooth(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) + 0.2 * rng.normal(size=n)


def test_random_rows_are_held_out():
    train, test = hold_out(100, "random", seed=3)
    assert len(test) == 20 and sorted([*train, *test]) == list(range(100))
    again = hold_out(100, "random", seed=3)
    np.testing.assert_array_equal(test, again[1])
    assert set(test) != set(hold_out(100, "random", seed=4)[1])
    assert len(hold_out(100, "random", share=0.5)[1]) == 50


def test_the_last_rows_are_held_out_in_the_order_of_time():
    train, test = hold_out(9, "last")
    assert list(train) == [0, 1, 2, 3, 4, 5] and list(test) == [6, 7, 8]
    back = np.arange(9)[::-1]
    assert set(hold_out(9, "last", time=back)[1]) == {0, 1, 2}
    days = pd.DatetimeIndex(np.datetime64("2026-01-01") + back.astype("timedelta64[D]"))
    for times in (
        days,
        pd.Series(days),
        days.tz_localize("UTC"),
        pd.Series(days.tz_localize("UTC")),
    ):
        assert set(hold_out(9, "last", time=times)[1]) == {0, 1, 2}


def test_whole_groups_are_held_out():
    groups = np.repeat(list("abcdefghij"), 10)
    train, test = hold_out(100, "groups", groups=groups)
    assert not set(groups[train]) & set(groups[test])
    assert len(test) == 20
    uneven = np.repeat(["large", "small"], [85, 15])
    for seed in range(5):
        assert set(uneven[hold_out(100, "groups", groups=uneven, seed=seed)[1]]) == {"small"}


def test_equal_times_are_not_parted():
    times = np.repeat([3.0, 1.0, 2.0], [3, 5, 4])
    for share, wanted in ((0.1, {3.0}), (0.3, {3.0}), (0.5, {2.0, 3.0}), (0.9, {2.0, 3.0})):
        train, test = hold_out(12, "last", time=times, share=share)
        assert set(times[test]) == wanted and not set(times[train]) & wanted
    assert len(hold_out(12, "last", time=np.repeat([1, 2], [11, 1]))[1]) == 1
    with pytest.raises(ValueError, match="all 12 rows have the time 7"):
        hold_out(12, "last", time=np.full(12, 7))


@pytest.mark.parametrize("repeated", [0.1, 0.5, 1.0])
def test_rows_with_the_same_inputs_are_held_out_together(repeated):
    X = np.random.default_rng(0).normal(size=(60, 2)).round(1)
    X[0], again = [0.0, 1.0], np.random.default_rng(1).permutation(60)[: round(60 * repeated)]
    X = np.concatenate([X, X[again], [[-0.0, 1.0]]])
    for seed in range(5):
        train, test = hold_out(len(X), "random", inputs=X, seed=seed)
        assert sorted([*train, *test]) == list(range(len(X)))
        assert not {*map(tuple, X[train])} & {*map(tuple, X[test])}
        assert 0.15 * len(X) < len(test) <= 0.2 * len(X)
        assert set(test) != set(hold_out(len(X), "random", inputs=X, seed=seed + 5)[1])
    rows = Rows(X, X[:, 0], Schema(2))
    for train, test in [*divisions(rows, "random", 1000), *_folds(X, 3)]:
        assert not {*map(tuple, X[train])} & {*map(tuple, X[test])}
    assert sorted(np.concatenate([test for _, test in _folds(X, 3)])) == list(range(len(X)))


@pytest.mark.parametrize(("kind", "times"), [("random", 1), ("last", 2), ("groups", 2)])
def test_rows_beyond_those_learnt_from_are_predicted_twice(kind, times):
    """By models that saw other rows, or saw them in another order, since figures there depend on it."""
    rows = Rows(np.arange(120.0)[:, None], np.zeros(120), Schema(1), groups=np.arange(120) // 10)
    parts = divisions(rows, kind, 20, seed=3)
    assert [len(test) for _, test in parts] == [20 // times] * times
    assert len({tuple(train) for train, _ in parts}) == times


def test_rows_that_do_not_repeat_are_held_out_as_they_were():
    X = np.random.default_rng(0).normal(size=(50, 3))
    for inputs in (X, np.zeros((50, 3))):  # where all are the same, nothing can be kept together
        for a, b in zip(hold_out(50, "random", inputs=inputs), hold_out(50, "random"), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"calibrate": "conformal", "expert": "exact"},
        {"n_experts": "cv", "expert": "exact"},
    ],
    ids=str,
)
def test_many_repeats_are_told(options):
    X, y = smooth(240)
    gp = DistributedGPRegressor(n_iter=2, **options)
    twice, targets = np.concatenate([X, X[:8]]), np.concatenate([y, y[:8]])
    with pytest.warns(RepeatsWarning, match="3.23 % of the 248 rows have the same inputs"):
        gp.fit(twice, targets)
    gp.fit(X, y)
    gp.fit(np.concatenate([X, X[:2]]), np.concatenate([y, y[:2]]))  # not 1 %


@pytest.mark.parametrize("options", [{}, {"expert": "exact"}, {"expert": "nearest"}], ids=str)
def test_copies_are_told_where_nothing_is_held_out_too(options):
    """Equal inputs alone are no harm there: they may be observed several times."""
    X, y = smooth(60)
    twice, targets = np.concatenate([X, X]), np.concatenate([y, y])
    gp = DistributedGPRegressor(n_iter=2, **options)
    with pytest.warns(
        RepeatsWarning, match="50 % of the 120 rows repeat an earlier row, target incl"
    ):
        gp.fit(twice, targets)
    gp.fit(twice, np.concatenate([y, y + 0.01]))
    gp.set_params(training=None).fit(twice, targets)  # nothing is learnt from them


def test_equal_inputs_are_told_where_rows_are_held_out():
    X, y = smooth(100)
    with pytest.warns(RepeatsWarning, match="50 % of the 200 rows have the same inputs"):
        DistributedGPRegressor(n_iter=2).fit(np.concatenate([X, X]), np.concatenate([y, y + 0.01]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": "shuffle"}, "must be one of 'random', 'last', 'groups', got 'shuffle'"),
        ({"validation": "groups"}, "needs the groups"),
        ({"validation": "groups", "groups": ["a"] * 10}, "two groups at least"),
        ({"validation": "groups", "groups": ["a"] * 9}, "one value for each of the 10 rows"),
        ({"validation": "groups", "groups": ["a", None] * 5}, "all numbers or all text"),
        ({"validation": "last", "time": np.arange(9)}, "one value for each of the 10 rows"),
        ({"validation": "last", "time": ["noon"] * 10}, "numbers or dates without missing"),
        ({"validation": "last", "time": [np.nan] * 10}, "numbers or dates without missing"),
        ({"validation": "random", "share": 1.0}, "between 0 and 1"),
    ],
)
def test_mistakes_in_holding_out_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        hold_out(10, **options)


def test_the_best_candidate_is_taken_and_fitted_to_all_rows(few_are_many):
    X, y = smooth(330)
    gp = DistributedGPRegressor(n_iter=20, time_limit=1e-6).fit(X, y)
    table = gp.choice_
    tried = {candidate.name for candidate in ways_to_fit(330)}
    assert {trial.name for trial in table.trials} == tried | {"training mean", "ridge regression"}
    candidates = [trial for trial in table.trials if not trial.baseline]
    assert table.best.nlpd == min(trial.nlpd for trial in candidates)
    assert [trial.chosen for trial in table.trials].count(True) == 1
    assert len(tried) == 3 and table.rows + table.held_out == 330
    taken = next(c for c in ways_to_fit(330) if c.name == table.best.name)
    assert gp.settled_ == taken.settings
    assert gp.experts_.row_count() == 330
    assert "→ " + table.best.name in str(table) and "90 % cover" in str(table)


def test_few_rows_take_the_exact_gp_without_holding_out():
    X, y = smooth(199)
    gp = DistributedGPRegressor().fit(X, y)
    assert gp.choice_ is None and gp.n_experts_ == 1 and gp.experts_.expert.name == "exact"


@pytest.mark.parametrize(
    "given",
    [{"expert": "exact"}, {"n_experts": 2}, {"aggregation": "poe"}, {"training": None}],
    ids=str,
)
def test_what_is_given_skips_the_choice(given):
    X, y = smooth(210)
    gp = DistributedGPRegressor(n_iter=5, **given).fit(X, y)
    assert gp.choice_ is None and gp.settled_ == {}


def test_the_kernel_can_be_chosen_alone():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=240)
    gp = DistributedGPRegressor(expert="exact", n_experts=1, kernel="auto", n_iter=40).fit(X, y)
    assert "linear" in gp.settled_["kernel"]
    assert {t.name.split(", ")[1] for t in gp.choice_.trials if not t.baseline} == set(
        KERNELS_TRIED
    )


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "auto"},
        {"kernel": "auto", "expert": "sparse"},
        {"kernel": "auto", "training": "independent", "n_experts": 2},
        {"target_transform": "auto"},
    ],
    ids=str,
)
def test_few_rows_are_measured_in_folds_where_the_way_to_fit_is_given_too(options):
    X, y = smooth(220)
    options = {"expert": "exact", "n_iter": 10} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        choice = DistributedGPRegressor(**options).fit(X, np.exp(y)).choice_
        assert (choice.rows, choice.held_out) == (176, 220), "each row is predicted once"
        last = DistributedGPRegressor(**options, validation="last").fit(X, np.exp(y)).choice_
    assert last.held_out < 220 and all(not trial.error for trial in choice.trials)


def test_in_folds_what_is_given_learns_once_where_experts_share_hyperparameters(monkeypatch):
    fits, whole = [], candidates.fit

    def counted(plan, placed):
        fits.append(plan.algorithm is not None)
        return whole(plan, placed)

    monkeypatch.setattr(candidates, "fit", counted)
    X, y = smooth(220)
    options = {"expert": "exact", "kernel": "auto", "n_iter": 10}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        DistributedGPRegressor(**options).fit(X, y)
        assert sum(fits) == len(KERNELS_TRIED) and len(fits) == 6 * len(KERNELS_TRIED)
        fits.clear()
        DistributedGPRegressor(**options, training="independent", n_experts=2).fit(X, y)
    assert len(fits) >= 5 * len(KERNELS_TRIED) and all(fits)


def test_expert_and_kernel_can_be_chosen_together():
    X, y = smooth(240)
    groups = np.arange(240) % 8
    gp = DistributedGPRegressor(kernel="auto", validation="groups", n_iter=5).fit(
        X, y, groups=groups
    )
    names = [t.name for t in gp.choice_.trials if not t.baseline]
    assert len(names) == len(set(names)) == 2 + len(KERNELS_TRIED) - 1
    with pytest.raises(ValueError, match="but validation is 'random'"):
        DistributedGPRegressor().fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="no parameter 'length'"):
        DistributedGPRegressor(bounds={"length": (0.1, 1.0)}).fit(X, y)


def test_what_is_set_later_is_not_overruled_by_an_earlier_choice():
    X, y = smooth(240)
    gp = DistributedGPRegressor(n_iter=5, warm_start=True).fit(X, y)
    table = gp.choice_
    assert gp.partial_fit(X[:9] + 0.01, y[:9]).fit(X, y).choice_ == replace(table, fits=1)
    said = (
        "\nfigures of an earlier fit: 2 fits with warm_start kept the choice and measured nothing"
    )
    assert str(gp.fit(X[:210], y[:210]).choice_) == f"{table}{said}"
    assert said in str(gp.summary())
    gp.set_params(expert="sparse", aggregation="rbcm", n_experts=2, n_inducing=8).fit(X, y)
    assert gp.experts_.expert.name == "sparse" and gp.n_experts_ == 2
    assert gp.aggregation_.name == "rbcm" and gp.choice_ is None


def test_kernels_are_given_by_names_joined_by_plus():
    X, y = smooth(80)
    gp = DistributedGPRegressor(expert="exact", kernel="rbf + linear", n_iter=5).fit(X, y)
    assert {"kernels.0.variance", "kernels.1.variance"} <= set(gp.kernel_.parameters())
    with pytest.raises(ValueError, match="no kernel 'cubic'"):
        DistributedGPRegressor(kernel="rbf + cubic").fit(X, y)


def test_a_baseline_that_wins_is_told():
    """A straight line whose last third continues it: a GP that returns to the mean is worse than it."""
    X = np.linspace(0, 1, 300)[:, None]
    y = 10 * X[:, 0] + 0.01 * np.random.default_rng(0).normal(size=300)
    too_narrow = pytest.warns(CoverWarning, match="too narrow: those of 90 %")
    with pytest.warns(ChoiceWarning, match="ridge regression"), too_narrow:
        gp = DistributedGPRegressor(kernel="matern12", validation="last", n_iter=30).fit(X, y)
    assert "ridge regression" in [t.name for t in gp.choice_.better_baselines]


def straight_in_many_columns(n, d=60):
    """A straight line in many columns, of which ridge regression knows that it is one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + 0.3 * rng.normal(size=n)


def test_a_baseline_that_beats_a_way_that_was_taken_at_once_is_told(monkeypatch):
    monkeypatch.setattr(selection, "EXACT_ALONE", 500)
    monkeypatch.setattr("distgp.selection.candidates.EXACT_ALONE", 500)
    X, y = straight_in_many_columns(600)
    said = r"^where each row is predicted from others, NLPD is lower for ridge .* than for the exact GP"
    with pytest.warns(ChoiceWarning, match=said) as told:
        gp = DistributedGPRegressor().fit(X, y)
    assert gp.choice_.validation == "one by one" and gp.choice_.held_out == 600
    text = next(str(one.message) for one in told if one.category is ChoiceWarning)
    assert "held out" not in text and "candidate" not in text and "mean='linear'" in text
    # Measured by its nearest rows, as it is where leaving out all in turn costs much, it is worse.
    monkeypatch.setattr("distgp.selection.alone.MEASURING", 0.0)
    monkeypatch.setattr("distgp.selection.alone.EXACT_ALONE", 500)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChoiceWarning)
        gp = DistributedGPRegressor().fit(X, y)
    assert gp.choice_.better_baselines


def test_baselines_of_a_way_that_was_taken_at_once_predict_the_same_rows(few_are_many):
    """They learn from four fifths of the rows, and predict each once."""
    X, y = smooth(400)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        choice = DistributedGPRegressor().fit(X, y).choice_
    mean = next(trial for trial in choice.trials if trial.name == "training mean")
    parts = _folds(X, 0, 5)
    errors = np.concatenate([y[test] - y[train].mean() for train, test in parts])
    assert choice.validation == "one by one" and len(errors) == choice.held_out == 400
    assert mean.rmse == pytest.approx(np.sqrt(np.mean(np.square(errors))))


def test_of_very_many_rows_ridge_regression_learns_from_some(monkeypatch):
    """The mean of its errors is that with all rows but for little, and it is given no row held out."""
    monkeypatch.setattr(trials, "RIDGE_ROWS", 500)
    given, fit = [], RidgeCV.fit
    monkeypatch.setattr(RidgeCV, "fit", lambda self, X, y: given.append(y) or fit(self, X, y))
    X, y = straight_in_many_columns(3000, 8)
    parts = [hold_out(3000, "random")]
    few = trials.baselines(Rows(X, y, Schema(8)), parts)[1]
    assert max(map(len, given)) == 500 and not {*np.concatenate(given)} & {*y[parts[0][1]]}
    assert len({*given[-1]} & {*y[parts[0][0][:500]]}) < 250, "drawn at random"
    monkeypatch.setattr(trials, "RIDGE_ROWS", 3000)
    every = trials.baselines(Rows(X, y, Schema(8)), parts)[1]
    assert max(map(len, given)) == len(parts[0][0])
    assert few.rmse == pytest.approx(every.rmse, rel=0.05)


def in_time(n, seed=0):
    """Rows whose target has a state in it that changes slowly, and that no column says."""
    rng = np.random.default_rng(seed)
    X, y = smooth(n, seed)
    return X, y + np.convolve(rng.normal(size=n + 59), np.full(60, 0.06), "valid")


def test_residuals_that_correlate_in_the_order_of_the_rows_are_told(monkeypatch):
    X, y = in_time(300)
    gp = DistributedGPRegressor(n_iter=4)
    with pytest.warns(NeighboursWarning, match=r"in the order of the rows, .* validation='last'"):
        gp.fit(X, y)
    mixed = np.random.default_rng(0).permutation(300)
    gp.fit(X[mixed], y[mixed])  # nobody can tell
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        DistributedGPRegressor(n_iter=4, validation="last").fit(X, y)
    assert NeighboursWarning not in [one.category for one in found]
    # A way that is taken at once is measured on rows that are left out one by one.
    monkeypatch.setattr(selection, "EXACT_ALONE", 250)
    with pytest.warns(NeighboursWarning, match="in the order of the rows"):
        gp.fit(X, y)
    assert gp.choice_.validation == "one by one"
    gp.fit(X[mixed], y[mixed])


@pytest.mark.parametrize("files", [False, True])
def test_rows_held_out_for_calibration_tell_too_where_their_residuals_correlate(files, tmp_path):
    def told(X, y, **options):
        options = {"expert": "exact", "calibrate": "conformal", "n_iter": 4} | options
        gp = DistributedGPRegressor(**options)
        path = tmp_path / "rows.parquet"
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(path)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            gp.fit_parquet(str(path), "y") if files else gp.fit(X, y)
        return [str(one.message) for one in found if one.category is NeighboursWarning]

    X, y = in_time(400)
    (text,) = told(X, y)
    assert text.startswith("in the order of the rows, residuals of rows held out correlate")
    assert not told(X, y, validation="last")
    for seed in range(10):
        mixed = np.random.default_rng(seed).permutation(400)
        assert not told(X[mixed], y[mixed]) and not told(*smooth(400, seed))


def test_residuals_that_correlate_along_a_date_are_told():
    rng = np.random.default_rng(0)
    state = np.convolve(rng.normal(size=319), np.full(20, 0.2), "valid")
    order = rng.permutation(300)
    when = pd.date_range("2026-01-01", periods=300, freq="h")[order]
    table = pd.DataFrame({"a": rng.normal(size=300), "when": when})
    X, y, columns, _ = learnt(table, state[order], missing="refuse", dates="expand")
    rows, places = Rows(X, y, Schema.of(columns)), np.arange(300)
    with pytest.warns(NeighboursWarning, match="in the order of 'when'"):
        warn_of_neighbours(rows, Residuals.of(places, y, np.zeros(300), np.ones(300)))
    ordered = np.argsort(when)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        y_sorted, some = y[ordered], Rows(X[ordered], y[ordered], Schema.of(columns))
        warn_of_neighbours(some, Residuals.of(places, y_sorted, np.zeros(300), np.ones(300)))
    assert len(told) == 1 and "correlate with the next" in str(told[0].message)
    two = np.stack([rng.normal(size=300), y], 1)
    with pytest.warns(NeighboursWarning, match="in the order of 'when'"):
        warn_of_neighbours(rows, Residuals.of(places, two, np.zeros((300, 2)), np.ones((300, 2))))


@pytest.mark.parametrize("more", [{}, {"expert": "exact", "calibrate": "conformal"}])
def test_dates_in_order_suggest_that_the_last_rows_are_held_out(more):
    """Residuals that do not correlate say nothing of it: what was held out had neighbours in time."""
    rng = np.random.default_rng(0)
    when = pd.date_range("2026-01-01", periods=220, freq="h")
    table, y = pd.DataFrame({"when": when, "a": rng.normal(size=220)}), rng.normal(size=220)
    y = y + 3 * table["a"]

    def told(rows, **options):
        gp = DistributedGPRegressor(**{"dates": "expand", "n_iter": 3} | more | options)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            gp.fit(table.iloc[rows], y.iloc[rows])
        return [str(w.message) for w in found if w.category is NeighboursWarning]

    (text,) = told(np.arange(220))
    assert text.startswith("rows come in the order of 'when', and are held out at random")
    assert "give validation='last'" in text
    assert not told(np.arange(220), validation="last")
    assert not told(rng.permutation(220))
    assert not told(np.arange(220), expert="exact", calibrate=None)  # nothing is held out


def test_white_residuals_are_not_told():
    rng, told = np.random.default_rng(0), 0
    for _ in range(1000):
        X, y = rng.normal(size=(100, 1)), rng.normal(size=100)
        rows = Rows(X, y, Schema(1))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            warn_of_neighbours(rows, Residuals.of(np.arange(100), y, np.zeros(100), np.ones(100)))
        told += len(found)
    assert told <= 4  # one is expected
    X, y = np.repeat(X, 3, 0), np.repeat(y, 3)  # copies are one row
    warn_of_neighbours(
        Rows(X, y, Schema(1)), Residuals.of(np.arange(300), y, np.zeros(300), np.ones(300))
    )


@pytest.mark.parametrize(
    ("cover", "rows", "told"),
    [
        (0.8, 2000, "narrow"),
        (0.99, 2000, "wide"),
        (0.87, 2000, ""),
        (0.95, 2000, ""),
        (0.8, 50, ""),
        (1.0, 50, ""),
        (0.6, 50, "narrow"),
    ],
)
def test_a_cover_that_chance_does_not_explain_is_told(cover, rows, told):
    choice = Choice.of("random", 100, [Trial("one", 1.0, 1.0, cover, 1.0)], [], rows)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_cover(choice)
    assert [one.category for one in found] == ([CoverWarning] if told else [])
    assert not told or f"too {told}" in str(found[0].message)


def test_kernels_of_few_rows_are_tried_side_by_side(monkeypatch):
    X, y = smooth(220)
    threads, seen, figures = torch.get_num_threads(), set(), {}

    def tried(plan, rows, parts, candidate):
        if candidate.name.endswith("rbf"):
            seen.add(threading.current_thread())
        return candidates.tried_on(plan, rows, parts, candidate)

    monkeypatch.setattr(selection, "tried_on", tried)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            gp = DistributedGPRegressor(n_iter=5, kernel="auto").fit(X, y)
            figures[count] = [(t.name, t.nlpd) for t in gp.choice_.trials]
            assert (threading.main_thread() in seen) == (count == 1)
            seen.clear()
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(figures[1], figures[2], strict=True):
        assert one[0] == other[0] and one[1] == pytest.approx(other[1], rel=1e-5)


def test_times_and_groups_may_name_columns():
    X, y = smooth(240)
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    named = DistributedGPRegressor(validation="last", n_iter=5).fit(table, y, time="a")
    given = DistributedGPRegressor(validation="last", n_iter=5).fit(table, y, time=X[:, 0])
    assert [t.nlpd for t in named.choice_.trials] == [t.nlpd for t in given.choice_.trials]
    with pytest.raises(ValueError, match="X has no column of that name"):
        DistributedGPRegressor(validation="last").fit(table, y, time="when")
    with pytest.raises(ValueError, match="needs the groups"):
        DistributedGPRegressor(validation="groups").fit(table, y)


@pytest.mark.parametrize("options", [{}, {"expert": "exact"}])
def test_groups_are_asked_for_of_few_rows_too(options):
    X, y = smooth(60)
    gp = DistributedGPRegressor(validation="groups", n_iter=2, **options)
    gp.fit(X, y, groups=np.arange(60) % 6)
    with pytest.raises(ValueError, match=r"needs the groups: fit\(X, y, groups=…\), one per row"):
        gp.fit(X, y)


def test_the_choice_survives_files(tmp_path):
    X, y = smooth(220)
    gp = DistributedGPRegressor(n_iter=5).fit(X, y)
    gp.save(tmp_path / "m.safetensors")
    back = distgp.load(tmp_path / "m.safetensors")
    assert back.choice_ == gp.choice_ and back.settled_ == gp.settled_
    assert gp.n_experts_ == 1 and "exact GP" in gp.choice_.best.name
    back.partial_fit(X[:30] + 0.01, y[:30]).partial_fit(X[:4] + 0.02, y[:4])
    assert back.n_experts_ == 1 and back.experts_.row_count() == 254
    assert str(back.choice_).startswith(str(gp.choice_))
    assert "\n34 rows were added since, and nothing was measured again" in str(back.summary())
    back.save(tmp_path / "n.safetensors")
    assert distgp.load(tmp_path / "n.safetensors").choice_ == back.choice_ != gp.choice_


def test_a_linear_mean_is_kept_far_away():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(150, 2))
    y = 3 * X[:, 0] - X[:, 1] + 2 + 0.1 * np.sin(9 * X[:, 0]) + 0.01 * rng.normal(size=150)
    far = np.array([[30.0, 0.0], [0.0, -40.0]])
    gp = DistributedGPRegressor(mean="linear").fit(X, y)
    np.testing.assert_allclose(gp.predict(far), [92.0, 42.0], rtol=0.02)
    constant = DistributedGPRegressor().fit(X, y)
    np.testing.assert_allclose(constant.predict(far), y.mean(), atol=1.0)
    inside = rng.uniform(-1, 1, size=(50, 2))
    mean, _covariance = gp.predict(inside, return_cov=True)
    np.testing.assert_allclose(mean, gp.predict(inside))
    assert gp.sample_y(inside, 400).mean(1) == pytest.approx(mean, abs=0.05)
    with pytest.raises(ValueError, match="needs normalize=True"):
        DistributedGPRegressor(mean="linear", normalize=False).fit(X, y)


def test_a_linear_mean_through_all_rows_is_refused(tmp_path):
    """Nothing would be left of the target, so that predictions would seem certain."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(8, 7)), columns=list("abcdefg")).assign(same=1.0)
    table["y"] = rng.normal(size=8)
    table.to_parquet(tmp_path / "rows.parquet")
    said = "needs more rows than the 7 columns that vary and one more, got 8 rows to learn from"
    with pytest.raises(ValueError, match=said):
        DistributedGPRegressor(mean="linear").fit(table.drop(columns="y"), table["y"])
    with pytest.raises(ValueError, match=said):
        DistributedGPRegressor(mean="linear").fit_parquet(tmp_path / "rows.parquet", "y")
    with pytest.warns(CoverWarning, match="8 rows seem too few"):
        gp = DistributedGPRegressor(mean="linear").fit(table[["a", "b", "same"]], table["y"])
    assert gp.predict(table[["a", "b", "same"]], return_std=True)[1].min() > 0.1


@pytest.mark.parametrize(
    ("n", "d", "options", "left"),
    [
        (230, 190, {"kernel": "auto"}, 184),
        (24, 15, {"n_experts": "cv"}, 16),
        (52, 45, {"calibrate": "conformal"}, 42),
    ],
)
def test_a_linear_mean_through_a_part_of_the_rows_is_told_as_that(n, d, options, left):
    """The user knows how many rows were given, and not how many of them are held out."""
    rng = np.random.default_rng(0)
    said = f"got {left} rows to learn from, since others of the {n} rows given are held out"
    with pytest.raises(ValueError, match=said):
        DistributedGPRegressor(mean="linear", **options).fit(
            rng.normal(size=(n, d)), rng.normal(size=n)
        )


def test_a_part_of_a_file_that_a_linear_mean_goes_through_is_told_as_that(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(190)]
    table = pd.DataFrame(rng.normal(size=(230, 190)), columns=names).assign(y=rng.normal(size=230))
    table.to_parquet(tmp_path / "rows.parquet")
    gp = DistributedGPRegressor(mean="linear", kernel="auto")
    with pytest.raises(ValueError, match="since others of the 230 rows given are held out"):
        gp.fit_parquet(tmp_path / "rows.parquet", "y")


def test_the_signal_variance_stays_near_the_targets():
    X, y = smooth(120)
    smooth_target = X[:, 0] + 1e-3 * y  # its likelihood grows with the variance for ever
    gp = DistributedGPRegressor(n_iter=100).fit(X, smooth_target)
    assert float(gp.kernel_.parameters()["variance"]) <= LARGEST_SIGNAL * (1 + 1e-9)
    free = DistributedGPRegressor(bounds={"variance": (1e-3, 1e6)}).fit(X, smooth_target)
    assert float(free.kernel_.parameters()["variance"]) > LARGEST_SIGNAL


def test_independent_experts_have_about_a_thousand_rows():
    for kind, n, wanted in (("sparse", 4_500, 5), ("exact", 1_500, 2), ("exact", 1, 1)):
        given = DistributedGPRegressor(expert=kind, training="independent").get_params()
        assert resolve(given, Schema(2), n).number_of_experts(n, workers=1) == wanted


def test_rows_that_stay_with_the_workers_are_chosen_for_by_a_sample(tmp_path):
    X, y = smooth(420)
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(path)
    gp = DistributedGPRegressor(n_iter=5, validation="last").fit_parquet(str(path), "y")
    assert gp.choice_.rows == 280 and gp.choice_.held_out == 140
    assert gp.settled_ and gp.experts_.row_count() == 420
    np.testing.assert_allclose(
        [t.rmse for t in gp.choice_.trials if t.name == "training mean"],
        np.sqrt(np.mean((y[280:] - y[:280].mean()) ** 2)),
    )
    with pytest.raises(ValueError, match="give groups=…, the name of a column"):
        DistributedGPRegressor(validation="groups").fit_parquet(str(path), "y")


@pytest.mark.parametrize(
    ("n", "options"), [(250, {"validation": "last"}), (400, {"time_limit": 1e-6})]
)
def test_training_starts_where_the_trial_of_the_best_ended(n, options, few_are_many, monkeypatch):
    X, y = smooth(n)
    told, learn = [], Learning.on

    def noted(learning, expert, shards):
        told.append((learning.found_in == "trial", learning.start))
        return learn(learning, expert, shards)

    monkeypatch.setattr(Learning, "on", noted)
    gp = DistributedGPRegressor(random_state=0, **options).fit(X, y)
    (*trials, last), given = told, {"random_state": 0, **options, **gp.settled_}
    plain = DistributedGPRegressor(**given)
    assert not any(learnt for learnt, _ in trials), "trials start from nothing"
    alone = gp.choice_.best.name in ("independent experts, opt-local", "nearest rows")
    assert last[0] != alone and last[1].inducing is None
    # The same as without a choice, to what training can tell apart.
    plain.fit(X, y)
    for a, b in zip(gp.predict(X, return_std=True), plain.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, atol=0.05)
    assert alone or len(gp.training_.history) < len(plain.training_.history)


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [
        ("nearest rows", QUICK.n_iter, SLOWER.n_iter),
        ("sparse, pooled", 30, 90),
        ("independent experts, opt-local", 40, 120),
    ],
)
def test_a_trial_that_is_worse_than_a_baseline_is_tried_again(
    name, first, then, few_are_many, monkeypatch
):
    X, y = smooth(320)
    seen, learn = set(), Learning.on

    def spoilt(learning, expert, shards):
        rounds, found = learning.algorithm.n_iter, learn(learning, expert, shards)
        seen.add((rounds, learning.seed))
        if rounds != first:
            return found
        theta = found.parameters  # the first trial ends in a bad place
        low = {"variance": 1e-3 * theta.kernel.parameters()["variance"]}
        bad = replace(theta, kernel=theta.kernel.with_parameters(low), noise=1e-3 * theta.noise)
        return replace(found, parameters=bad, stopped="iterations")

    monkeypatch.setattr(Learning, "on", spoilt)
    gp = DistributedGPRegressor(time_limit=1e-6, random_state=0).fit(X, y)
    assert {(first, 0), (then, 1)} <= seen
    others = {(rounds, 1) for rounds in (90, 120, SLOWER.n_iter)} - {(then, 1)}
    assert not others & seen, "those that are better than the baselines are tried once"
    nlpd = {trial.name: trial.nlpd for trial in gp.choice_.trials}
    assert nlpd[name] < nlpd["ridge regression"]


@pytest.mark.filterwarnings("ignore::distgp.selection.ChoiceWarning")
@pytest.mark.parametrize(
    ("stopped", "first_rows", "again"),
    [("iterations", 1_000, True), ("tolerance", 200, True), ("tolerance", 1_000, False)],
)
def test_a_trial_of_one_exact_gp_is_tried_again_where_it_may_end_elsewhere(
    stopped, first_rows, again, monkeypatch
):
    """It learns from all rows once, and its folds tell nothing of its training; few rows draw nothing."""
    X, y = smooth(240)  # every kernel is tried with it
    seen, learn = [], Learning.on

    def spoilt(learning, expert, shards):
        found = learn(learning, expert, shards)
        seen.append((learning.algorithm.n_iter, learning.seed))
        if seen[-1] != (60, 0) or expert.name != "exact":
            return found
        bad = replace(found.parameters, noise=1e3 * found.parameters.noise)
        return replace(found, parameters=bad, stopped=stopped)

    monkeypatch.setattr(Learning, "on", spoilt)
    monkeypatch.setattr(ExactExpert, "first_rows", first_rows)
    gp = DistributedGPRegressor(random_state=0, kernel="auto").fit(X, y)
    assert ((180, 1) in seen) is again
    nlpd = {trial.name: trial.nlpd for trial in gp.choice_.trials}
    assert (nlpd["exact GP, matern52"] < nlpd["ridge regression"]) is again


@pytest.mark.parametrize("options", [{}, {"training_rows": 60}, {"training": "nearest"}], ids=str)
def test_the_seed_has_a_say_where_something_is_drawn(options):
    """Of 70 rows one exact GP draws none, unless that is asked for."""
    X, y = smooth(80)
    given = {"expert": "exact", "n_experts": 1, "n_iter": 3} | options
    plan = resolve(DistributedGPRegressor(**given).get_params(), Schema(X.shape[1]), 80)
    parts, one = [(np.arange(70), np.arange(70, 80))], candidates.Candidate("one", {})
    found = candidates.tried_on(plan, Rows(X, y, Schema(2)), parts, one)
    assert not found.trial.error and found.by_seed is bool(options)


def test_a_second_trial_is_made_where_it_may_end_elsewhere():
    candidate = next(way for way in ways_to_fit(5_000) if way.name == "sparse, pooled")
    trial = Trial("one", 1.0, 1.0, 0.9, 0.1)
    short = candidates.Tried(candidate, trial, (), out_of_rounds=True)
    second = short.second(0.99, None)
    assert second is not None and second.trial == {"n_inducing": 256, "n_iter": 90}
    assert short.second(1.0, None) is None, "it is not worse than the baseline"
    assert short.second(0.99, 31) == second
    assert short.second(0.99, 30) is None, "no more rounds were asked for"
    assert short._replace(candidate=second).second(0.99, None) is None, "there is no third"
    ended = short._replace(out_of_rounds=False)
    assert ended.second(0.99, None) is None and ended.second(0.9, 30) == second
    nearest = ended._replace(candidate=ways_to_fit(5_000)[0]).second(0.99, 5)
    assert nearest is not None and nearest.trial["training"] == SLOWER
    assert ended._replace(by_seed=False).second(0.9, None) is None
    assert short._replace(by_seed=False).second(0.9, None) == second
    failed = replace(trial, nlpd=np.nan, error="no memory")
    assert ended._replace(candidate=ways_to_fit(5_000)[0], trial=failed).second(0.9, 5) is None


@pytest.mark.parametrize(
    ("given", "again"),
    [
        ({"expert": "sparse"}, {"n_iter": 180}),
        ({"expert": "exact", "kernel": "auto"}, {"n_iter": 180}),
        ({"expert": "nearest"}, {"training": SLOWER}),
        ({"expert": "nearest", "kernel": "auto"}, {}),
        ({"expert": "nearest", "training": "fact"}, {"n_iter": 180}),
    ],
    ids=str,
)
def test_a_way_that_is_given_has_a_second_trial_too(given, again):
    plan = resolve(DistributedGPRegressor(**given).get_params(), Schema(2), 5_000)
    assert candidates.as_given(plan).again == again


def test_of_two_trials_one_that_failed_does_not_count():
    one = candidates.Tried(None, Trial("one", 1.0, 2.0, 0.9, 0.5), ())
    failed = one._replace(trial=Trial("one", *[np.nan] * 3, 0.5, error="no"))
    assert candidates.better_of(one, failed).trial == replace(one.trial, seconds=1.0)
    better = one._replace(trial=replace(one.trial, nlpd=1.5))
    assert candidates.better_of(one, better).trial.nlpd == 1.5


@pytest.mark.parametrize("n", [200, 320])
def test_few_rows_take_one_exact_gp_at_once_and_tell_its_figures(n, monkeypatch):
    """Each row is predicted from all others; nothing is fitted but the model itself."""
    fitted, fit = [], selection.fit
    monkeypatch.setattr(
        selection, "fit", lambda plan, placed: fitted.append(plan) or fit(plan, placed)
    )
    monkeypatch.setattr(selection, "tried_on", None)
    X, y = smooth(n)
    gp = DistributedGPRegressor(n_iter=10).fit(X, y)
    assert gp.settled_ == {"expert": "exact", "n_experts": 1} and len(fitted) == 1
    table = gp.choice_
    assert table.validation == "one by one" and table.rows == table.held_out == n
    names = {trial.name for trial in table.trials}
    assert names == {"exact GP", "ridge regression", "training mean"}
    assert table.best.name == "exact GP" and "it fits into the time and memory" in why(table)


@pytest.mark.parametrize(("n", "d", "told"), [(220, 60, True), (220, 2, False)])
def test_few_rows_that_are_taken_at_once_are_measured_in_folds_too(n, d, told, monkeypatch):
    """Rows that are left out one by one had their say in the hyperparameters."""
    seen, figures = [], Trial("", 9.0, 8.0, 0.7, 0.1)
    monkeypatch.setattr(selection, "check_few_rows", lambda *given: seen.append(given) or figures)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChoiceWarning)
        choice = DistributedGPRegressor().fit(X, X[:, 0] + 0.3 * rng.normal(size=n)).choice_
    assert bool(seen) is told and (choice.best.nlpd == 8.0) is told
    assert choice.validation == ("random" if told else "one by one") and choice.held_out == n
    assert choice.best.name == "exact GP" and choice.rows == (176 if told else n)


def narrow(n, d, seed):
    """Rows of a sum of sines with few of them for their columns, and others to test on."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n + 200, d))
    y = np.sin(3 * X).sum(1) / np.sqrt(d / 2) + 0.1 * rng.standard_normal(n + 200)
    return X[:n], y[:n], X[n:], y[n:]


def cover_of(gp, X, y):
    mean, std = gp.predict(X, return_std=True)
    return np.mean(np.abs(y - mean) < 1.645 * std)


@pytest.mark.filterwarnings("ignore::distgp.selection.CoverWarning")
@pytest.mark.parametrize(("n", "d"), [(40, 20), (30, 8)])
def test_intervals_hold_where_rows_are_few_for_their_columns(n, d):
    covers, without = [], []
    for seed in range(4):
        X, y, X_test, y_test = narrow(n, d, seed)
        covers.append(cover_of(DistributedGPRegressor().fit(X, y), X_test, y_test))
        plain = DistributedGPRegressor(n_iter=99).fit(X, y)  # the user has said how to train
        without.append(cover_of(plain, X_test, y_test))
    assert np.mean(covers) > 0.8 > np.mean(without) + 0.1


@pytest.mark.filterwarnings("ignore::distgp.selection.CoverWarning")
def test_priors_of_ours_give_way_to_what_the_user_says():
    X, y, _, _ = narrow(30, 8, 0)

    def priors(given: dict[str, Any], n: int = 30):
        plan = resolve(DistributedGPRegressor(**given).get_params(), Schema(8), n)
        learning = starting_point(plan, placed.scalings[0], 0, None)[1]
        assert learning is not None and learning.priors is not None
        return learning.priors

    plan = resolve(DistributedGPRegressor().get_params(), Schema(8), 30)
    placed = place(plan, Rows(X, y, Schema(8)))
    length, noise = "kernel.kernel.lengthscale", "noise"
    assert set(priors({})) == {length, noise}
    assert set(priors({"bounds": {"lengthscale": (0.1, 9.0)}})) == {noise}
    strong = LogNormal(1.0, 0.1)
    assert priors({"priors": {"lengthscale": strong}})["lengthscale"] is strong
    assert set(priors({"priors": {"lengthscale": strong}})) == {"lengthscale", noise}
    for given in (
        {"n_iter": 50},
        {"training": Fact(n_iter=50)},
        {"kernel": distgp.RBF(np.ones(8))},
        {"normalize": False},
    ):
        assert not priors(given), given
    assert not priors({}, n=81)


def test_rows_that_are_too_few_are_told():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (30, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DistributedGPRegressor().fit(X, np.sin(3 * X[:, 0]))
    with pytest.warns(CoverWarning, match="30 rows seem too few for 8 columns"):
        gp = DistributedGPRegressor().fit(X, rng.standard_normal(30))
    assert gp.choice_ is None


def test_rows_that_are_too_few_are_told_beside_calibration_too():
    """Calibrated intervals hold what they should; that the columns say nothing is told all the same."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 60)), rng.standard_normal(50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DistributedGPRegressor(calibrate="conformal").fit(X, X[:, 0] + 0.1 * y)
    with pytest.warns(CoverWarning, match="40 rows, left of 50 by calibrate, seem too") as told:
        DistributedGPRegressor(calibrate="conformal").fit(X, y)
    assert "intervals" not in str(told[0].message)


def test_rows_that_are_too_few_for_a_linear_mean_in_folds_are_told():
    """Without a fifth of them a trend goes through all rows, so that nothing can be measured."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((22, 19)), rng.standard_normal(22)
    with pytest.warns(CoverWarning, match="22 rows seem too few for 19 columns: nothing could be"):
        DistributedGPRegressor(mean="linear").fit(X, y)


@pytest.mark.parametrize(
    ("n", "d", "options", "said"),
    [
        (3, 11, {}, "3 rows, fewer than the 11 columns, are too few to learn from"),
        (4, 1, {}, "4 rows are too few to learn from"),
        (6, 11, {"n_iter": 9}, "6 rows, fewer than the 11 columns, are too few"),
        (6, 11, {}, "6 rows, fewer than the 11 columns, are too few"),
        (6, 2, {"n_iter": 9}, None),
        (12, 15, {"n_iter": 9}, None),  # fewer than columns, as spectra have them, may be plenty
        (3, 11, {"training": None}, None),
    ],
)
def test_hardly_any_rows_are_told_though_nothing_can_be_measured(n, d, options, said):
    rng = np.random.default_rng(0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", CoverWarning)
        DistributedGPRegressor(**options).fit(rng.normal(size=(n, d)), rng.normal(size=n))
    told = [str(one.message) for one in found if one.category is CoverWarning]
    assert [one.startswith(said) for one in told] == [True] if said else not told


def test_hardly_any_rows_of_a_file_are_told_too(tmp_path):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(4, 2)), columns=["x", "y"])
    table.to_parquet(tmp_path / "rows.parquet")
    with pytest.warns(CoverWarning, match="4 rows are too few to learn from"):
        DistributedGPRegressor(n_iter=3).fit_parquet(tmp_path / "rows.parquet", "y")


@pytest.mark.parametrize(("n_iter", "begins"), [(None, 110), (9, 220)])
def test_the_trial_of_one_exact_gp_begins_with_a_part_of_the_rows(monkeypatch, n_iter, begins):
    rows, train = [], learning.train

    def noted(algorithm, expert, theta, shards, **options):
        if expert.name == "exact" and len(shards) == 1:
            rows.append(int(sizes(shards).sum()))
        return train(algorithm, expert, theta, shards, **options)

    monkeypatch.setattr(learning, "train", noted)
    monkeypatch.setattr(ExactExpert, "first_rows", 200)
    X, y = smooth(220)
    DistributedGPRegressor(n_iter=n_iter).fit(X, y)
    assert rows[0] == begins and rows[-1] == 220


def test_a_candidate_that_beats_another_is_better_by_two_standard_errors():
    rng = np.random.default_rng(0)
    exact = rng.normal(size=400)
    gain = rng.normal(size=400)
    gain -= gain.mean()

    def tried(densities):
        return candidates.Tried(None, None, (), densities=densities)

    for errors, better in ((1.9, False), (2.1, True), (-5.0, False)):
        other = tried(exact + gain + errors * gain.std() / 20.0)
        assert other.beats(tried(exact)) is better


def test_the_first_kernel_is_settled_where_it_wins():
    """The way to fit is measured with it, and the fit has it too."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(220, 2))
    gp = DistributedGPRegressor(kernel="auto").fit(X, np.abs(X[:, 0]) + 0.1 * rng.normal(size=220))
    assert gp.settled_["kernel"] == FIRST_KERNEL == "matern52"
    assert gp.choice_.best.name == "exact GP, matern52"
    assert str(gp.kernel_).startswith("Scale(kernel=Matern52")


@pytest.mark.parametrize("fold", [2, 4])
def test_a_trial_that_fails_part_way_is_no_measure_for_the_others(fold, monkeypatch):
    """The other kernels are measured on all rows all the same."""
    predict, calls = candidates.predict_gaussian, []

    def broken(*given, **options):
        calls.append(None)
        if len(calls) == fold:
            raise MemoryError("no memory")
        return predict(*given, **options)

    monkeypatch.setattr(candidates, "predict_gaussian", broken)
    monkeypatch.setattr(selection, "at_once_on", lambda *given: 1)
    X, y = smooth(240)
    gp = DistributedGPRegressor(n_iter=5, kernel="auto").fit(X, y)
    trials = {one.name: one for one in gp.choice_.trials if not one.baseline}
    assert trials.pop("exact GP, matern52").error == "no memory"
    assert len(trials) == len(KERNELS_TRIED) - 1 and not any(t.error for t in trials.values())
    assert not gp.choice_.best.error


def test_what_a_later_fit_measures_is_told_beside_what_is_kept():
    """warm_start keeps the way to fit; the kernel is "auto" for the first time, and is measured."""
    X, y = smooth(240)
    gp = DistributedGPRegressor(n_iter=5, warm_start=True).fit(X, y)
    kept = dict(gp.settled_)
    gp.set_params(kernel="auto").fit(X, y)
    assert gp.settled_ == kept | {"kernel": gp.settled_["kernel"]} and gp.choice_.fits == 0
    assert sum("as given" in one.name for one in gp.choice_.trials) == len(KERNELS_TRIED)
    last, measured = gp.choice_, gp.settled_
    gp.fit(X, y)
    assert gp.settled_ == measured and gp.choice_ == replace(last, fits=1)


@pytest.mark.parametrize("n", [60, 240])
def test_where_all_hyperparameters_are_fixed_nothing_is_trained(n):
    X, y = smooth(n)
    gp = DistributedGPRegressor(fixed=["noise", "lengthscale", "variance"], noise=0.05).fit(X, y)
    assert gp.noise_ == 0.05 and gp.model_.targets[0].training is None
    assert n < 200 or not any(one.error for one in gp.choice_.trials)


def test_candidates_that_failed_and_baselines_come_last():
    done, worse = Trial("a", 1.0, 1.0, 0.9, 0.1), Trial("b", 1.0, 2.0, 0.9, 0.1)
    failed = Trial("c", *[np.nan] * 3, 0.1, error="no")
    mean = Trial("mean", 1, 0, 1, 0, baseline=True)
    order = Choice.of("random", 80, [worse, failed, done], [mean], 100).trials
    assert [one.name for one in order] == ["a", "b", "c", "mean"] and order[0].chosen


def test_a_way_without_joint_predictions_must_be_clearly_better():
    rng = np.random.default_rng(0)
    plain, gain = rng.normal(size=400), rng.normal(size=400)
    gain -= gain.mean()

    def tried(name, joint, densities):
        candidate = selection.Candidate(name, {}, joint=joint)
        trial = Trial(name, 1.0, -float(densities.mean()), 0.9, 0.1)
        return candidates.Tried(candidate, trial, (), densities=densities)

    for errors, taken in ((1.9, "joint"), (2.1, "alone"), (-1.0, "joint")):
        other = tried("alone", False, plain + gain + errors * gain.std() / 20.0)
        best = candidates.best_of([other, tried("joint", True, plain)])
        assert best.candidate.name == taken
    alone = tried("alone", False, plain)
    assert candidates.best_of([alone]) is alone
    assert not ways_to_fit(5_000)[-1].joint and all(way.joint for way in ways_to_fit(5_000)[:-1])


def test_the_table_says_where_rows_were_held_out_in_folds():
    trial = Trial("one", 1.0, 1.0, 0.9, 0.1)
    for rows, held_out, said in ((240, 300, "at random, in folds"), (240, 60, "at random")):
        text = str(Choice.of("random", rows, [trial], [], held_out))
        assert text.splitlines()[0].endswith(f"measured on {held_out} held out {said}")


def test_a_time_limit_changes_nothing_up_to_so_many_rows_and_says_so():
    X, y = smooth(250)
    gps = [DistributedGPRegressor(n_iter=5, time_limit=s).fit(X, y) for s in (1e-9, None)]
    assert gps[0].choice_.best.name == gps[1].choice_.best.name
    np.testing.assert_array_equal(*(gp.predict(X[:20]) for gp in gps))
    told = " ".join((DistributedGPRegressor.__doc__ or "").split())
    assert "Up to 1,500 rows it changes nothing" in told and EXACT_ALONE == 1_500


@pytest.mark.parametrize("calibrate", [None, "conformal"])
def test_few_rows_of_a_file_are_measured_as_those_in_memory_are(tmp_path, calibrate, monkeypatch):
    known, predicted = [], alone._predicted

    def noted(plan, rows, *given):
        out = predicted(plan, rows, *given)
        known.append(np.allclose(out.y, rows.y[out.places]))
        return out

    monkeypatch.setattr(alone, "_predicted", noted)
    X, y = smooth(260)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(tmp_path / "rows.parquet")
    gp = DistributedGPRegressor(n_iter=10, calibrate=calibrate)
    table = gp.fit_parquet(tmp_path / "rows.parquet", "y").choice_
    assert table.validation == "one by one" and table.best.name == "exact GP"
    assert table.held_out == table.rows == gp.experts_.row_count() < 261 and known == [True]
    if calibrate is None:
        other = DistributedGPRegressor(n_iter=10).fit(X, y).choice_
        figures = [
            {t.name: (t.rmse, t.nlpd, t.cover) for t in one.trials} for one in (table, other)
        ]
        for name, values in figures[0].items():
            assert values == pytest.approx(figures[1][name], rel=1e-3), name


def test_every_observation_of_the_same_inputs_is_predicted_from_the_others():
    """Ten observations at each of 30 inputs: the mean of ten would have a third of their error."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.uniform(-2, 2, size=(30, 1)), 10, axis=0)
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=300)
    with pytest.warns(RepeatsWarning):
        gp = DistributedGPRegressor().fit(X, y)
    assert gp.choice_.held_out == 300 and gp.choice_.best.rmse == pytest.approx(0.3, rel=0.2)
    assert 0.85 < gp.choice_.best.cover < 0.95
