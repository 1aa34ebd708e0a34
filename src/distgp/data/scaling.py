"""Standardisation: zero mean and unit variance for every input column and for the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distgp import linalg

LARGEST = {torch.float64: 1e100, torch.float32: 1e15}
"""The largest standardised value: its square, divided by a short lengthscale's, does not overflow."""
MANY = 50
"""Targets, at least, of which it says something that none is negative."""
FAR = 1e15
"""Values above this are looked at: most others of their column may be lost beside them."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """The means and standard deviations of the input columns, (d,) each, and of the target.

    With a linear trend there is its slope per standard deviation of each column, (d,), too; the target's
    mean and scale then are those of what the trend leaves. Columns that the kernel takes as `latitudes`
    are checked to be some. `never_negative` tells of many training targets that none was below 0; files of
    earlier versions do not.
    """

    x_mean: np.ndarray
    x_scale: np.ndarray
    y_mean: float
    y_scale: float
    slope: np.ndarray | None = None
    latitudes: tuple[int, ...] = ()
    never_negative: bool = False

    @staticmethod
    def identity(d: int) -> Scaling:
        """Return the scaling that leaves d input columns and the target as they are."""
        return Scaling(np.zeros(d), np.ones(d), 0.0, 1.0)

    @staticmethod
    def of(
        X: np.ndarray,
        y: np.ndarray,
        normalize: bool,
        linear: bool = False,
        weight: np.ndarray | None = None,
        blocks: Sequence[Sequence[int]] = (),
    ) -> Scaling:
        """Measure inputs X (n, d) and one target y (n,), in which each row counts as `weight` copies.

        With `linear`, a linear trend is taken out; the columns of each of the `blocks` get one scale.
        """
        if not normalize:
            return Scaling.identity(X.shape[1])
        refuse_fill_values("an input", X)
        refuse_fill_values("a target", y[:, None])
        x_mean, x_scale = _spread(X, weight)
        x_scale = common_scale(x_scale, blocks)
        if linear:
            refuse_hardly_any_rows(len(y), varying(X))
        slope = _slope((X - x_mean) / x_scale, y, weight) if linear else None
        left = y if slope is None else y - ((X - x_mean) / x_scale) @ slope
        y_mean, y_scale = _spread(left[:, None], weight)
        return Scaling(x_mean, x_scale, float(y_mean[0]), float(y_scale[0]), slope)

    def inputs(self, X: np.ndarray, like: Tensor) -> Tensor:
        """Standardise inputs, in the dtype and on the device of `like`; refuse those too large for it."""
        refuse_beyond_poles(X, self.latitudes)
        return _standard("an input", X, self.x_mean, self.x_scale, like)

    def original(self, X: Tensor) -> np.ndarray:
        """Bring standardised inputs back into the units of the data."""
        return X.cpu().double().numpy() * self.x_scale + self.x_mean

    def targets(self, y: np.ndarray, X: np.ndarray, like: Tensor) -> Tensor:
        """Standardise targets y of the rows X, in the dtype and on the device of `like`."""
        return _standard("a target", y, self.trend(X), self.y_scale, like)

    def mean(self, mean: Tensor, X: np.ndarray) -> np.ndarray:
        """Bring a mean at the rows of X, (N,) or (N, draws), into the target's units."""
        trend = self.trend(X)
        shift = trend[:, None] if isinstance(trend, np.ndarray) and mean.ndim > 1 else trend
        return refuse_infinite(mean.cpu().double().numpy() * self.y_scale + shift)

    def trend(self, X: np.ndarray) -> np.ndarray | float:
        """Return the target's mean: a number, or with a linear trend one per row of X."""
        if self.slope is None:
            return self.y_mean
        return self.y_mean + ((X - self.x_mean) / self.x_scale) @ self.slope

    def variance(self, variance: Tensor) -> np.ndarray:
        """Bring a variance or covariance into the target's units, squared."""
        return refuse_infinite(variance.cpu().double().numpy() * self.y_scale**2)


def common_scale(scale: np.ndarray, blocks: Sequence[Sequence[int]]) -> np.ndarray:
    """Give the columns of 0 and 1 of each text column, a block, a common scale.

    Any two texts then are equally far apart, on average over all pairs of rows as far as in a standardised
    column of numbers: the sum of the variances p(1 − p) is half the mean square of the distance.
    """
    scale = scale.copy()
    for block in map(list, blocks):
        varying = np.where(scale[block] == 1.0, 0.0, scale[block])  # 1: a text that all rows have
        total = float(np.sqrt(np.square(varying).sum()))
        scale[block] = total if total > 0.0 else 1.0
    return scale


