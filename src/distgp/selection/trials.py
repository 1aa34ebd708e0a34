"""Trials: candidates and baselines measured on rows held out, and the choice among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike

from distgp._util.progress import counted
from distgp.data.rows import Rows
from distgp.diagnostics import metrics
from distgp.plan import NEEDS_GROUPS, VALIDATIONS
from distgp.selection.repeats import labels_of_repeats
from distgp.selection.sentences import notes

SHARES = {"random": 0.2, "last": 1.0 / 3.0, "groups": 0.2}
"""The share of rows that is held out, by kind."""
RIDGE_ROWS = 100_000
"""Training rows of ridge regression, at most: it has a number for each column, which more hardly change."""


def hold_out(
    n: int,
    validation: str,
    *,
    time: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    inputs: np.ndarray | None = None,
    share: float | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Divide n rows into those to learn from, and those to hold out, and return the places of both.

    "random" draws rows at random, and keeps rows with the same `inputs` together where these are given;
    "last" takes the last in the order of `time` (numbers or dates), or of the rows where it is not given,
    and does not part equal times; "groups" draws whole groups until they make up the share: a fifth by
    default, of the last rows a third. Each part has one row at least.
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
        order, place = (np.arange(n), n - size) if time is None else _in_time(time, n, size)
        return order[:place], order[place:]
    labels = None if inputs is None else labels_of_repeats(inputs)
    if labels is not None:
        return _whole_groups(labels, size, rng)
    order = rng.permutation(n)
    return np.sort(order[size:]), np.sort(order[:size])


Divisions: TypeAlias = list[tuple[np.ndarray, np.ndarray]]
"""Rows to learn from, in random order, and rows to predict."""


def divisions(rows: Rows, validation: str, largest: int, seed: int = 0) -> Divisions:
    """Make the divisions that candidates are measured on, with at most `largest` rows to predict.

    Beyond the rows that it learnt from, a model's figures depend much on which rows those were. So
    candidates are fitted twice there: with other groups held out, or with the rows in another order, by
    which samples are drawn.
    """
    made, repeats = [], 1 if validation == "random" else 2
    groups = rows.groups if validation == "groups" else None
    for repeat in range(repeats):
        rng = np.random.default_rng([seed, repeat])
        train, test = hold_out(
            len(rows),
            validation,
            time=rows.time,
            groups=groups,
            inputs=rows.X,
            seed=seed + repeat,
        )
        made.append((rng.permutation(train), rng.permutation(test)[: largest // repeats]))
    return made


def _in_time(time: ArrayLike, n: int, size: int) -> tuple[np.ndarray, int]:
    """The places of rows from the earliest to the latest, and how many are not held out.

    About `size` are held out: the boundary is the change of time that is nearest to it.
    """
    values = times_of_rows(time, n)
    order = np.argsort(values, kind="stable")
    changes = 1 + np.flatnonzero(values[order][1:] != values[order][:-1])
    if not len(changes):
        raise ValueError(
            f"validation='last' holds out the last rows in time, but all {n} rows have the time "
            f"{values[0]}: give times that differ, also among the rows that calibrate leaves, or "
            "validation='random'"
        )
    return order, int(changes[np.abs(changes - (n - size)).argmin()])


def times_of_rows(time: ArrayLike, n: int) -> np.ndarray:
    """Read the time of each row, as numbers or dates."""
    times = getattr(time, "dt", time)
    if getattr(times, "tz", None) is not None:  # pandas' times with a zone, as UTC
        time = times.tz_convert(None)  # pyright: ignore[reportAttributeAccessIssue]
    values = np.asarray(time)
    if values.shape != (n,):
        raise ValueError(f"time must have one value for each of the {n} rows, got {values.shape}")
    missing = values != values  # NaN and NaT differ from themselves
    if values.dtype.kind not in "iufM" or bool(missing.any()):
        raise ValueError(
            "time must be numbers or dates without missing values, got "
            f"{values.dtype}; convert it, for example by pandas.to_datetime"
        )
    return values


def columns_in_time(rows: Rows) -> frozenset[int]:
    """The places of columns that tell the time.

    They grow whenever `time` does. Where it is not given, they never fall from row to row, and have more
    than √n values.
    """
    if rows.time is None:
        grows = np.array([in_order_of(column) for column in rows.X.T])
    else:
        times = times_of_rows(rows.time, len(rows))
        order = np.argsort(times, kind="stable")
        later = times[order][1:] > times[order][:-1]
        grows = (np.diff(rows.X[order], axis=0)[later] > 0).all(0)
    return frozenset(np.flatnonzero(grows).tolist())


def in_order_of(values: np.ndarray) -> bool:
    """Tell whether values never fall from row to row, and more than √n of them are different."""
    return bool((np.diff(values) >= 0).all()) and len(np.unique(values)) ** 2 > len(values)


def _by_groups(
    n: int, groups: ArrayLike | None, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    if groups is None:
        raise ValueError(NEEDS_GROUPS)
    values = np.asarray(groups)
    if values.shape != (n,):
        raise ValueError(f"groups must have one value for each of the {n} rows, got {values.shape}")
    try:
        found, label = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            "groups must be all numbers or all text, without missing values"
        ) from error
    if len(found) < 2:
        raise ValueError(
            "validation='groups' needs two groups at least among the rows that are left to it, got one; "
            "where calibrate holds out groups first, three are needed"
        )
    return _whole_groups(label, size, rng)


def _whole_groups(
    label: np.ndarray, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw groups, numbered in `label`, until they have `size` rows: one at least, and not all."""
    count = np.bincount(label)
    most, total, chosen = max(size, count.min()), 0, np.zeros(len(count), dtype=bool)
    for group in rng.permutation(len(count)):  # those that fit, in random order
        if total + count[group] <= most:
            chosen[group], total = True, total + count[group]
    out = chosen[label]
    return np.flatnonzero(~out), np.flatnonzero(out)


