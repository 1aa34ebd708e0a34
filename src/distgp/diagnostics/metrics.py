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
    """√mean((y − μ)²)."""
    y, mean = _arrays(y, mean)
    return math.sqrt(np.square(y - mean).mean())


def smse(y: Values, mean: Values) -> float:
    """Mean squared error in units of the variance of y: 1 for predicting its mean."""
    y, mean = _arrays(y, mean)
    spread = y.var()
    if spread == 0:
        raise ValueError("smse is undefined: all values of y are equal")
    return float(np.square(y - mean).mean() / spread)


def nlpd(y: Values, mean: Values, variance: Values) -> float:
    """Mean of −log N(y; μ, s²)."""
    y, mean, variance = _arrays(y, mean, variance)
    _check_variance(variance)
    return float(0.5 * (np.log(2 * np.pi * variance) + np.square(y - mean) / variance).mean())


def coverage(y: Values, mean: Values, variance: Values, level: float = 0.9) -> float:
    """The share of y inside the central interval of this level: equal to it if calibrated."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    y, mean, variance = _arrays(y, mean, variance)
    _check_variance(variance)
    half = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(variance)
    return float((np.abs(y - mean) <= half).mean())


def pinball(y: Values, quantile: Values, level: float) -> float:
    """Mean of max(q(y − z), (q − 1)(y − z)) for the quantiles z predicted at the level q.

    It is lowest for the true quantiles. For the median it is half the mean absolute error.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    y, quantile = _arrays(y, quantile)
    above = y - quantile
    return float(np.maximum(level * above, (level - 1.0) * above).mean())


def wasserstein2(mean: Values, variance: Values, mean2: Values, variance2: Values) -> float:
    """√mean((μ − μ′)² + (s − s′)²): 2-Wasserstein distance of the marginals over test points."""
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
