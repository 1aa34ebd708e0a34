"""Rows with the same inputs: they are held out together, and many of them are worth a warning.

A row that is held out while a copy of it stays is no test: the model has seen its target.
"""

from __future__ import annotations

import numpy as np

from distgp._util.checks import warn_user
from distgp.data.repeats import copies_within, hashes
from distgp.data.rows import Rows
from distgp.plan import Plan

NOTICEABLE = 0.01
"""The share of rows that repeat an earlier one from which on it is worth a warning."""

SAME_INPUTS = "have the same inputs as an earlier row. They are held out together, and"
"""How rows are told of that are like others where some are held out."""


class RepeatsWarning(UserWarning):
    """Many rows have the same inputs as another."""


def labels_of_repeats(X: np.ndarray) -> np.ndarray | None:
    """Number the different rows of X, (n,); None where no two rows are the same, or all are."""
    _, first, labels = np.unique(hashes(X), return_index=True, return_inverse=True)
    return None if len(first) in (1, len(X)) else labels


def warn_of_repeats(plan: Plan, rows: Rows) -> None:
    """Warn where more than 1 % of the rows repeat an earlier one.

    Where rows are held out at random, those with equal inputs count. Where nothing is, equal inputs are
    no harm, since a model is meant to learn from several observations: only rows count that have an equal
    target too, and so look like copies.
    """
    if _holds_out_at_random(plan):
        _tell(copies_within(rows.X), len(rows), SAME_INPUTS)
    elif plan.validation == "random" and plan.algorithm is not None:
        whole = np.column_stack([rows.X, rows.targets])
        _tell(copies_within(whole), len(rows), "repeat an earlier row, target included, and")


def warn_of_repeats_in_files(plan: Plan, copies: np.ndarray, n: int) -> None:
    """Do so for a random sample of n rows, with the number of all rows that have the inputs of each."""
    if _holds_out_at_random(plan):
        _tell(copies, n, SAME_INPUTS)


def _holds_out_at_random(plan: Plan) -> bool:
    random = plan.validation == "random" or plan.calibrate == "mondrian"
    return random and bool(plan.measures or plan.calibrate or plan.n_experts == "cv")


def _tell(copies: np.ndarray, n: int, what: str) -> None:
    """Warn by how many rows are like each of some: 1 / copies of it is the first of its kind."""
    share, about = 1.0 - float(np.mean(1.0 / copies)), "about " if len(copies) < n else ""
    if share > NOTICEABLE:
        warn_user(
            f"{about}{100 * share:.3g} % of the {n:,} rows {what} the model takes each for an observation "
            "of its own. If they are, nothing is wrong. If they are copies, remove them: they make it too "
            "certain. If rows belong together, give validation='groups' and groups=",
            RepeatsWarning,
        )
