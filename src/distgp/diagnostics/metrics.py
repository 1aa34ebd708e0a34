"""Measures of how good a prediction (`mean`, `variance`) of true values `y` is, each a float.

Give the observed variance (noise included) to score observations, the latent one to score f.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from torch import Tensor

Values: TypeAlias = np.ndarray | Tensor | list[float]


def rmse(y: Values, mean: Values) -> float:
    """Compute the root of the mean squared error, √mean((y − μ)²).

    Parameters
    ----------
    y : array-like of shape (N,)
        The observed values.
    mean : array-like of shape (N,)
        The predicted means μ.

    Returns
    -------
    float
    """
    y, mean = _arrays(y, mean)
    return math.sqrt(np.square(y - mean).mean())


def smse(y: Values, mean: Values) -> float:
    """Compute the mean squared error in units of the variance of y: 1 for predicting its mean.

    Parameters
    ----------
    y : array-like of shape (N,)
        The observed values.
    mean : array-like of shape (N,)
        The predicted means μ.

    Returns
    -------
    float
    """
    y, mean = _arrays(y, mean)
    spread = y.var()
    if spread == 0:
        raise ValueError("smse is undefined: all values of y are equal")
    return float(np.square(y - mean).mean() / spread)


def nlpd(y: Values, mean: Values, variance: Values) -> float:
    """Compute the mean negative log predictive density, the mean of −log N(y; μ, s²). Lower is better.

    Parameters
    ----------
    y : array-like of shape (N,)
        The observed values.
    mean : array-like of shape (N,)
        The predicted means μ.
    variance : array-like of shape (N,)
        The predicted variances s², positive.

    Returns
    -------
    float
    """
    y, mean, variance = _arrays(y, mean, variance)
    _check_variance(variance)
    return float(0.5 * (np.log(2 * np.pi * variance) + np.square(y - mean) / variance).mean())


def coverage(y: Values, mean: Values, variance: Values, level: float = 0.9) -> float:
    """Compute the share of y inside the central interval of a level: equal to it if calibrated.

    Parameters
    ----------
    y : array-like of shape (N,)
        The observed values.
    mean : array-like of shape (N,)
        The predicted means μ.
    variance : array-like of shape (N,)
        The predicted variances s², positive.
    level : float, default=0.9
        The probability of the interval, between 0 and 1.

    Returns
    -------
    float
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    y, mean, variance = _arrays(y, mean, variance)
    _check_variance(variance)
    half = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(variance)
    return float((np.abs(y - mean) <= half).mean())


def pinball(y: Values, quantile: Values, level: float) -> float:
    """Compute the mean of max(q(y − z), (q − 1)(y − z)) for the quantiles z predicted at the level q.

    It is lowest for the true quantiles. For the median it is half the mean absolute error.

    Parameters
    ----------
    y : array-like of shape (N,)
        The observed values.
    quantile : array-like of shape (N,)
        The predicted quantiles z.
    level : float
        The level q, between 0 and 1.

    Returns
    -------
    float
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    y, quantile = _arrays(y, quantile)
    above = y - quantile
    return float(np.maximum(level * above, (level - 1.0) * above).mean())


def wasserstein2(mean: Values, variance: Values, mean2: Values, variance2: Values) -> float:
    """Compute how far two predictions are apart: √mean((μ − μ′)² + (s − s′)²).

    It is the 2-Wasserstein distance of their marginals over the points.

    Parameters
    ----------
    mean, variance : array-like of shape (N,)
        The means μ and variances s² of one prediction.
    mean2, variance2 : array-like of shape (N,)
        The means μ′ and variances s′² of the other.

    Returns
    -------
    float
    """
    mean, variance, mean2, variance2 = _arrays(mean, variance, mean2, variance2)
    _check_variance(variance)
    _check_variance(variance2)
    gap = np.square(mean - mean2) + np.square(np.sqrt(variance) - np.sqrt(variance2))
    return math.sqrt(gap.mean())


def _arrays(*values: Values) -> tuple[np.ndarray, ...]:
    """The values as float64 arrays of one common shape, without NaN."""
    plain = (v.detach().cpu() if isinstance(v, Tensor) else v for v in values)
    arrays = tuple(np.asarray(v, dtype=np.float64) for v in plain)
    if len({array.shape for array in arrays}) != 1 or arrays[0].size == 0:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise ValueError(f"expected values of one shape, at least one each, got {shapes}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("values must be finite, found NaN or infinity")
    return arrays


def _check_variance(variance: np.ndarray) -> None:
    if (variance <= 0).any():
        raise ValueError(f"variances must be positive, the smallest is {variance.min():g}")
