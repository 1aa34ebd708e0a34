"""Rows with the same inputs: they are held out together, and many of them are worth a warning.

A row that is held out while a copy of it stays is no test: the model has seen its target.
"""

from __future__ import annotations

import numpy as np

from distgp._util.checks import warn_user
from distgp.data.repeats import copies_within, hashes
from distgp.plan import Plan

NOTICEABLE = 0.01
"""The share of rows that repeat an earlier one from which on it is worth a warning."""


class RepeatsWarning(UserWarning):
    """Many rows have the same inputs as another."""


def labels_of_repeats(X: np.ndarray) -> np.ndarray | None:
    """Number the different rows of X, (n,); None where no two rows are the same, or all are."""
    _, first, labels = np.unique(hashes(X), return_index=True, return_inverse=True)
    return None if len(first) in (1, len(X)) else labels


def warn_of_repeats(
    plan: Plan, X: np.ndarray, copies: np.ndarray | None = None, n: int | None = None
) -> None:
    """Warn where rows are held out at random, and more than 1 % have the same inputs as an earlier one.

    Where X is a random sample of n rows, `copies` tells how many of all have the inputs of each. One of
    these is the first, so that the mean of 1 / copies is the share of rows without an earlier one.
    """
    random = plan.validation == "random" or plan.calibrate == "mondrian"
    if not random or not (plan.measures or plan.calibrate or plan.n_experts == "cv"):
        return
    copies, n = copies_within(X) if copies is None else copies, len(X) if n is None else n
    share, about = 1.0 - float(np.mean(1.0 / copies)), "about " if len(X) < n else ""
    if share > NOTICEABLE:
        warn_user(
            f"{about}{100 * share:.3g} % of the {n:,} rows have the same inputs as an earlier row. They "
            "are held out together, and the model takes each for an observation of its own. If they are, "
            "nothing is wrong. If they are copies, remove them: they make it too certain. If rows belong "
            "together, give validation='groups' and groups=",
            RepeatsWarning,
        )
