"""A fitted model of one target: scaling, experts, and their combination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation import Aggregator, Combined, Ensemble
from distgp.data.scaling import Scaling
from distgp.experts import Parameters, Posterior
from distgp.novelty import Inputs
from distgp.training import TrainingResult


@dataclass(frozen=True, eq=False)
class Model:
    """All that predicts one target, in the target's units, and all that a file holds of it.

    Parameters
    ----------
    scaling : Scaling
        The units of the data.
    ensemble : Ensemble
        The conditioned experts.
    aggregation : Aggregator
        How they are combined.
    combined : Combined
        The combination, computed once.
    training : TrainingResult or None
        How θ was found.
    inputs : Inputs, optional
        What the training inputs look like; None in files of earlier versions.
    """

    scaling: Scaling
    ensemble: Ensemble
    aggregation: Aggregator
    combined: Combined
    training: TrainingResult | None
    inputs: Inputs | None = None

    @property
    def parameters(self) -> Parameters:
        """θ of all experts, with batch dimensions where they differ."""
        return self.ensemble.parameters

    def mean(self, X: np.ndarray, combined: Combined | None = None) -> np.ndarray:
        """The mean at the rows of X, without variance work where it can be avoided.

        Parameters
        ----------
        X : ndarray of shape (N, d)
            Points in the units of the data.
        combined : Combined, optional
            Another combination of the same experts than the model's own.

        Returns
        -------
        ndarray of shape (N,)
        """
        chosen = combined or self.combined
        return self.scaling.mean(chosen.mean(self.ensemble, self._inputs(X)), X)

    def predict(
        self, X: np.ndarray, latent: bool, combined: Combined | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance at the rows of X, of an observation y or of the latent f."""
        chosen = combined or self.combined
        out = chosen.predict(self.ensemble, self._inputs(X), observed=not latent)
        return self.scaling.mean(out.mean, X), self.scaling.variance(out.variance)

    def covariance(
        self, X: np.ndarray, latent: bool, combined: Combined | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean at the rows of X, and covariance between them."""
        mean, covariance = self._joint(X, latent, combined or self.combined)
        return self.scaling.mean(mean, X), self.scaling.variance(covariance)

    def sample(self, X: np.ndarray, size: int, seed: int, latent: bool) -> np.ndarray:
        """Joint draws of y, or of f, at the rows of X, (N, size)."""
        mean, covariance = self._joint(X, latent, self.combined)
        covariance = covariance.double()
        L = linalg.cholesky(covariance, "the covariance between test points", singular=True)
        normal = torch.as_tensor(np.random.default_rng(seed).standard_normal((len(X), size)))
        return self.scaling.mean(mean[:, None] + L @ normal.to(L), X)

    def gathered(self) -> Model:
        """The same model with its experts in this process."""
        return replace(self, ensemble=self.ensemble.gathered(), combined=self.combined.gathered())

    def with_expert(
        self, posterior: Posterior, aggregation: Callable[[Ensemble], Aggregator]
    ) -> Model:
        """The same model with more experts, combined anew by the aggregator chosen for all."""
        ensemble = self.ensemble.extended(posterior)
        method = aggregation(ensemble)
        combined = method.combine(ensemble)
        return replace(self, ensemble=ensemble, aggregation=method, combined=combined)

    def _inputs(self, X: np.ndarray) -> Tensor:
        return self.scaling.inputs(X, self.parameters.noise)

    def _joint(self, X: np.ndarray, latent: bool, combined: Combined) -> tuple[Tensor, Tensor]:
        inputs = self._inputs(X)
        covariance = combined.covariance(self.ensemble, inputs)
        if not latent:
            covariance = linalg.add_diagonal(covariance, combined.noise.to(covariance))
        return combined.mean(self.ensemble, inputs), covariance
