"""The figures of a way to fit that was taken at once: rows predicted without themselves."""

from __future__ import annotations

import numpy as np

from distgp.data.rows import Rows
from distgp.experts import Prediction
from distgp.experts.cost import cost_of_objective
from distgp.model import Model, TargetModel
from distgp.pipeline import Placed
from distgp.plan import Plan
from distgp.selection.residuals import Residuals
from distgp.selection.trials import Choice, baselines, divisions, scored
from distgp.training.refinement import from_nearest_others, left_out

MEASURED = 2_000
"""Rows that baselines are measured on."""
MEASURING = 0.05
"""The share of the time limit that it may take to leave out every row in turn."""


def measured_one_by_one(
    plan: Plan, rows: Rows, placed: Placed, model: Model[TargetModel], seconds: float
) -> tuple[Choice, Residuals]:
    """Measure a fitted model on rows that it predicts without themselves, with baselines beside it.

    One exact GP leaves out every row in turn, if that costs little; else rows are drawn, and each is
    predicted from its nearest others, which is a little worse than the model is.
    """
    cheap = cost_of_objective(len(rows), rows.X.shape[1], plan.like).seconds
    every = not plan.kind.joins_rows and cheap <= MEASURING * plan.time_limit
    parts = [
        _predicted(plan, rows, placed, model, column, every) for column in range(len(model.targets))
    ]
    places = parts[0][0]
    y, mean, std = (np.stack(kind, -1) for kind in list(zip(*parts, strict=True))[1:])
    name = "exact GP" if not plan.kind.joins_rows else "nearest rows with the exact mean"
    trial = scored(name, y, mean, std, seconds)
    others = baselines(rows, divisions(rows, "random", MEASURED, plan.seed), plan.seed)
    choice = Choice.of("one by one", len(rows), [trial], others, len(y))
    return choice, Residuals.of(places, y, mean, std)


def _predicted(
    plan: Plan, rows: Rows, placed: Placed, model: Model[TargetModel], column: int, every: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Places, targets, means and standard deviations of rows that are predicted without themselves."""
    shards, target = placed.of_target(column), model.targets[column]
    theta, some, found = target.parameters, None, None
    if every:
        some, found = shards.on_first(left_out, plan.kind, theta)
    if some is None or found is None:
        some, found = from_nearest_others(theta, shards, plan.seed)
    places = some.rows.cpu().numpy()
    X = rows.X[places]
    return places, target.scaling.mean(some.y, X), *_in_units(target, found, X)


def _in_units(
    target: TargetModel, found: Prediction, X: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation in the target's units."""
    return target.scaling.mean(found.mean, X), np.sqrt(target.scaling.variance(found.variance))
