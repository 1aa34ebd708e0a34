"""The figures of a way to fit that was taken at once: rows predicted without themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from distgp._util.checks import silenced
from distgp._util.progress import doing
from distgp.data.rows import Rows
from distgp.experts import Prediction
from distgp.experts.cost import cost_of_objective
from distgp.model import Model, TargetModel
from distgp.pipeline import Placed, fit, place
from distgp.plan import Plan
from distgp.predicting import predict_gaussian
from distgp.selection.candidates import EXACT_ALONE, name_of
from distgp.selection.residuals import Residuals, warn_of_few_rows
from distgp.selection.trials import (
    Choice,
    Divisions,
    Trial,
    baselines,
    divisions,
    in_parts,
    measure,
    scored,
)
from distgp.training.refinement import each_left_out, from_nearest_others

MEASURED = 2_000
"""Rows that baselines are measured on."""
MEASURING = 0.05
"""The share of the time limit that it may take to leave out every row in turn."""
LEARNT_AGAIN = 20
"""Rounds in which θ is learnt without a part of few rows, from where it ended with all of them."""


class Alone(NamedTuple):
    """Figures of a way to fit that was taken at once, and residuals of the rows that it was measured on.

    They are `comparable` with those of baselines where each row was predicted from all others.
    """

    choice: Choice
    residuals: Residuals
    comparable: bool


def measured_one_by_one(
    plan: Plan,
    rows: Rows,
    placed: Placed,
    model: Model[TargetModel],
    seconds: float,
    folds: Divisions,
) -> Alone:
    """Measure a fitted model on rows that it predicts without themselves, with baselines beside it.

    One exact GP leaves out every row in turn, if that costs little, and baselines predict the same rows in
    folds: these learn from fewer rows, and θ from all, so that what is unfair is in favour of the GP. Else
    rows are drawn, and each is predicted from its nearest others, which is worse than the model is, with
    many columns far worse. The placed rows are numbered as these are ordered.
    """
    doing("predicting rows from the others")
    every = not plan.kind.joins_rows and _affordable(plan, rows)
    columns = range(len(model.targets))
    parts = [_predicted(plan, rows, placed, model, column, every) for column in columns]
    places, every = parts[0].places, all(part.from_all for part in parts)
    y, mean, std = (np.stack(kind, -1) for kind in list(zip(*parts, strict=True))[2:])
    trial = scored(name_of(plan), y, mean, std, seconds)
    same = [(train, test[np.isin(test, places)]) for train, test in folds]
    measured = same if every else divisions(rows, "random", MEASURED, plan.seed)
    others = baselines(rows, measured, plan.seed)
    choice = Choice.of("one by one", len(rows), [trial], others, len(y))
    return Alone(choice, Residuals.of(places, y, mean, std), every)


def _affordable(plan: Plan, rows: Rows) -> bool:
    """Whether it costs little to leave out every row in turn."""
    if len(rows) <= EXACT_ALONE:
        return True
    cost = cost_of_objective(len(rows), rows.X.shape[1], plan.like)
    return cost.seconds <= MEASURING * plan.time_limit


def check_few_rows(
    plan: Plan, rows: Rows, model: Model[TargetModel], parts: Divisions, calibrating: int = 0
) -> Trial:
    """Warn where the model, learnt anew without each part of the rows, shows that they are too few.

    Rows that are left out one by one from the fitted model do not show it: they had their say in θ. So
    many other rows are held out for calibration. Returned are the figures.
    """
    doing("predicting the rows in folds")
    tested = rows.y[np.concatenate([test for _, test in parts])]
    theta = tuple(target.parameters for target in model.targets)

    def learnt(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        some = rows.take(train)
        quick = plan.trial({"n_iter": LEARNT_AGAIN}, len(some))
        quick = replace(quick, found=theta, found_in="trial")
        noise = None if rows.noise is None else rows.noise[test]
        mean, variance = predict_gaussian(fit(quick, place(quick, some)), rows.X[test], noise=noise)
        return mean, np.sqrt(variance)

    def plain(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y, like = rows.y[train], rows.y[test]
        return np.full(like.shape, y.mean(0)), np.full(like.shape, y.std(0))

    def trial(each: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Trial:
        return measure("", lambda: in_parts(each, parts), tested)

    with np.errstate(all="ignore"), silenced(Warning):
        found, mean = trial(learnt), trial(plain)
    warn_of_few_rows(found, mean, len(rows), rows.X.shape[1], calibrating)
    return found


class _Predicted(NamedTuple):
    """Rows predicted without themselves, each `from_all` others or from its nearest ones."""

    from_all: bool
    places: np.ndarray
    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def _predicted(
    plan: Plan, rows: Rows, placed: Placed, model: Model[TargetModel], column: int, every: bool
) -> _Predicted:
    """Predict rows without themselves, every one of them where that costs little."""
    shards, target = placed.of_target(column), model.targets[column]
    theta, some, found = target.parameters, None, None
    if every:
        some, found = shards.on_first(each_left_out, plan.kind, theta)
    from_all = found is not None
    if some is None or found is None:
        some, found = from_nearest_others(theta, shards, plan.seed)
    places = some.rows.cpu().numpy()
    X = rows.X[places]
    return _Predicted(
        from_all, places, target.scaling.mean(some.y, X), *_in_units(target, found, X)
    )


def _in_units(
    target: TargetModel, found: Prediction, X: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation in the target's units."""
    return target.scaling.mean(found.mean, X), np.sqrt(target.scaling.variance(found.variance))