WIDEST = 94
"""Characters of a line of the table, but for a few."""
FAILURES = (ValueError, ArithmeticError, MemoryError, torch.OutOfMemoryError)
"""Errors by which a candidate is out of the choice."""
MARGIN = 0.05
"""Nats by which a baseline must be better to be worth a warning."""


class ChoiceWarning(UserWarning):
    """A plain baseline predicted rows that it did not see better than any candidate."""


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
    validation : "random", "last", "groups" or "one by one"
        How the rows were held out: "one by one" where a way to fit was taken without trials, and each row
        is predicted from the others by the fitted model.
    rows, held_out : int
        The number of rows that candidates could learn from, and of those that they were measured on, at
        most 2,000 of all that were held out.
    trials : tuple of Trial
        Candidates by NLPD, then baselines by NLPD.
    added : int, default=0
        The number of rows that `partial_fit` has added to the model since.
    fits : int, default=0
        The number of fits with `warm_start` since, which have kept the choice and measured nothing.
    """

    validation: str
    rows: int
    held_out: int
    trials: tuple[Trial, ...]
    added: int = 0
    fits: int = 0

    @staticmethod
    def of(
        validation: str,
        rows: int,
        trials: Sequence[Trial],
        others: Sequence[Trial],
        held_out: int,
        chosen: str | None = None,
    ) -> Choice:
        """Put candidates and baselines in order, and mark the one chosen, by default the first."""
        order = sorted(trials, key=lambda t: (bool(t.error), t.nlpd))
        taken = order[0].name if chosen is None else chosen
        order = [replace(one, chosen=one.name == taken) for one in order]
        return Choice(validation, rows, held_out, (*order, *sorted(others, key=lambda t: t.nlpd)))

    def in_folds(self, found: Trial, rows: int) -> Choice:
        """The same with the figures of the one candidate in folds, each learnt from so many rows."""
        figures = {"rmse": found.rmse, "nlpd": found.nlpd, "cover": found.cover}
        trials = tuple(replace(t, **figures) if t.chosen else t for t in self.trials)
        return replace(self, validation="random", rows=rows, trials=trials)

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
        held = {
            "random": "at random",
            "last": "from the end",
            "groups": "in whole groups",
            "one by one": "one by one",
        }
        folds = ", in folds" if self.validation == "random" and self.held_out > self.rows else ""
        lines = [
            f"learnt from {self.rows:,} rows, measured on {self.held_out:,} held out "
            f"{held[self.validation]}{folds}",
            f"{'':2s}{'candidate':{width}s}{'RMSE':>10s}{'NLPD':>10s}{'90 % cover':>12s}{'seconds':>9s}",
        ]
        for t in self.trials:
            mark = "→ " if t.chosen else "  "
            figures = f"{t.rmse:>10.4g}{t.nlpd:>10.4g}{t.cover:>12.3f}{t.seconds:>9.1f}"
            if t.error:
                figures = f"  {shorten(t.error, WIDEST - width)}"
            lines.append(f"{mark}{t.name:{width}s}{figures}")
        lines += notes(self)
        if self.fits:
            since = f"{counted(self.fits, 'fit')} with warm_start"
            lines.append(f"figures of an earlier fit: {since} kept the choice and measured nothing")
        if self.added:
            lines.append(f"{self.added:,} rows were added since, and nothing was measured again")
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
        return scored(name, y, mean, std, time.perf_counter() - begin, baseline)
    except FAILURES as error:
        return failed(name, error, time.perf_counter() - begin, baseline)


def failed(name: str, error: Exception, seconds: float, baseline: bool = False) -> Trial:
    """Make a trial that has the reason why it could not be made instead of figures."""
    none, reason = float("nan"), " ".join(str(error).split()) or type(error).__name__
    return Trial(name, none, none, none, seconds, baseline=baseline, error=reason)


def scored(
    name: str,
    y: np.ndarray,
    mean: np.ndarray,
    std: np.ndarray,
    seconds: float,
    baseline: bool = False,
) -> Trial:
    """Score predictions against their targets."""
    rmse, nlpd = metrics.rmse(y, mean), metrics.nlpd(y, mean, np.square(std))
    return Trial(
        name, rmse, nlpd, metrics.coverage(y, mean, np.square(std)), seconds, baseline=baseline
    )


def baselines(rows: Rows, divisions: Divisions, seed: int = 0) -> list[Trial]:
    """Measure the training mean and ridge regression: what a model must beat to be worth its time.

    Ridge regression predicts a Gaussian whose standard deviation is that of its errors on a fifth of the
    training rows that it did not see. Of very many training rows it learns from some.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = rows.X, rows.y

    def mean(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        like = y[test]
        return np.full(like.shape, y[train].mean(0)), np.full(like.shape, y[train].std(0))

    def ridge(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(train) > RIDGE_ROWS:
            train = np.random.default_rng(seed).choice(train, RIDGE_ROWS, replace=False)
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 5, 17)))
        return with_spread(model, X[train], y[train], X[test], seed)

    tested = y[np.concatenate([test for _, test in divisions])]

    def trial(name: str, each: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Trial:
        return measure(name, lambda: in_parts(each, divisions), tested, baseline=True)

    return [trial("training mean", mean), trial("ridge regression", ridge)]


def in_parts(
    each: Callable[..., tuple[np.ndarray, np.ndarray]], divisions: Divisions
) -> tuple[np.ndarray, np.ndarray]:
    """Join the means and standard deviations of all parts that are predicted."""
    means, stds = zip(*(each(*division) for division in divisions), strict=True)
    return np.concatenate(means), np.concatenate(stds)


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
    train, test = hold_out(len(y), "random", inputs=X, seed=seed)
    errors = y[test] - model.fit(X[train], y[train]).predict(X[test])
    mean = np.asarray(model.fit(X, y).predict(X_test))
    spread = np.sqrt(np.mean(np.square(errors), axis=0))
    return mean, np.broadcast_to(np.maximum(spread, 1e-12 * (1.0 + np.abs(mean).max())), mean.shape)


def better_baselines_text(choice: Choice) -> str:
    """Tell the user that a baseline is better than the candidate taken."""
    best, one_by_one = choice.best, choice.validation == "one by one"
    better = " and ".join(f"{t.name} ({t.nlpd:.4g})" for t in choice.better_baselines)
    where = "where each row is predicted from others" if one_by_one else "on the rows held out"
    than = "the" if one_by_one else "the best candidate,"
    unlike = "" if one_by_one else ", or the rows held out may be unlike the others"
    return (
        f"{where}, NLPD is lower for {better} than for {than} {best.name} ({best.nlpd:.4g}): the inputs "
        f"may say little about the target{unlike}. Compare RMSE and cover in choice_ before you trust the "
        "model; where ridge regression is better, try mean='linear' or kernel='auto'"
    )
