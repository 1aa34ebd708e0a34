"""Split-conformal calibration: how far errors on held-out rows reach, in units of the prediction's own.

|y − mean| / std of n rows that the model never saw is kept. For any coverage c the ⌈(n + 1)c⌉-th smallest
of these scores takes the place of the normal quantile. If the rows to come are exchangeable with these, the
intervals cover at least c of them on average, whatever the model (Vovk et al. 2005; Lei et al. 2018). With
groups the same holds within every group ("Mondrian").

Where rows have weights w, so have their scores, and a row to come counts as much as they do on average: the
smallest score is taken with Σ w of those up to it at least c(n + 1) times the mean of w (Tibshirani et al.
2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from distgp._util.checks import warn_user

KINDS = ("conformal", "mondrian")
"""What `calibrate` may be."""
SHARE = 0.2
"""The share of the rows that calibration holds out."""
MOST_ROWS = 10_000
"""The number of rows that it holds out at most."""


MISSING = ("nan", "NaT", "<NA>")
"""Texts of the values that libraries have for what is missing."""


CLEARLY = 0.01
"""Standard deviations of the target by which a bound is clearly below 0."""


class CalibrationWarning(UserWarning):
    """Intervals do not have the calibration that the model could give them."""


class NegativeBoundWarning(UserWarning):
    """Intervals reach below 0, and no target of the training rows was negative."""


def warn_of_negative(lower: np.ndarray, scale: float) -> None:
    """Warn where lower bounds of a target that was never negative lie clearly below 0.

    That is by more than a hundredth of the target's standard deviation, `scale`.
    """
    below = int((lower < -CLEARLY * scale).sum())
    if below:
        warn_user(
            f"{below:,} of {len(lower):,} intervals reach below 0, and no target of the training rows was "
            "negative. If the target cannot be negative, fit with target_transform='log', whose intervals "
            "stay above 0 (if it can be 0, add a small number first)",
            NegativeBoundWarning,
        )


def held_out(n: int) -> int:
    """The number of n rows that calibration holds out."""
    return min(MOST_ROWS, max(1, math.floor(SHARE * n)))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores |y − mean| / std of held-out rows of one target, and of each group, in ascending order.

    Where rows have weights, `weights` are those of the scores, and `weights_by_group` those of each group.
    """

    scores: np.ndarray
    groups: tuple[str, ...] = ()
    by_group: tuple[np.ndarray, ...] = ()
    weights: np.ndarray | None = None
    weights_by_group: tuple[np.ndarray, ...] = ()

    @staticmethod
    def of(
        y: np.ndarray,
        mean: np.ndarray,
        std: np.ndarray,
        groups: ArrayLike | None = None,
        weight: np.ndarray | None = None,
    ) -> Calibration:
        """Score the predictions of held-out rows."""
        scores = np.abs(y - mean) / std
        order = np.argsort(scores, kind="stable")
        scores, weights = scores[order], None if weight is None else weight[order]
        if groups is None:
            return Calibration(scores, weights=weights)
        names = as_names(groups)[order]
        found = tuple(sorted(set(names.tolist())))
        by_group, own = (
            () if values is None else tuple(values[names == name] for name in found)
            for values in (scores, weights)
        )
        return Calibration(scores, found, by_group, weights, own)

    def multiples(self, coverage: float, n: int, groups: ArrayLike | None = None) -> np.ndarray:
        """Count the standard deviations that the interval reaches to each side of the mean, (n,).

        Groups that are unknown, or have too few rows for this coverage, get the multiple of all rows,
        and with it its weaker guarantee. It is infinite where there are too few rows of all.
        """
        whole = conformal_quantile(self.scores, coverage, self.weights)
        found = np.full(n, whole)
        if groups is None:
            return found
        names = as_names(groups)
        if names.shape != (n,):
            raise ValueError(f"expected one group for each of {n} rows, got shape {names.shape}")
        weights = self.weights_by_group or (None,) * len(self.groups)
        for name, scores, weight in zip(self.groups, self.by_group, weights, strict=True):
            own = conformal_quantile(scores, coverage, weight)
            found[names == name] = own if math.isfinite(own) else whole
        return found


def as_names(groups: ArrayLike) -> np.ndarray:
    """Name each group by its value alone; 1, 1.0 and True are one group, as are all missing values."""
    values = np.asarray(groups)
    if values.dtype.kind in "mM":
        values = values.astype(f"{values.dtype.kind}8[us]").astype(str)
    names = [_name(value) for value in values.ravel().tolist()]
    return np.array(names, dtype=str).reshape(values.shape)


def _name(value: object) -> str:
    """Return the name of one group."""
    if value is None or str(value) in MISSING:
        return "nan"
    if isinstance(value, float | bool):
        return str(int(value) if float(value).is_integer() else value)
    if isinstance(value, datetime):
        own = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return str(np.datetime64(own, "us"))
    return str(np.datetime64(value, "us") if isinstance(value, date) else value)


def conformal_quantile(
    scores: np.ndarray, coverage: float, weight: np.ndarray | None = None
) -> float:
    """The ⌈(n + 1)c⌉-th smallest of n sorted scores, by weight; infinite where there are not as many."""
    n = len(scores)
    below = np.arange(1, n + 1) if weight is None else np.cumsum(weight / weight.mean())
    place = int(np.searchsorted(below, (n + 1) * coverage - 1e-9))
    return float(scores[place]) if place < n else math.inf


def multiples(scores: Calibration | None, q: float, n: int, groups: ArrayLike | None) -> np.ndarray:
    """Count the standard deviations by which the q-quantile of n points lies above the mean, (n,)."""
    if groups is not None and (scores is None or not scores.groups):
        raise ValueError(
            "groups= is for models fitted with calibrate='mondrian', and this one was not: leave it out"
        )
    if scores is not None and scores.groups and groups is None:
        warn_user(
            "The model was calibrated by groups, and none are given: intervals are those of all groups "
            "together. Give groups=, one for each row",
            CalibrationWarning,
        )
    if scores is None or q == 0.5:
        return np.full(n, norm.ppf(q))
    return np.sign(q - 0.5) * scores.multiples(abs(2.0 * q - 1.0), n, groups)
