"""A sparse grid GP of one target: conditioned in standardised units, predicting in the target's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp.data.scaling import Scaling
from distgp.data.shard import Shard
from distgp.engines import Placement
from distgp.experts import Parameters
from distgp.sparsegrid.basis import basis_of
from distgp.sparsegrid.grids import Box, Combination, SparseGrid
from distgp.sparsegrid.posterior import GridPosterior

GAIN = 1e-3
"""Nats per row by which the bound must rise to make a higher level worth while."""


class VarianceWarning(UserWarning):
    """The combination's variance fell below its lower bound, and was set to it."""


def condition(
    parameters: Parameters,
    shards: Placement[Shard],
    box: Box,
    level: int,
    combination: Combination,
    boundary: bool = False,
) -> GridPosterior:
    """Condition the grids of a sparse grid on all rows, and combine them.

    The box is in the units and on the device of the rows. The `combination` "full" takes the sparse grid
    itself as one single grid.
    """
    grid = SparseGrid.of(level, box.d, boundary).to(box.lower.device)
    basis = basis_of(parameters.kernel, grid.whole() if combination == "full" else grid, box)
    return GridPosterior.of(parameters, basis, shards, combination)


def choose_level(
    parameters: Parameters,
    shards: Placement[Shard],
    box: Box,
    highest: int,
    boundary: bool = False,
) -> int:
    """Find the level after which the bound of the sparse grid gains less than 0.001 nats per row.

    The bound is that of the sparse grid itself, as one inducing set.
    """
    best = -float("inf")
    for level in range(1, highest + 1):
        posterior = condition(parameters, shards, box, level, "full", boundary)
        bound = float(posterior.bounds[0] / posterior.n)
        if bound < best + GAIN and level > 2:
            return level - 1
        best = max(best, bound)
    return highest


@dataclass(frozen=True, eq=False)
class SparseGridModel:
    """The model of one target, which predicts in the target's units; its box is in standardised ones.

    Its `training` tells how the hyperparameters were learnt, and is None where they were given.
    """

    scaling: Scaling
    box: Box
    posterior: GridPosterior
    training: Any  # sparse grids know nothing of training, and only hand its result on

    @property
    def parameters(self) -> Parameters:
        """Kernel and noise."""
        return self.posterior.parameters

    def gathered(self) -> SparseGridModel:
        """Return the model itself: workers hold rows alone, and all else is in this process."""
        return self

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Predict the mean alone."""
        return self.scaling.mean(self.posterior.mean(self._inputs(X)), X)

    def predict(self, X: np.ndarray, latent: bool) -> tuple[np.ndarray, np.ndarray, int]:
        """Predict mean and variance of y, or of the latent f, and count the variances floored."""
        inputs = self._inputs(X)
        variance, floored = self._floored(self.posterior.variance(inputs), inputs)
        if not latent:
            variance = variance + self.parameters.noise
        return self.mean(X), self.scaling.variance(variance), floored

    def covariance(self, X: np.ndarray, latent: bool) -> tuple[np.ndarray, np.ndarray, int]:
        """Predict mean and covariance between the rows of X, its diagonal floored as the variance is."""
        inputs = self._inputs(X)
        covariance = self.posterior.covariance(inputs)
        diagonal = covariance.diagonal()
        variance, floored = self._floored(diagonal, inputs)
        lifted = variance - diagonal + (0.0 if latent else self.parameters.noise)
        covariance = linalg.add_diagonal(covariance, lifted)
        return self.mean(X), self.scaling.variance(covariance), floored

    def _floored(self, variance: Tensor, inputs: Tensor) -> tuple[Tensor, int]:
        floor = self.posterior.floor(inputs)
        return torch.maximum(variance, floor), int((variance < floor).sum())

    def _inputs(self, X: np.ndarray) -> Tensor:
        return self.scaling.inputs(X, self.parameters.noise)
