"""Rows held out to measure on.

The rows held out decide what is measured. Rows drawn at random lie between the others; the last rows, or
whole groups, lie beyond them, as tomorrow's rows will. A likelihood of the training rows cannot know
which of the two is wanted, so the user says it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from distgp.data.rows import Rows
from distgp.plan import VALIDATIONS

SHARES = {"random": 0.2, "last": 1.0 / 3.0, "groups": 0.2}
"""The share of rows that is held out, by kind."""


def hold_out(
    n: int,
    validation: str,
    *,
    time: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    share: float | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Divide n rows into those to learn from, and those to hold out.

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
            len(rows), validation, time=rows.time, groups=groups, seed=seed + repeat
        )
        made.append((rng.permutation(train), rng.permutation(test)[: largest // repeats]))
    return made


def _order(time: ArrayLike, n: int) -> np.ndarray:
    """The places of rows from the earliest to the latest."""
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
    return np.argsort(values, kind="stable")


def _by_groups(
    n: int, groups: ArrayLike | None, size: int, rng: np.random.Generator
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
