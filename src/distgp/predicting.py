"""Predictions of a model, in the units of the data: moments, quantiles, intervals, parts and draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from distgp.aggregation import Aggregator, default_aggregator
from distgp.data.rows import Rows
from distgp.diagnostics import metrics
from distgp.diagnostics.calibration import Calibration, warn_of_negative
from distgp.diagnostics.novelty import warn_of_novelty
from distgp.model import Model, Points, TargetModel
from distgp.plan import Plan, refuse_transformed_noise


def points(
    model: Model[TargetModel],
    X: np.ndarray,
    latent: bool = False,
    noise: np.ndarray | None = None,
    *,
    warn: bool = True,
) -> Points:
    """Standardise points to predict; warns where many are unlike the training rows."""
    target = model.targets[0]
    refuse_transformed_noise(noise is not None and target.transform is not None)
    inputs = target.scaling.inputs(X, target.parameters.noise)
    if warn and model.inputs is not None:
        warn_of_novelty(model.inputs, inputs)
    return Points(X, inputs, latent, noise)


def predict(
    model: Model[TargetModel],
    X: np.ndarray,
    what: Literal["mean", "variance", "covariance"] = "variance",
    *,
    latent: bool = False,
    noise: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Predict at the rows of X, in the targets' units.

    The mean is alone, without variance work, or has the variance or the covariance beside it: of f
    where `latent`, else of an observation, whose noise variances may be given. Several targets are in
    the last dimension.
    """
    at = points(model, X, latent, noise)
    if what == "mean":
        return model.columns([(target.mean(at),) for target in model.targets])
    if what == "covariance":
        return model.columns([target.covariance(at) for target in model.targets])
    return model.columns([target.predict(at) for target in model.targets])


def predict_gaussian(
    model: Model[TargetModel],
    X: np.ndarray,
    *,
    latent: bool = False,
    noise: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Predict mean and variance of that which is Gaussian: the target, or its transform."""
    at = points(model, X, latent, noise)
    return model.columns([target.gaussian(at) for target in model.targets])


def quantiles(
    model: Model[TargetModel],
    X: np.ndarray,
    levels: Sequence[float],
    groups: ArrayLike | None,
    *,
    latent: bool = False,
    noise: np.ndarray | None = None,
) -> np.ndarray:
    """Quantiles at these probabilities, (N, levels) or (N, targets, levels), calibrated if the model is."""
    at = points(model, X, latent, noise)
    parts = [
        target.quantiles(*target.gaussian(at), levels, groups, latent) for target in model.targets
    ]
    return parts[0] if model.one_target else np.stack(parts, 1)


def with_interval(
    model: Model[TargetModel], X: np.ndarray, levels: Sequence[float], *, latent: bool = False
) -> list[np.ndarray]:
    """Mean, variance and two quantiles, for the price of one prediction."""
    at, parts = points(model, X, latent), []
    for target in model.targets:
        z, variance = target.gaussian(at)
        lower, upper = target.quantiles(z, variance, levels, None, latent).T
        parts.append((*target.of_target(z, variance), lower, upper))
    return model.columns(parts)


def check_bounds(model: Model[TargetModel], lower: np.ndarray) -> None:
    """Warn where lower bounds of intervals lie below 0 though no training target did."""
    for target, bounds in zip(model.targets, lower.reshape(len(lower), -1).T, strict=True):
        if target.transform is None and target.scaling.never_negative:
            warn_of_negative(bounds, target.scaling.y_scale)


def parts(model: Model[TargetModel], X: np.ndarray) -> list[list[np.ndarray]]:
    """The level that f is counted from, and the summands of f, each with mean and variance.

    They are in the targets' units; the level is the target's mean or linear trend, with variance 0.
    """
    at, found = points(model, X, latent=True), []
    for target in model.targets:
        level = np.broadcast_to(target.scaling.trend(X), (len(X),))
        found.append([(level, np.zeros(len(X))), *target.parts(at)])
    return [model.columns(one) for one in zip(*found, strict=True)]


def draw(
    model: Model[TargetModel], X: np.ndarray, size: int, seed: int, latent: bool
) -> np.ndarray:
    """Joint draws of the observations, or of f, (N, size) or (N, targets, size)."""
    at = points(model, X, latent)
    seeds = np.random.SeedSequence(seed).generate_state(len(model.targets))
    pairs = zip(model.targets, seeds, strict=True)
    draws = [target.sample(at, size, int(one)) for target, one in pairs]
    return draws[0] if model.one_target else np.stack(draws, axis=1)


def nlpd(model: Model[TargetModel], y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    """The mean negative log density of observed targets, given predictions of that which is Gaussian."""
    columns = (y[:, None] if y.ndim == 1 else y).T
    parts = [target.log_slope(one) for target, one in zip(model.targets, columns, strict=True)]
    z = np.stack([part for part, _ in parts], -1).reshape(y.shape)
    slope = float(np.mean([np.mean(log_slope) for _, log_slope in parts]))
    return metrics.nlpd(z.ravel(), mean.ravel(), variance.ravel()) - slope


def combined_by(
    model: Model[TargetModel], aggregation: Aggregator | Literal["auto"]
) -> Model[TargetModel]:
    """The model with its experts combined by another aggregator, or by that which suits them best."""
    targets = []
    for target in model.targets:
        auto = aggregation == "auto"
        method = default_aggregator(target.ensemble) if auto else aggregation
        same = method == target.aggregation
        combined = target.combined if same else method.combine(target.ensemble)
        targets.append(replace(target, combined=combined))
    return replace(model, targets=tuple(targets))


def check_calibration(model: Model[TargetModel], other: Model[TargetModel]) -> None:
    """Refuse intervals of another combination of the experts than the one that was calibrated."""
    for target, asked in zip(model.targets, other.targets, strict=True):
        if target.calibration is not None and asked.combined is not target.combined:
            raise ValueError(
                f"intervals of this model are calibrated for its own aggregation, "
                f"{target.aggregation.name!r}, and say nothing of another: leave aggregation= out, give "
                "latent=True, or fit with that aggregation"
            )


def calibrated(
    plan: Plan, model: Model[TargetModel], rows: Rows
) -> tuple[Model[TargetModel], np.ndarray]:
    """Score the model's predictions of rows that it never saw.

    With the model come errors in standard deviations, (n, targets), of that which is Gaussian.
    """
    groups = rows.groups if plan.calibrate == "mondrian" else None
    targets, residuals, at = [], [], points(model, rows.X, noise=rows.noise)
    for target, y in zip(model.targets, rows.targets.T, strict=True):
        mean, variance = target.gaussian(at)
        z, std = target.log_slope(y)[0], np.sqrt(variance)
        scores = Calibration.of(z, mean, std, groups, rows.weight)
        targets.append(replace(target, calibration=scores))
        residuals.append((z - mean) / std)
    return replace(model, targets=tuple(targets)), np.stack(residuals, -1)