def scale_of(mean: np.ndarray, deviation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale of columns, which is 1 for those that do not vary, and which do vary."""
    varies = deviation > 10.0 * np.finfo(np.float64).eps * np.abs(mean)
    return np.where(varies, deviation, 1.0), varies


def _standard(
    what: str,
    given: np.ndarray,
    mean: np.ndarray | float,
    scale: np.ndarray | float,
    like: Tensor,
) -> Tensor:
    """Standardise values; refuse those beyond `LARGEST`, whose distances would overflow."""
    with np.errstate(over="ignore"):
        standard = (given - mean) / scale
    refuse_far(what, given, standard, like.dtype)
    return torch.as_tensor(standard).to(like)


def refuse_far(
    what: str, given: np.ndarray | Tensor, standard: np.ndarray | Tensor, dtype: torch.dtype
) -> None:
    """Refuse values, given and standardised, that are too large for distances in a dtype.

    Of values that are standardised at all, those beyond `FAR` standard deviations too: such a value, 1e36
    for one, stands for a missing one most likely.
    """
    size = abs(standard).flatten()
    if not len(size) or float(size.max()) <= min(FAR, LARGEST[dtype]):
        return
    moved = abs(standard - given).flatten() > 0
    if not float(size.max()) <= LARGEST[dtype] or bool((moved & (size > FAR)).any()):
        raise _too_far(what, float(given.flatten()[int(size.argmax())]), dtype)


class HardlyAnyRowsError(ValueError):
    """A linear trend in d columns would go through all n rows, which may be a part of those `given`."""

    def __init__(self, n: int, d: int, given: int | None = None) -> None:
        super().__init__(n, d, given)  # as arguments, so that it can be copied to another process
        self.n, self.d, self.given = n, d, n if given is None else given

    def __str__(self) -> str:
        held = (
            f", since others of the {self.given} rows given are held out to measure or calibrate on"
        )
        return (
            f'mean="linear" needs more rows than the {self.d} columns that vary and one more, got {self.n} '
            f"rows to learn from{'' if self.n == self.given else held}: a trend would go through all of "
            'them. Give mean="constant", or more rows'
        )


def refuse_hardly_any_rows(n: int, d: int) -> None:
    """Refuse a linear trend in d columns through all n rows, which would leave nothing of the target."""
    if n <= d + 1:
        raise HardlyAnyRowsError(n, d)


def varying(X: np.ndarray) -> int:
    """Return how many columns vary."""
    return int((np.ptp(X, axis=0) > 0).sum())


def refuse_beyond_poles(X: np.ndarray | Tensor, latitudes: Sequence[int]) -> None:
    """Refuse latitudes, columns of X (*batch, n, d), beyond 90 degrees north or south."""
    for place in latitudes:
        column = X[..., place].reshape(-1)
        worst = max(float(column.max()), float(column.min()), key=abs) if len(column) else 0.0
        if abs(worst) > 90.0:
            raise ValueError(
                f"expected latitudes from -90 to 90 degrees in column {place} of the inputs, counted from "
                f"0, got {worst:g}: a kernel with a lengthscale in km takes its two columns as longitude "
                "and latitude, in this order. Correct the row; or, if the columns are coordinates of a "
                "flat map, write the lengthscale in their unit, such as "
                "'matern32(120, columns=[x, y], isotropic)'"
            )


def _too_far(what: str, value: float, dtype: torch.dtype) -> ValueError:
    """Return the error about a value that is too far from the others."""
    return ValueError(
        f"{what} is {value:g}, too far from the training rows to compute with in "
        f"{str(dtype).removeprefix('torch.')}: if it stands for a missing value, leave the row out or "
        "correct it; otherwise give it in other units"
    )


def refuse_fill_values(what: str, columns: np.ndarray) -> None:
    """Refuse a column (of n rows) in which one value is so large that most others are the same beside it.

    Such a value, 1e36 for one, stands for a missing one most likely. Standardised by it, the others
    differ by less than the rounding error, and the column would be none. Columns with values of all
    magnitudes in between are left alone.
    """
    eps = float(np.finfo(np.float64).eps)
    for column in columns.T:
        if len(column) and max(column.max(), -column.min()) > FAR:
            with np.errstate(over="ignore"):
                away = np.abs(column - np.median(column))
                lost = away <= eps * away.max()
                rest = column[lost]
                alike = bool((away[~lost] > 1e-3 * away.max()).all()) and 2 * len(rest) > len(away)
                differ = alike and np.ptp(rest) > 10.0 * eps * np.abs(rest).max()
            if differ:
                raise _too_far(what, column[int(away.argmax())], torch.float64)


def refuse_lost(square: np.ndarray, varies: np.ndarray, largest: str = "") -> None:
    """Refuse columns that vary, but whose variances are too large or too small to compute."""
    lost = (square < np.finfo(np.float64).tiny) & varies
    if not np.isfinite(square).all() or lost.any():
        raise ValueError(
            f"values this large or small cannot be standardised{largest}: give them in other units"
        )


def refuse_infinite(values: np.ndarray, why: str = "kernel") -> np.ndarray:
    """Return predictions as they are; refuse those that overflow, as polynomials far away do."""
    if not np.isfinite(values).all():
        raise ValueError(
            "a prediction is too large to compute, since an input is too far from the training rows for "
            f"this {why}: correct the input, or leave the row out"
        )
    return values


def _slope(X: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Fit y to standardised columns by least squares, by the smallest slopes where several fit."""
    left = y - np.average(y, weights=weight)
    if weight is None:
        return linalg.least_squares(X, left)
    root = np.sqrt(weight)
    return linalg.least_squares(X * root[:, None], left * root)


def _spread(columns: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and scale of each column; a column that does not vary keeps its scale."""
    columns = columns.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        # From the first row on: the sum of many numbers that are nearly the same is wrong by more than
        # they differ.
        apart = columns - columns[0]
        offset = np.average(apart, 0, weight)
        mean, deviation = columns[0] + offset, np.sqrt(np.average((apart - offset) ** 2, 0, weight))
        square = np.square(deviation)
        varies = np.ptp(columns, axis=0) > 0
    refuse_lost(square, varies, f" (the largest is {np.abs(columns).max():.3g})")
    return mean, scale_of(mean, deviation)[0]
