"""The Gaussian likelihood: y = f + noise, with row weights and rows' own noise variances.

A row with weight w stands for w copies of itself. Together they say of f what one row with the noise
variance σ²/w says. A row may also have a noise variance σ²v of its own. So everything that experts and
aggregators need to know of weights and noise is one number per row, the factor v/w of σ².
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from distgp.data.scaling import Scaling
from distgp.data.shard import Shard

Space: TypeAlias = Literal["latent", "observed"]
"""Whether a prediction is of the function f, or of an observation y with the noise in its variance."""


def noise_factor(rows: Shard) -> Tensor | None:
    """Return the factor of σ² in each row, (*batch, n): noise / weight; None for 1 everywhere."""
    if rows.weight is None:
        return rows.noise
    return (1.0 if rows.noise is None else rows.noise) / rows.weight


def noise_of_rows(rows: Shard, noise: Tensor) -> Tensor:
    """Return the noise variance of every row, (*batch, n), given σ² (*batch,)."""
    wide, _ = torch.broadcast_tensors(noise[..., None], rows.y)
    factor = noise_factor(rows)
    return wide if factor is None else wide * factor


def copies_term(rows: Shard, noise: Tensor) -> Tensor | float:
    """Return −log p of w copies of each row less that of one row with noise σ²/w, (*batch,).

    N(y; f, σ²)ʷ = N(y; f, σ²/w) · (2πσ²)^−(w−1)/2 · w^−½, so that the difference is
    Σ ½(w − 1) log 2πσ² + ½ log w.
    """
    if rows.weight is None:
        return 0.0
    variance = noise[..., None] * (1.0 if rows.noise is None else rows.noise)
    each = (rows.weight - 1.0) * (2.0 * math.pi * variance).log() + rows.weight.log()
    return 0.5 * (each if rows.mask is None else torch.where(rows.mask, each, 0.0)).sum(-1)


def own_noise_term(rows: Shard) -> Tensor | float:
    """Return ½Σ w log v, (*batch,): the part of −log p that rows' own noise variances σ²v have in it.

    It is the part of ½Σ w log 2πσ²v that does not change with σ², for those who count ½Σ w log 2πσ².
    """
    if rows.noise is None:
        return 0.0
    each = rows.noise.double().log()
    each = each if rows.weight is None else each * rows.weight
    return 0.5 * (each if rows.mask is None else torch.where(rows.mask, each, 0.0)).sum(-1)


def in_noise_units(rows: Shard, values: Tensor) -> tuple[Tensor, Tensor]:
    """Divide functions' values (M, n) on rows, and the targets, by the root of each row's noise / σ²."""
    y = rows.y.to(values.dtype)
    factor = noise_factor(rows)
    if factor is None:
        return values, y
    root = factor.to(values.dtype).rsqrt()
    return values * root, y * root


def standardised_noise(batch: Shard, variance: float) -> Shard:
    """Divide the noise variances of a shard's rows by the variance that is the unit of its targets."""
    assert batch.noise is not None
    return replace(batch, noise=batch.noise / variance)


@dataclass(frozen=True, eq=False)
class Gaussian:
    """y = f + noise, as a fitted model predicts it.

    The `noise` σ², in the units of the standardised target, is the noise variance of an observation, or
    a factor of the training rows' own noise variances where they had some; `row_noise` is then the mean
    of these, standardised.
    """

    noise: Tensor
    row_noise: float | None = None

    def latent(self, variance: Tensor, space: Space) -> Tensor:
        """Return the variance of f from that which an aggregator predicts in its space.

        Noise that was counted M times can bring an observed variance below the noise: hence the floor.
        """
        if space == "latent":
            return variance
        floor = torch.finfo(variance.dtype).eps * variance
        return torch.maximum(variance - self.noise.to(variance.dtype), floor)

    def observed(self, variance: Tensor, space: Space) -> Tensor:
        """Return the variance of an observation y from that which an aggregator predicts."""
        return variance if space == "observed" else variance + self.noise.to(variance.dtype)

    def predicted_variance(
        self,
        variance: Tensor,
        space: Space,
        scaling: Scaling,
        latent: bool,
        given: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the variance of f, or of an observation, in the target's units.

        The noise of the observations is as `given`, in these units, or that of the training rows.
        """
        if latent:
            return scaling.variance(self.latent(variance, space))
        if given is None and self.row_noise is None:
            return scaling.variance(self.observed(variance, space))
        of_f = scaling.variance(self.latent(variance, space))
        return of_f + self.noise_variance(len(variance), scaling, given)

    def of_observation(
        self, mean: np.ndarray, variance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of y from those of f with the noise in it: here they are the same."""
        return mean, variance

    def noise_variance(
        self, n: int, scaling: Scaling, given: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the noise variance of n observations, in the target's units."""
        factor = float(self.noise)
        if given is not None:
            return given if self.row_noise is None else factor * given
        typical = 1.0 if self.row_noise is None else self.row_noise
        return np.full(n, factor * typical * scaling.y_scale**2)

    def standardised(self, n: int, scaling: Scaling, given: np.ndarray | None) -> np.ndarray | None:
        """Return the factors of σ² of n further training rows, from their noise variances."""
        if given is None:
            return None if self.row_noise is None else np.full(n, self.row_noise)
        noise = given / scaling.y_scale**2
        # Where σ² is no factor of the rows' noise, the rows' own noise takes its place.
        return noise if self.row_noise is not None else noise / float(self.noise)
