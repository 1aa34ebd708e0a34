"""A fitted model of one target: scaling, experts, and their combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation import Aggregator, Combined, Ensemble
from distgp.calibration import Calibration, multiples
from distgp.data.scaling import Scaling
from distgp.data.transforms import Transform
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
    transform : Transform, optional
        The experts model g(y) instead of the target y.
    calibration : Calibration, optional
        How far errors on rows held out reach.
    row_noise : float, optional
        Where the training rows had noise variances of their own: their mean, standardised. σ² is a
        factor of them then.

    Predictions of g(y), where there is a transform, are called Gaussian here: only they are.
    """

    scaling: Scaling
    ensemble: Ensemble
    aggregation: Aggregator
    combined: Combined
    training: TrainingResult | None
    inputs: Inputs | None = None
    transform: Transform | None = None
    calibration: Calibration | None = None
    row_noise: float | None = None

    @property
    def parameters(self) -> Parameters:
        """θ of all experts, with batch dimensions where they differ."""
        return self.ensemble.parameters

    def mean(self, X: np.ndarray, combined: Combined | None = None) -> np.ndarray:
        """The mean of y at the rows of X, without variance work where it can be avoided.

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
        if self.transform is not None:
            return self.predict(X, latent=False, combined=combined)[0]
        chosen = combined or self.combined
        return self.scaling.mean(chosen.mean(self.ensemble, self._inputs(X)), X)

    def predict(
        self,
        X: np.ndarray,
        latent: bool,
        combined: Combined | None = None,
        noise: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance at the rows of X, of an observation y or of the latent f.

        Parameters
        ----------
        X : ndarray of shape (N, d)
            Points in the units of the data.
        latent : bool
            Whether f is predicted instead of y.
        combined : Combined, optional
            Another combination of the same experts than the model's own.
        noise : ndarray of shape (N,), optional
            The noise variances of these observations, in the target's units.

        Returns
        -------
        mean, variance : ndarray of shape (N,)
        """
        return self.of_target(*self.gaussian(X, latent, combined, noise))

    def of_target(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y from those of g(y)."""
        if self.transform is None:
            return mean, variance
        return self.transform.moments(mean, variance)

    def quantiles(
        self,
        mean: np.ndarray,
        variance: np.ndarray,
        levels: Sequence[float],
        groups: Any,
        latent: bool,
    ) -> np.ndarray:
        """Quantiles of y at these probabilities from mean and variance of g(y), (N, levels).

        Those of observations are calibrated where the model is.
        """
        scores = None if latent else self.calibration
        steps = [multiples(scores, level, len(mean), groups) for level in levels]
        found = mean[:, None] + np.sqrt(variance)[:, None] * np.stack(steps, -1)
        return found if self.transform is None else self.transform.inverse(found)

    def gaussian(
        self,
        X: np.ndarray,
        latent: bool,
        combined: Combined | None = None,
        noise: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of g(y), as `predict` has them of y."""
        chosen, own = combined or self.combined, noise is not None or self.row_noise is not None
        out = chosen.predict(self.ensemble, self._inputs(X), observed=not latent and not own)
        variance = self.scaling.variance(out.variance)
        if own and not latent:
            variance = variance + self._observed_noise(chosen, len(X), noise)
        return self.scaling.mean(out.mean, X), variance

    def covariance(
        self,
        X: np.ndarray,
        latent: bool,
        combined: Combined | None = None,
        noise: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean at the rows of X, and covariance between them."""
        if self.transform is not None:
            raise ValueError(
                "return_cov is of Gaussian predictions, and with target_transform they are not: draw "
                "from them with sample_y"
            )
        mean, covariance = self._joint(X, latent, combined or self.combined, noise)
        return self.scaling.mean(mean, X), covariance

    def sample(self, X: np.ndarray, size: int, seed: int, latent: bool) -> np.ndarray:
        """Joint draws of y, or of f, at the rows of X, (N, size)."""
        mean, covariance = self._joint(X, latent, self.combined, None)
        wide = torch.as_tensor(covariance)
        L = linalg.cholesky(wide, "the covariance between test points", singular=True)
        normal = torch.as_tensor(np.random.default_rng(seed).standard_normal((len(X), size)))
        drawn = self.scaling.mean(mean, X)[:, None] + (L @ normal).numpy()
        return drawn if self.transform is None else self.transform.inverse(drawn)

    def gathered(self) -> Model:
        """The same model with its experts in this process."""
        return replace(self, ensemble=self.ensemble.gathered(), combined=self.combined.gathered())

    def with_expert(
        self, posterior: Posterior, aggregation: Callable[[Ensemble], Aggregator]
    ) -> Model:
        """The same model with more experts, combined anew by the aggregator chosen for all."""
        return self._with(self.ensemble.extended(posterior), aggregation)

    def without_experts(
        self, which: Sequence[int], aggregation: Callable[[Ensemble], Aggregator]
    ) -> Model:
        """The same model without these experts, the others combined anew."""
        return self._with(self.ensemble.without(which), aggregation)

    def _with(self, ensemble: Ensemble, aggregation: Callable[[Ensemble], Aggregator]) -> Model:
        method = aggregation(ensemble)
        combined = method.combine(ensemble)
        return replace(self, ensemble=ensemble, aggregation=method, combined=combined)

    def _inputs(self, X: np.ndarray) -> Tensor:
        return self.scaling.inputs(X, self.parameters.noise)

    def _joint(
        self, X: np.ndarray, latent: bool, combined: Combined, noise: np.ndarray | None
    ) -> tuple[Tensor, np.ndarray]:
        """Mean in the experts' units, and covariance in the target's."""
        inputs = self._inputs(X)
        covariance = self.scaling.variance(combined.covariance(self.ensemble, inputs))
        if not latent:
            places = np.arange(len(X))
            covariance[places, places] += self._observed_noise(combined, len(X), noise)
        return combined.mean(self.ensemble, inputs), covariance

    def _observed_noise(
        self, combined: Combined, n: int, given: np.ndarray | None
    ) -> np.ndarray | float:
        """The noise variance of observations, in the target's units.

        As given, with σ² as a factor where it was one in fitting; else that of the training rows.
        """
        factor = float(combined.noise)
        if given is not None:
            return given if self.row_noise is None else factor * given
        typical = 1.0 if self.row_noise is None else self.row_noise
        return np.full(n, factor * typical * self.scaling.y_scale**2)
