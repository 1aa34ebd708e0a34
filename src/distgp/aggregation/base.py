"""What an aggregator is, and what it makes of an ensemble: one posterior."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from distgp.aggregation.ensemble import Ensemble
from distgp.checks import is_integer, is_number
from distgp.experts import Prediction
from distgp.experts.base import in_chunks, latent_variance
from distgp.warn import warn_user

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Space: TypeAlias = Literal["latent", "observed"]
"""Whether experts are combined as predictions of f, or of y with the noise inside every variance."""
PerExpert = TypeVar("PerExpert", bound="DataclassInstance")


MOST_ROWS = 2**40
"""More rows than any option can mean."""


class WeightsWarning(UserWarning):
    """The weights of an aggregator are so large that its prediction is not to be trusted."""


class AggregationError(ValueError):
    """An aggregator cannot serve these experts."""


class Aggregator(ABC):
    """A way to make one posterior out of many, with its options."""

    name: ClassVar[str]
    serves: ClassVar[tuple[str, ...]] = ("exact", "sparse")
    """The kinds of experts that it can combine."""

    @property
    def needs_one_prior(self) -> bool:
        """Whether the experts must share their hyperparameters."""
        return False

    @abstractmethod
    def combine(self, ensemble: Ensemble) -> Combined:
        """Compute everything that does not depend on test points, once.

        Parameters
        ----------
        ensemble : Ensemble
            The conditioned experts.

        Returns
        -------
        Combined

        Raises
        ------
        AggregationError
            Where the aggregator cannot serve these experts; the message names those that can.
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class Combined(ABC):
    """One posterior made of many experts'.

    It holds its own numbers only, so that it can be saved as it is; the experts are handed to it
    whenever it predicts.

    Parameters
    ----------
    noise : Tensor
        The noise variance σ² of an observation.
    weights : Tensor of shape (M,), optional
        The weights β, one per expert; None where the weights change from point to point.
    central : Tensor of shape (m_c, d), optional
        The central inputs, where the aggregator has any.
    """

    noise: Tensor
    weights: Tensor | None = None
    central: Tensor | None = None

    @property
    def space(self) -> Space:
        """Whether `predict_chunk` predicts the latent f or an observation y."""
        return "latent"

    @abstractmethod
    def mean_chunk(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The mean at all rows of X at once, without variance work where it can be avoided."""

    @abstractmethod
    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Mean and variance at all rows of X at once, of f or of y as `space` says."""

    @abstractmethod
    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor | None:
        """The covariance of f between all rows of X, up to its diagonal; None where there is none."""

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of the temporary matrices per test point: by default a handful per expert."""
        return 4 * ensemble.size

    def gathered(self) -> Combined:
        """The same posterior with nothing left on workers: itself where nothing is there."""
        return self

    def mean(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The mean at the rows of X (N, d), in bounded memory.

        Parameters
        ----------
        ensemble : Ensemble
            The experts that were combined.
        X : Tensor of shape (N, d)
            The test points.

        Returns
        -------
        Tensor of shape (N,)
        """
        return torch.cat(in_chunks(partial(self.mean_chunk, ensemble), X, self.entries(ensemble)))

    def predict(self, ensemble: Ensemble, X: Tensor, observed: bool = False) -> Prediction:
        """Mean and variance at the rows of X (N, d), in bounded memory.

        An aggregator in observed space predicts y. Its latent variance is that less the noise, and at
        the floor wherever noise that was counted M times has brought it below the noise.

        Parameters
        ----------
        ensemble : Ensemble
            The experts that were combined.
        X : Tensor of shape (N, d)
            The test points.
        observed : bool, default=False
            Whether to predict y = f + noise instead of the latent f.

        Returns
        -------
        Prediction
        """
        parts = in_chunks(partial(self.predict_chunk, ensemble), X, self.entries(ensemble))
        mean = torch.cat([part.mean for part in parts])
        variance = torch.cat([part.variance for part in parts])
        noise = self.noise.to(mean.dtype)
        if observed and self.space == "latent":
            variance = variance + noise
        elif not observed and self.space == "observed":
            variance = torch.maximum(variance - noise, torch.finfo(mean.dtype).eps * variance)
        return Prediction(mean, variance)

    def covariance(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The covariance of f between all rows of X, where the aggregator has one.

        Its diagonal is the variance of `predict`. Most aggregators predict each point by itself.

        Parameters
        ----------
        ensemble : Ensemble
            The experts that were combined.
        X : Tensor of shape (N, d)
            The test points.

        Returns
        -------
        Tensor of shape (N, N)

        Raises
        ------
        AggregationError
            Where the aggregator has no covariance between points.
        """
        with torch.no_grad():
            between = self.between(ensemble, X)
            if between is None:
                raise AggregationError(
                    "this aggregator predicts each point by itself and has no covariance between "
                    "points; pooled, nearest, two-level with variance='central', opt with shared "
                    "inducing inputs, and one expert under poe, gpoe, softmax-poe, bcm, rbcm, "
                    "min-variance or barycentre have one"
                )
            return with_diagonal(between, self.predict(ensemble, X).variance)

    @property
    def weight_sum(self) -> float | None:
        """Σβ: near 1 where the experts agree on the scale of f."""
        return None if self.weights is None else float(self.weights.sum())

    @property
    def weight_norm(self) -> float | None:
        """Σ|β|: how much errors of the experts can be amplified."""
        return None if self.weights is None else float(self.weights.abs().sum())


class Pointwise(Combined):
    """A posterior whose weights change from point to point, with the experts' precisions."""

    def mean_chunk(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The mean of the whole prediction: the weights are made of the variances."""
        return self.predict_chunk(ensemble, X).mean

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor | None:
        """None, since every point has its own weights."""
        del ensemble, X


def with_diagonal(covariance: Tensor, variance: Tensor) -> Tensor:
    """The same correlations with these variances: still positive semi-definite."""
    diagonal = covariance.diagonal()
    root = (variance / latent_variance(diagonal, torch.zeros_like(diagonal))).sqrt()
    scaled = root[:, None] * covariance * root[None, :]
    scaled.diagonal().copy_(variance)
    return 0.5 * (scaled + scaled.mT)


def joined(parts: list[PerExpert]) -> PerExpert:
    """One batch of what the workers' experts say: tensors with one row per expert, concatenated."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse an option that does not exist, naming those that do."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def check_count(name: str, value: int | None) -> None:
    """Refuse what is no number of rows, 1 or more."""
    if value is not None and not (is_integer(value) and 1 <= value <= MOST_ROWS):
        raise ValueError(f"{name} must be at least 1, got {value!r}")


def check_temperature(value: float) -> None:
    """Refuse a temperature that is negative, infinite or NaN."""
    if not is_number(value) or not 0 <= value < sys.float_info.max:
        raise ValueError(f"temperature must be finite and not negative, got {value!r}")


def check_ridge(value: float | None) -> None:
    """Refuse a ridge that is negative, infinite or NaN."""
    if value is not None and not (is_number(value) and 0 <= value < sys.float_info.max):
        raise ValueError(f"ridge must be finite and not negative, got {value!r}")


def require(condition: bool, aggregator: str, why: str, alternatives: str) -> None:
    """Refuse experts that the aggregator cannot serve, naming aggregators that can."""
    if not condition:
        raise AggregationError(f"{aggregator} {why}; use {alternatives} instead")


def require_one_prior(ensemble: Ensemble, aggregator: str) -> None:
    """Refuse experts with different hyperparameters."""
    require(
        ensemble.shares_hyperparameters,
        aggregator,
        "needs one prior, but these experts have different hyperparameters",
        "poe, gpoe, softmax-poe, bcm, rbcm, grbcm, min-variance, barycentre, opt or opt-local",
    )


def warn_of_large_weights(name: str, weights: Tensor, limit: float) -> None:
    """Warn when Σ|β| says that the weights are not to be trusted."""
    norm = float(weights.abs().sum())
    if not norm <= limit:
        warn_user(
            f"the weights of {name} add up to {float(weights.sum()):.3g} but their absolute values "
            f"to {norm:.3g}: errors of single experts are amplified that much and the prediction is "
            "not to be trusted; use a ridge, fewer experts, or two-level",
            WeightsWarning,
        )
