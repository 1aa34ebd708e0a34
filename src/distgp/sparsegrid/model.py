"""A fitted sparse grid GP of one target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp.experts import Parameters
from distgp.scaling import Scaling
from distgp.sparsegrid.grids import Box
from distgp.sparsegrid.posterior import GridPosterior
from distgp.training import TrainingResult


@dataclass(frozen=True, eq=False)
class SparseGridModel:
    """What predicts one target, in the target's units."""

    scaling: Scaling
    box: Box
    posterior: GridPosterior
    training: TrainingResult | None

    @property
    def parameters(self) -> Parameters:
        """θ."""
        return self.posterior.parameters

    def gathered(self) -> SparseGridModel:
        """It is all here: workers hold rows only."""
        return self

    def mean(self, X: np.ndarray) -> np.ndarray:
        """The mean alone."""
        return self.scaling.mean(self.posterior.mean(self._inputs(X)))

    def predict(self, X: np.ndarray, latent: bool) -> tuple[np.ndarray, np.ndarray, int]:
        """Mean and variance, of y or of the latent f; and how often the variance was floored."""
        inputs = self._inputs(X)
        variance, floored = self._floored(self.posterior.variance(inputs), inputs)
        if not latent:
            variance = variance + self.parameters.noise
        mean = self.scaling.mean(self.posterior.mean(inputs))
        return mean, self.scaling.variance(variance), floored

    def covariance(self, X: np.ndarray, latent: bool) -> tuple[np.ndarray, np.ndarray, int]:
        """Mean, and covariance between the rows of X, its diagonal floored as the variance is."""
        inputs = self._inputs(X)
        covariance = self.posterior.covariance(inputs)
        diagonal = covariance.diagonal()
        variance, floored = self._floored(diagonal, inputs)
        lifted = variance - diagonal + (0.0 if latent else self.parameters.noise)
        mean = self.scaling.mean(self.posterior.mean(inputs))
        return mean, self.scaling.variance(linalg.add_diagonal(covariance, lifted)), floored

    def _floored(self, variance: Tensor, inputs: Tensor) -> tuple[Tensor, int]:
        floor = self.posterior.floor(inputs)
        return torch.maximum(variance, floor), int((variance < floor).sum())

    def _inputs(self, X: np.ndarray) -> Tensor:
        return self.scaling.inputs(X, self.parameters.noise)
