"""Transforms of the target: a GP on g(y) instead of y, and its predictions mapped back.

A Gaussian z ~ N(μ, s²) of g(y) gives y = g⁻¹(z). Quantiles are mapped exactly, since g is increasing.
The mean is E g⁻¹(z), which is not g⁻¹(μ): for the logarithm exp(μ + s²/2), for Yeo and Johnson's
transform by quadrature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import optimize
from scipy.special import boxcox1p, roots_hermitenorm
from scipy.stats import skew

SKEWED = 1.0
"""Skewness of positive targets from which on their logarithm is tried."""
NODES = 64
"""Points of the Gauss–Hermite rule for moments."""
POWERS = (0.0, 2.0)
"""The range in which λ of Yeo and Johnson is looked for. Beyond it the range of g is bounded on one side,
so that no normal distribution of g(y) has a mean of y."""


class Transform(ABC):
    """An increasing function g of the target."""

    name: ClassVar[str]

    @abstractmethod
    def forward(self, y: np.ndarray) -> np.ndarray:
        """Compute z = g(y)."""

    @abstractmethod
    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Compute y = g⁻¹(z)."""

    @abstractmethod
    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """Compute log g′(y), which turns a density of z into one of y."""

    @staticmethod
    @abstractmethod
    def check(y: np.ndarray) -> None:
        """Refuse targets that g is not defined for."""

    def moments(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute the mean and variance of g⁻¹(z), z ~ N(mean, variance), by Gauss–Hermite quadrature."""
        nodes, weights = roots_hermitenorm(NODES)
        weights = weights / weights.sum()
        values = self.inverse(mean[..., None] + np.sqrt(variance)[..., None] * nodes)
        with np.errstate(over="ignore", invalid="ignore"):
            first = values @ weights
            return first, np.square(values - first[..., None]) @ weights


@dataclass(frozen=True)
class Log(Transform):
    """g(y) = log y, for positive targets."""

    name: ClassVar[str] = "log"

    def forward(self, y: np.ndarray) -> np.ndarray:
        """Compute log y."""
        return np.log(y)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Compute exp z; infinite where that is too large to compute."""
        with np.errstate(over="ignore"):
            return np.exp(z)

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """Compute log (1/y)."""
        return -np.log(y)

    @staticmethod
    def check(y: np.ndarray) -> None:
        """Refuse targets that are not positive."""
        if not (y > 0).all():
            raise ValueError(
                "target_transform='log' needs positive targets, got "
                f"{int((y <= 0).sum())} of {y.size} at or below 0 (the least is {y.min():g}): take "
                "'yeo-johnson', or shift the target"
            )

    def moments(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute the log-normal's: exp(μ + s²/2) and (exp(s²) − 1) exp(2μ + s²)."""
        with np.errstate(over="ignore", invalid="ignore"):
            first = np.exp(mean + 0.5 * variance)
            return first, np.expm1(variance) * np.square(first)


@dataclass(frozen=True)
class YeoJohnson(Transform):
    """The power transform of Yeo and Johnson (2000), for targets of any sign.

    g(y) = ((1 + y)^λ − 1) / λ for y ≥ 0 and −((1 − y)^(2−λ) − 1) / (2 − λ) below, with logarithms at
    λ = 0 and λ = 2. The target is divided by a scale, its root mean square, first, so that the power λ
    does not depend on the units.
    """

    name: ClassVar[str] = "yeo-johnson"
    power: float
    scale: float

    @staticmethod
    def of(y: np.ndarray, weight: np.ndarray | None = None) -> YeoJohnson:
        """Find λ in [0, 2] by maximum likelihood of a normal distribution of g(y).

        Every target counts as `weight` copies of it.
        """
        if weight is not None and (weight == weight[0]).all():
            weight = None
        with np.errstate(over="ignore"):
            scale = float(np.sqrt(np.average(np.square(y), weights=weight))) or 1.0
        if not np.isfinite(scale):
            raise ValueError(
                f"targets as large as {np.abs(y).max():.3g} cannot be transformed: give them in other units"
            )

        def loss(power: float) -> float:
            transform = YeoJohnson(power, scale)
            z = transform.forward(y)
            spread = np.average(np.square(z - np.average(z, weights=weight)), weights=weight)
            if not 0.0 < spread < np.inf:
                return np.inf
            slope = np.average(transform.log_slope(y), weights=weight)
            return float(0.5 * np.log(spread) - slope)

        found: float = optimize.minimize_scalar(loss, bounds=POWERS, method="bounded").x  # pyright: ignore[reportAttributeAccessIssue]
        return YeoJohnson(float(found), scale)

    def forward(self, y: np.ndarray) -> np.ndarray:
        """Compute g(y)."""
        y = np.asarray(y, dtype=np.float64) / self.scale
        up, down = np.maximum(y, 0.0), np.maximum(-y, 0.0)
        return np.where(y >= 0, boxcox1p(up, self.power), -boxcox1p(down, 2.0 - self.power))

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Compute g⁻¹(z); infinite beyond the range of g, which is bounded where λ < 0 or λ > 2."""
        z = np.asarray(z, dtype=np.float64)
        up = _inverse(np.maximum(z, 0.0), self.power)
        down = _inverse(np.maximum(-z, 0.0), 2.0 - self.power)
        return self.scale * np.where(z >= 0, up, -down)

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """Compute log g′(y)."""
        y = np.asarray(y, dtype=np.float64) / self.scale
        up, down = np.log1p(np.maximum(y, 0.0)), np.log1p(np.maximum(-y, 0.0))
        return (self.power - 1.0) * up + (1.0 - self.power) * down - np.log(self.scale)

    @staticmethod
    def check(y: np.ndarray) -> None:
        """Take any targets."""


def _inverse(value: np.ndarray, power: float) -> np.ndarray:
    """Invert `boxcox1p`, of values ≥ 0; infinite beyond its range.

    scipy's inv_boxcox1p returns the value itself, not its exponential, for powers close to 0.
    """
    if power == 0.0:
        with np.errstate(over="ignore"):
            return np.expm1(value)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = np.expm1(np.log1p(power * value) / power)
    return np.where(power * value > -1.0, found, np.inf)


MAKERS: dict[str, Callable[[np.ndarray, np.ndarray | None], Transform]] = {
    Log.name: lambda y, weight: Log(),  # noqa: ARG005
    YeoJohnson.name: YeoJohnson.of,
}
TRANSFORMS = tuple(MAKERS)
"""The values of `target_transform`, beside None."""


def asks_for_log(targets: np.ndarray) -> bool:
    """Tell whether targets (n, targets) are all positive, and so skewed that their logarithm may help."""
    if not (targets > 0).all():
        return False
    before, after = skew(targets), np.abs(skew(np.log(targets)))
    return bool(((before > SKEWED) & (after < before)).all())


def check_targets(name: str, y: np.ndarray) -> None:
    """Refuse targets that the transform of a name is not defined for."""
    next(kind for kind in (Log, YeoJohnson) if kind.name == name).check(y)


def transform_of(name: str, y: np.ndarray, weight: np.ndarray | None = None) -> Transform:
    """Make the transform of a name, with what it learns of one target y, weighted."""
    made = MAKERS[name](y, weight)
    made.check(y)
    return made
