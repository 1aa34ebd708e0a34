"""The logarithm of a skewed target, which target_transform="auto" measures beside the target itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distgp._util.checks import is_auto
from distgp.data.rows import Rows
from distgp.likelihoods.transforms import TRANSFORMS, Transform, asks_for_log, check_targets
from distgp.plan import LEAST_MEASURED, Plan
from distgp.selection.trials import Trial


def checked(plan: Plan, rows: Rows) -> Plan:
    """Refuse targets that the transform is not defined for; leave "auto" where it is worth a trial.

    That is where rows are many enough to hold some out, and their targets are positive and skewed.
    """
    name, many = plan.target_transform, len(rows) >= LEAST_MEASURED
    if name in TRANSFORMS:
        check_targets(str(name), rows.targets)
    worth = many and rows.noise is None and asks_for_log(rows.targets)
    return plan.settled({"target_transform": None}) if is_auto(name) and not worth else plan


def of_target(
    trial: Trial,
    densities: np.ndarray,
    y: np.ndarray,
    predicted: Sequence[np.ndarray],
    transforms: Sequence[Transform | None],
) -> tuple[Trial, np.ndarray]:
    """Turn figures and log densities of transformed targets into those of the targets y themselves."""
    columns = [values.reshape(len(y), -1).T for values in (y, *predicted)]
    parts = [(g, *one) for g, *one in zip(transforms, *columns, strict=True) if g is not None]
    slope = np.sum([g.log_slope(values) for g, values, _, _ in parts], axis=0)
    errors = [values - g.moments(mean, variance)[0] for g, values, mean, variance in parts]
    rmse = float(np.sqrt(np.mean(np.square(errors))))
    nlpd = trial.nlpd - float(slope.mean()) / len(parts)
    return replace(trial, rmse=rmse, nlpd=nlpd), densities + slope
