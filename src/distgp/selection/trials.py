"""Trials: candidates and baselines measured on rows held out, and the choice among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from distgp import metrics
from distgp.data.rows import Rows
from distgp.selection.holdout import Divisions, hold_out

MARGIN = 0.05
"""Nats by which a baseline must be better to be worth a warning."""


class ChoiceWarning(UserWarning):
    """A plain baseline predicted the rows held out better than any candidate."""


@dataclass(frozen=True)
class Trial:
    """A candidate's figures on the rows held out, in the target's units.

    Parameters
    ----------
    name : str
        The candidate, or a baseline.
    rmse, nlpd, cover : float
        Root mean squared error, mean negative log predictive density, and the share of the targets
        inside their 90 % intervals. NaN where the candidate could not be fitted.
    seconds : float
        The time to fit it and to predict.
    chosen : bool, default=False
        Whether it was taken.
    baseline : bool, default=False
        Whether it is only there to be compared with.
    error : str, default=""
        Why the candidate could not be fitted.
    """

    name: str
    rmse: float
    nlpd: float
    cover: float
    seconds: float
    chosen: bool = False
    baseline: bool = False
    error: str = ""


@dataclass(frozen=True)
class Choice:
    """The candidates that were measured, the best first, and the baselines beside them.

    Parameters
    ----------
    validation : {"random", "last", "groups"}
        How the rows were held out.
    rows, held_out : int
        The number of rows that candidates could learn from, and of those that they were measured on, at
        most 2,000 of all that were held out.
    trials : tuple of Trial
        Candidates by NLPD, then baselines by NLPD.
    """

    validation: str
    rows: int
    held_out: int
    trials: tuple[Trial, ...]

    @staticmethod
    def of(
        validation: str, rows: int, trials: Sequence[Trial], others: Sequence[Trial], held_out: int
    ) -> Choice:
        """Put candidates and baselines in order, and mark the candidate with the lowest NLPD."""
        order = sorted(trials, key=lambda t: (bool(t.error), t.nlpd))
        order[0] = replace(order[0], chosen=True)
        return Choice(validation, rows, held_out, (*order, *sorted(others, key=lambda t: t.nlpd)))

    @property
    def best(self) -> Trial:
        """The candidate that was taken."""
        return next(trial for trial in self.trials if trial.chosen)

    @property
    def better_baselines(self) -> tuple[Trial, ...]:
        """Baselines with a clearly lower NLPD than the candidate taken."""
        limit = self.best.nlpd - MARGIN
        return tuple(t for t in self.trials if t.baseline and t.nlpd < limit)

    def __str__(self) -> str:
        width = max(len(trial.name) for trial in self.trials) + 2
        held = {"random": "at random", "last": "from the end", "groups": "in whole groups"}
        lines = [
            f"learnt from {self.rows:,} rows, measured on {self.held_out:,} held out "
            f"{held[self.validation]}",
            f"{'':2s}{'candidate':{width}s}{'RMSE':>10s}{'NLPD':>10s}{'90 % cover':>12s}{'seconds':>9s}",
        ]
        for t in self.trials:
            mark = "→ " if t.chosen else "  "
            figures = (
                f"  {t.error}"
                if t.error
                else f"{t.rmse:>10.4g}{t.nlpd:>10.4g}{t.cover:>12.3f}{t.seconds:>9.1f}"
            )
            lines.append(f"{mark}{t.name:{width}s}{figures}")
        return "\n".join(lines)


def measure(
    name: str,
    fit_and_predict: Callable[[], tuple[np.ndarray, np.ndarray]],
    y: np.ndarray,
    baseline: bool = False,
) -> Trial:
    """Fit a candidate, predict the rows held out, and score it against their targets.

    A candidate that cannot be fitted gets the reason instead of figures.
    """
    begin = time.perf_counter()
    try:
        mean, std = fit_and_predict()
        rmse, nlpd = metrics.rmse(y, mean), metrics.nlpd(y, mean, np.square(std))
        cover, reason = metrics.coverage(y, mean, np.square(std)), ""
    except (ValueError, ArithmeticError, MemoryError, torch.OutOfMemoryError) as error:
        rmse = nlpd = cover = float("nan")
        reason = " ".join(str(error).split()) or type(error).__name__
    seconds = time.perf_counter() - begin
    return Trial(name, rmse, nlpd, cover, seconds, baseline=baseline, error=reason)


def baselines(rows: Rows, divisions: Divisions, seed: int = 0) -> list[Trial]:
    """Measure the training mean and ridge regression: what a model must beat to be worth its time.

    Ridge regression predicts a Gaussian whose standard deviation is that of its errors on a fifth of the
    training rows that it did not see.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = rows.X, rows.y

    def mean(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        like = y[test]
        return np.full(like.shape, y[train].mean(0)), np.full(like.shape, y[train].std(0))

    def ridge(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 5, 17)))
        return with_spread(model, X[train], y[train], X[test], seed)

    tested = y[np.concatenate([test for _, test in divisions])]

    def trial(name: str, each: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Trial:
        def predict() -> tuple[np.ndarray, np.ndarray]:
            means, stds = zip(*(each(*division) for division in divisions), strict=True)
            return np.concatenate(means), np.concatenate(stds)

        return measure(name, predict, tested, baseline=True)

    return [trial("training mean", mean), trial("ridge regression", ridge)]


class PointRegressor(Protocol):
    """A scikit-learn regressor that predicts a number for each row."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> PointRegressor:
        """Learn from rows."""
        ...

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Predict rows."""
        ...


def with_spread(
    model: PointRegressor, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Predict numbers, with the standard deviation of the errors on rows that the model did not see."""
    train, test = hold_out(len(y), "random", seed=seed)
    errors = y[test] - model.fit(X[train], y[train]).predict(X[test])
    mean = np.asarray(model.fit(X, y).predict(X_test))
    spread = np.sqrt(np.mean(np.square(errors), axis=0))
    return mean, np.broadcast_to(np.maximum(spread, 1e-12 * (1.0 + np.abs(mean).max())), mean.shape)


def better_baselines_text(choice: Choice) -> str:
    """Tell the user that a baseline is better than the candidate taken."""
    best = choice.best
    better = " and ".join(f"{t.name} ({t.nlpd:.4g})" for t in choice.better_baselines)
    return (
        f"on the rows held out, NLPD is lower for {better} than for the best candidate, {best.name} "
        f"({best.nlpd:.4g}): the inputs may say little about the target, or the rows held out may be "
        "unlike the others. Compare RMSE and cover in choice_ before you trust the model; where ridge "
        "regression is better, try mean='linear' or kernel='auto'"
    )
