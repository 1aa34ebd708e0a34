"""A choice by measurement: rows held out, candidates fitted to the rest, the lowest NLPD taken.

What is held out decides what is measured. Rows drawn at random lie between the others; the last rows, or
whole groups, lie beyond them, as tomorrow's rows will. A likelihood of the training rows cannot know
which of the two is wanted, so the user says it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from distgp import metrics
from distgp.progress import Progress

VALIDATIONS: tuple[str, ...] = ("random", "last", "groups")
SHARES = {"random": 0.2, "last": 1.0 / 3.0, "groups": 0.2}
"""The share of rows that is held out, by kind."""
MARGIN = 0.05
"""Nats by which a baseline must be better to be worth a warning."""
LEAST_ROWS = 200
"""Below this many rows nothing is held out."""


class HasName(Protocol):
    """What is tried."""

    @property
    def name(self) -> str:
        """What the user reads."""
        ...


Named = TypeVar("Named", bound=HasName)


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


def hold_out(
    n: int,
    validation: str,
    *,
    time: Any = None,
    groups: Any = None,
    share: float | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows to learn from, and which to hold out.

    Parameters
    ----------
    n : int
        The number of rows.
    validation : {"random", "last", "groups"}
        "random": rows drawn at random. "last": the last rows, in the order of `time` where it is
        given. "groups": whole groups, drawn at random until they make up the share.
    time : array-like of shape (n,), optional
        When each row was observed, for "last": numbers or dates.
    groups : array-like of shape (n,), optional
        The group of each row, for "groups".
    share : float, optional
        The share of rows to hold out; by default a fifth, of the last rows a third.
    seed : int, default=0
        The seed of what is random.

    Returns
    -------
    train, test : ndarray of int
        Places of rows, each at least one, in ascending order but for "last" with times.
    """
    if validation not in VALIDATIONS:
        named = ", ".join(map(repr, VALIDATIONS))
        raise ValueError(f"validation must be one of {named}, got {validation!r}")
    share = SHARES[validation] if share is None else share
    if not 0 < share < 1:
        raise ValueError(f"the share of rows to hold out must be between 0 and 1, got {share}")
    size = min(max(1, round(share * n)), n - 1)
    rng = np.random.default_rng(seed)
    if validation == "groups":
        return _by_groups(n, groups, size, rng)
    if validation == "last":
        order = np.arange(n) if time is None else _order(time, n)
        return order[: n - size], order[n - size :]
    order = rng.permutation(n)
    return np.sort(order[size:]), np.sort(order[:size])


Divisions: TypeAlias = list[tuple[np.ndarray, np.ndarray]]
"""Rows to learn from, in random order, and rows to predict."""


