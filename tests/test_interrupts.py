"""An interrupt leaves what was fitted before, and what was reached for a fit with warm_start."""

import copy
import pickle
import signal

import numpy as np
import pytest

from distgp import DistributedGPRegressor
from distgp._util.progress import Progress
from distgp.selection import trials


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, np.sin(9 * X[:, 0]) + np.cos(7 * X[:, 1]) + 0.2 * rng.normal(size=n)


@pytest.fixture
def interrupted(monkeypatch):
    """Interrupt a verbose fit by Ctrl-C's signal, when it has shown so many rounds of training.

    Processes that a shell starts in the background ignore this signal, so its handler is set.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(gp, X, y, after):
        with monkeypatch.context() as patch:
            rounds, advance = [], Progress.advance

            def counted(self, *arguments, **options):
                advance(self, *arguments, **options)
                rounds.extend([1] * ("objective" in options.get("text", "") and self.show))
                if len(rounds) == after:
                    rounds.append(1)
                    signal.raise_signal(signal.SIGINT)

            patch.setattr(Progress, "advance", counted)
            with pytest.raises(KeyboardInterrupt):
                gp.set_params(verbose=True).fit(X, y)
        return gp.set_params(verbose="auto")

    yield run
    signal.signal(signal.SIGINT, before)


def candidates_tried(monkeypatch):
    """The names of candidates, as they are measured."""
    names, scored = [], trials.scored
    monkeypatch.setattr(
        "distgp.selection.candidates.scored",
        lambda name, *more: names.append(name) or scored(name, *more),
    )
    return names


def test_a_choice_that_was_made_is_not_made_again(interrupted, monkeypatch):
    X, y = rows(240)
    options = {"n_iter": 20, "validation": "last"}
    whole = DistributedGPRegressor(**options).fit(X, y)
    gp = interrupted(DistributedGPRegressor(**options, warm_start=True), X, y, after=1)
    assert not hasattr(gp, "model_") and not hasattr(gp, "choice_")
    names = candidates_tried(monkeypatch)
    for again in (gp, copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        again.fit(X, y)
        assert names == [] and again.choice_.best.name == whole.choice_.best.name
        assert again.settled_ == whole.settled_ and "_reached" not in vars(again)
    gp.set_params(warm_start=False).fit(X, y)
    assert names == [trial.name for trial in whole.choice_.trials if not trial.baseline]


def test_training_goes_on_from_where_it_was(interrupted):
    X, y = rows(120)
    whole = DistributedGPRegressor(n_iter=60).fit(X, y).training_
    half = DistributedGPRegressor(n_iter=60, warm_start=True)
    again = interrupted(half, X, y, after=6).fit(X, y).training_
    assert again.history[0].objective == pytest.approx(whole.history[5].objective, rel=1e-9)
    assert len(again.history) < len(whole.history)
    assert again.objective == pytest.approx(whole.objective, rel=1e-4)


def test_what_was_fitted_before_is_still_there(interrupted):
    X, y = rows(120)
    gp = DistributedGPRegressor(n_iter=40, warm_start=True).fit(X, y)
    mean, before = gp.predict(X), dict(vars(gp))
    other = 3 * y[::-1] + X[:, 0]
    interrupted(gp, X, other, after=5)
    np.testing.assert_array_equal(gp.predict(X), mean)
    assert {name: value for name, value in vars(gp).items() if name != "_reached"} == before
    reached = gp._reached["found"][0]
    first = gp.set_params(n_iter=1).fit(X, other).training_.history[0].hyperparameters
    assert first["noise"] == pytest.approx([float(reached.noise)])


def test_without_warm_start_a_fit_begins_anew(interrupted):
    X, y = rows(120)
    gp = interrupted(DistributedGPRegressor(n_iter=30), X, y, after=8)
    anew = DistributedGPRegressor(n_iter=30).fit(X, y)
    np.testing.assert_array_equal(gp.fit(X, y).predict(X), anew.predict(X))


def test_every_target_goes_on_from_its_own(interrupted):
    X, y = rows(120)
    Y = np.column_stack([y, np.cos(20 * X[:, 1])])
    whole = DistributedGPRegressor(n_iter=40).fit(X, Y)
    first = len(whole.training_[0].history)
    gp = interrupted(DistributedGPRegressor(n_iter=40, warm_start=True), X, Y, after=first + 8)
    assert len(gp._reached["found"]) == 2
    found = gp.fit(X, Y).training_
    assert all(len(a.history) < len(b.history) for a, b in zip(found, whole.training_, strict=True))


def test_a_second_interrupt_keeps_what_the_first_had_reached(interrupted):
    X, y = rows(240)
    options = {"n_iter": 20, "validation": "last", "warm_start": True}
    gp = interrupted(DistributedGPRegressor(**options), X, y, after=1)
    choice, first = gp._reached["choice"], gp._reached["found"]
    interrupted(gp, X, y, after=1)
    assert gp._reached["choice"] is choice and gp._reached["found"] is not first
    assert gp.fit(X, y).choice_ is choice
