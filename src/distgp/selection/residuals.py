"""Warnings of what the residuals of the rows held out say: of rows in time, and of intervals.

Rows that are held out at random have neighbours among those that a model learns from. Where something that
the columns do not say changes slowly from row to row, that is no test of predictions of rows to come.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from distgp._util.checks import warn_user
from distgp.data.rows import Rows
from distgp.selection.repeats import labels_of_repeats
from distgp.selection.trials import Choice, Trial, in_order_of

WHITE = 0.999
"""The share of series without any correlation that are not warned of."""
NOMINAL, FAR = 0.9, 0.05
"""The cover that is asked for, and the distance from it, beyond that which chance explains, that is far."""
MORE_ROWS = (
    "Do not trust predictions yet: give more rows, or only the columns that matter; a kernel with fewer "
    "hyperparameters, such as kernel='linear', needs fewer rows"
)
"""What to do about few rows."""


class NeighboursWarning(UserWarning):
    """Rows follow each other in time, or their residuals correlate, and rows are held out at random."""


class CoverWarning(UserWarning):
    """Intervals cover far more, or far fewer, of the rows held out than they should, or rows are few."""


class Residuals(NamedTuple):
    """Standardised residuals (m, targets) of rows that a model did not see, and the places of the rows."""

    places: np.ndarray
    values: np.ndarray

    @staticmethod
    def of(places: np.ndarray, y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Residuals:
        """Divide the errors of predictions by their standard deviations."""
        return Residuals(places, ((y - mean) / std).reshape(len(places), -1))


def warn_of_neighbours(rows: Rows, found: Residuals) -> None:
    """Warn where residuals correlate in the order of the rows or of dates, or else of dates in order.

    The z of a correlation r between the m residuals and the next is r√m, and the largest of all orders and
    targets counts. Of rows with the same inputs one is taken.
    """
    labels = labels_of_repeats(rows.X[found.places])
    if labels is not None:
        found = Residuals(*(part[np.unique(labels, return_index=True)[1]] for part in found))
    orders = {"the order of the rows": found.places.astype(np.float64)}
    if (table := rows.schema.table) is not None:
        for place in sorted(table.days):
            orders[f"the order of {table.owners[place]!r}"] = rows.X[found.places, place]
    r, name = max(
        (_correlation(column[np.argsort(order, kind="stable")]), name)
        for name, order in orders.items()
        for column in found.values.T
    )
    tests = len(orders) * found.values.shape[1]
    if r * math.sqrt(len(found.places)) > norm.isf((1.0 - WHITE) / tests):
        warn_user(
            f"in {name}, residuals of rows held out correlate with the next ({r:.2f}): something changes "
            "slowly that the columns do not say. Rows held out at random have neighbours among those "
            "learnt from, so that figures and intervals hold between these rows, and not for rows to "
            "come. For such rows give validation='last', with time= where the rows are not in order, or "
            "validation='groups'; a column that says what changes helps in any case",
            NeighboursWarning,
        )
    else:
        warn_of_time(rows)


def warn_of_time(rows: Rows) -> None:
    """Warn where rows that are held out at random come in the order of a column of dates."""
    table = rows.schema.table
    places = () if table is None else sorted(table.days)
    ordered = (place for place in places if in_order_of(rows.X[:, place]))
    if table is not None and (place := next(ordered, None)) is not None:
        warn_user(
            f"rows come in the order of {table.owners[place]!r}, and are held out at random, among "
            "neighbours in time that are learnt from: figures and intervals hold between these rows, and "
            "are too good for rows to come. To forecast such rows, give validation='last'. If the rows "
            "to predict lie between these, nothing is wrong",
            NeighboursWarning,
        )


def _correlation(values: np.ndarray) -> float:
    """Return the correlation of values with the next; 0 where they do not vary."""
    values = values - values.mean()
    total = float(values @ values)
    return float(values[:-1] @ values[1:]) / total if 0.0 < total < math.inf else 0.0


def warn_of_cover(choice: Choice) -> None:
    """Warn where the cover of the candidate taken is far from 90 %, by more than chance explains."""
    cover = choice.best.cover
    if abs(cover - NOMINAL) > _far_for(choice.held_out):
        wide = "narrow" if cover < NOMINAL else "wide"
        warn_user(
            f"intervals are too {wide}: those of 90 % hold {100 * cover:.0f} % of the {choice.held_out:,} "
            f"rows held out, predicted by {choice.best.name}. Where coverage matters, give "
            "calibrate='conformal'; a skewed target may need a target_transform",
            CoverWarning,
        )


def _far_for(m: int) -> float:
    """Return the distance from 90 % that is far, and more than chance explains, for the cover of m rows."""
    return FAR + float(norm.isf((1.0 - WHITE) / 2)) * math.sqrt(NOMINAL * (1.0 - NOMINAL) / m)


def warn_of_few_rows(found: Trial, plain: Trial, n: int, d: int, calibrating: int = 0) -> None:
    """Warn where n rows, predicted in folds, show that they are too few for d columns.

    That is where the intervals hold far fewer of them than they should, where the mean and the variance of
    the other targets predict them as well, or where nothing can be learnt without a fold of them. Intervals
    that are calibrated, on so many other rows, hold what they should in any case.
    """
    narrow = found.cover < NOMINAL - _far_for(n) and not calibrating
    if not (found.error or narrow or found.nlpd >= plain.nlpd):
        return
    measured = f"nothing could be learnt without a fifth of them ({found.error})"
    if not found.error:
        cover = f"90 % intervals hold {100 * found.cover:.0f} % of the targets, and "
        measured = (
            f"in folds that were not learnt from, {'' if calibrating else cover}NLPD is {found.nlpd:.4g}, "
            f"where it is {plain.nlpd:.4g} for the mean of the targets, without any column"
        )
    left = f", left of {n + calibrating:,} by calibrate," if calibrating else ""
    warn_user(
        f"{n:,} rows{left} seem too few for {d:,} columns: {measured}. {MORE_ROWS}", CoverWarning
    )


def warn_of_hardly_any_rows(n: int, d: int, least: int) -> None:
    """Warn of fewer rows than the least of which anything can be measured."""
    if n < least:
        said = f"{n:,} rows, fewer than the {d:,} columns," if n < d else f"{n:,} rows"
        warn_user(
            f"{said} are too few to learn from, and to measure how well that went. {MORE_ROWS}",
            CoverWarning,
        )