def divisions(n: int, validation: str, largest: int, seed: int = 0, **options: Any) -> Divisions:
    """The divisions that candidates are measured on.

    Beyond the rows that it learnt from, a model's figures depend much on which rows those were. So
    candidates are fitted twice there: with other groups held out, or with the rows in another order, by
    which samples are drawn.

    Parameters
    ----------
    n : int
        The number of rows.
    validation : {"random", "last", "groups"}
        As for `hold_out`.
    largest : int
        The number of rows to predict, at most, in all divisions together.
    seed : int, default=0
        The seed of what is random.
    **options
        Times and groups, as for `hold_out`.

    Returns
    -------
    list of (ndarray, ndarray)
    """
    made, repeats = [], 1 if validation == "random" else 2
    for repeat in range(repeats):
        rng = np.random.default_rng([seed, repeat])
        train, test = hold_out(n, validation, seed=seed + repeat, **options)
        made.append((rng.permutation(train), rng.permutation(test)[: largest // repeats]))
    return made


def _order(time: Any, n: int) -> np.ndarray:
    """The places of rows from the earliest to the latest."""
    zone = getattr(getattr(time, "dt", time), "tz", None)  # pandas' times with a zone, as UTC
    if zone is not None:
        time = time.dt.tz_convert(None) if hasattr(time, "dt") else time.tz_convert(None)
    values = np.asarray(time)
    if values.shape != (n,):
        raise ValueError(f"time must have one value for each of the {n} rows, got {values.shape}")
    missing = values != values  # NaN and NaT differ from themselves
    if values.dtype.kind not in "iufM" or bool(missing.any()):
        raise ValueError(
            "time must be numbers or dates without missing values, got "
            f"{values.dtype}; convert it, for example by pandas.to_datetime"
        )
    return np.argsort(values, kind="stable")


def _by_groups(
    n: int, groups: Any, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    if groups is None:
        raise ValueError("validation='groups' needs the groups: fit(X, y, groups=…), one per row")
    values = np.asarray(groups)
    if values.shape != (n,):
        raise ValueError(f"groups must have one value for each of the {n} rows, got {values.shape}")
    try:
        _, label, count = np.unique(values, return_inverse=True, return_counts=True)
    except TypeError as error:
        raise ValueError(
            "groups must be all numbers or all text, without missing values"
        ) from error
    if len(count) < 2:
        raise ValueError("validation='groups' needs two groups at least, got one")
    chosen, total = [], 0
    for group in rng.permutation(len(count)):  # those that fit, in random order
        if total + count[group] <= max(size, count.min()):
            chosen, total = [*chosen, group], total + count[group]
    out = np.isin(label, chosen)
    return np.flatnonzero(~out), np.flatnonzero(out)


def measured(
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


def measured_all(
    candidates: Sequence[Named],
    predict: Callable[[Named], tuple[np.ndarray, np.ndarray]],
    y: np.ndarray,
    progress: Progress,
) -> list[Trial]:
    """Try every candidate on the rows held out, whose targets are y; `progress` is told of each."""
    trials = []
    for candidate in candidates:
        trials.append(measured(candidate.name, lambda one=candidate: predict(one), y))
        progress.advance(text=candidate.name)
    return trials


def best_of(candidates: Sequence[Named], trials: Sequence[Trial]) -> Named:
    """The candidate with the lowest NLPD in its trial.

    Raises
    ------
    ValueError
        Where none of them could be fitted.
    """
    fine = [i for i, trial in enumerate(trials) if not trial.error]
    if not fine:
        reasons = dict.fromkeys(trial.error for trial in trials)
        raise ValueError(f"no candidate could be fitted: {'; '.join(reasons)}")
    return candidates[min(fine, key=lambda i: trials[i].nlpd)]


def baselines(X: np.ndarray, y: np.ndarray, divisions: Divisions, seed: int = 0) -> list[Trial]:
    """The training mean, and ridge regression: what a model must beat to be worth its time.

    Ridge regression predicts a Gaussian whose standard deviation is that of its errors on a fifth of the
    training rows that it did not see.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

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

        return measured(name, predict, tested, baseline=True)

    return [trial("training mean", mean), trial("ridge regression", ridge)]


def with_spread(
    model: Any, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A point prediction with the standard deviation of its errors on rows that it did not see."""
    train, test = hold_out(len(y), "random", seed=seed)
    errors = y[test] - model.fit(X[train], y[train]).predict(X[test])
    mean = np.asarray(model.fit(X, y).predict(X_test))
    spread = np.sqrt(np.mean(np.square(errors), axis=0))
    return mean, np.broadcast_to(np.maximum(spread, 1e-12 * (1.0 + np.abs(mean).max())), mean.shape)


def outdone(choice: Choice) -> str:
    """What to tell the user where a baseline is better than the candidate taken."""
    best = choice.best
    better = " and ".join(f"{t.name} ({t.nlpd:.4g})" for t in choice.better_baselines)
    return (
        f"on the rows held out, NLPD is lower for {better} than for the best candidate, {best.name} "
        f"({best.nlpd:.4g}): the inputs may say little about the target, or the rows held out may be "
        "unlike the others. Compare RMSE and cover in choice_ before you trust the model; where ridge "
        "regression is better, try mean='linear' or kernel='auto'"
    )
