"""Rows with the same inputs: they are held out together, and many of them are worth a warning.

A row that is held out while a copy of it stays is no test: the model has seen its target.
"""

from __future__ import annotations

import numpy as np

from distgp._util.checks import warn_user
from distgp.data.rows import Rows
from distgp.plan import Plan

NOTICEABLE = 0.01
"""The share of rows that repeat an earlier one from which on it is worth a warning."""
MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Odd numbers by which bits are mixed, those of the generator SplitMix64."""


class RepeatsWarning(UserWarning):
    """Many rows have the same inputs as another."""


def labels_of_repeats(X: np.ndarray) -> np.ndarray | None:
    """Number the different rows of X, (n,); None where no two rows are the same, or all are."""
    _, first, labels = np.unique(_hashes(X), return_index=True, return_inverse=True)
    return None if len(first) in (1, len(X)) else labels


def _hashes(X: np.ndarray) -> np.ndarray:
    """Hash each row of numbers to 64 bits; 0 and −0 are one number."""
    step, first, second = (np.uint64(number) for number in MULTIPLIERS)
    bits = (np.asarray(X, dtype=np.float64) + 0.0).view(np.uint64)
    found = np.zeros(len(X), dtype=np.uint64)
    for column in bits.T:
        found = (found + step) ^ column
        found = (found ^ (found >> np.uint64(30))) * first
        found = (found ^ (found >> np.uint64(27))) * second
        found ^= found >> np.uint64(31)
    return found


def warn_of_repeats(plan: Plan, rows: Rows) -> None:
    """Warn where rows are held out at random, and more than 1 % have the same inputs as an earlier one."""
    random = plan.validation == "random" or plan.calibrate == "mondrian"
    if not random or not (plan.measures or plan.calibrate or plan.n_experts == "cv"):
        return
    share = 1.0 - len(np.unique(_hashes(rows.X))) / len(rows)
    if share > NOTICEABLE:
        warn_user(
            f"{100 * share:.3g} % of the {len(rows):,} rows have the same inputs as an earlier row. They "
            "are held out together; but the model takes each for an observation of its own, so that "
            "copies make it too certain. Remove copies; where a row stands for several observations, "
            "give it once, with their mean and their number in sample_weight; where rows belong "
            "together, give validation='groups' and groups=",
            RepeatsWarning,
        )
