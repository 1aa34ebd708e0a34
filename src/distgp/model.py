"""A fitted model: everything that predictions and files need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from distgp import linalg
from distgp._util.machine import refuse_above_free
from distgp.aggregation import Aggregator, Combined, Ensemble
from distgp.data.rows import Schema
from distgp.data.scaling import Scaling, refuse_infinite
from distgp.diagnostics.calibration import Calibration, multiples
from distgp.diagnostics.hyperparameters import parts_of
from distgp.diagnostics.novelty import TrainingInputs
from distgp.experts import Parameters
from distgp.likelihoods import Gaussian
from distgp.likelihoods.transforms import Transform
from distgp.training import TrainingResult

Value = TypeVar("Value")
CPU = torch.device("cpu")
"""Where predictions come to."""
DENSE_POINTS = 2_000
"""Points up to which joint draws are made from the covariance between them, which is exact; its memory
grows with the square of their number, and the time with the cube."""


class Points(NamedTuple):
    """Points to predict: in the units of the data and standardised, and what is asked of them.

    With `latent` the uncertainty is that of f; else that of an observation, whose noise variance, in
    the target's units, may be given for each point.
    """

    X: np.ndarray
    inputs: Tensor
    latent: bool = False
    noise: np.ndarray | None = None


class OneTarget(Protocol):
    """The model of one target, of any estimator."""

    @property
    def scaling(self) -> Scaling:
        """The units of the data."""
        ...

    @property
    def parameters(self) -> Parameters:
        """θ."""
        ...

    @property
    def training(self) -> TrainingResult | None:
        """The result of training."""
        ...

    def gathered(self) -> OneTarget:
        """The same model with everything in this process."""
        ...


Target = TypeVar("Target", bound=OneTarget)


@dataclass(frozen=True, eq=False)
class Model(Generic[Target]):
    """One model for each target, and what they have in common.

    Where there is `one_target`, given as one column, results have no dimension for targets. `inputs` are
    None in files of earlier versions.
    """

    targets: tuple[Target, ...]
    one_target: bool
    schema: Schema
    seed: int
    inputs: TrainingInputs | None = None

    def each(self, get: Callable[[Target], Value]) -> Value | list[Value]:
        """A value of each target's model: one, or a list where there are several targets."""
        found = [get(target) for target in self.targets]
        return found[0] if self.one_target else found

    def columns(self, parts: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """One array for each kind of result, the targets in its last dimension."""
        if self.one_target:
            return list(parts[0])
        return [np.stack(kind, axis=-1) for kind in zip(*parts, strict=True)]

    def gathered(self) -> Model[Target]:
        """The same model with its experts in this process."""
        return replace(self, targets=tuple(target.gathered() for target in self.targets))


@dataclass(frozen=True, eq=False)
class TargetModel:
    """All that predicts one target.

    `combined` is the posterior of f that the aggregation made of the ensemble, once; by the likelihood f
    becomes y, or g(y) where there is a transform, which the experts then model. Predictions of g(y) are
    called Gaussian here: only they are. `training` is None where θ was given, and the calibration where
    no rows were held out for it.
    """

    scaling: Scaling
    ensemble: Ensemble
    aggregation: Aggregator
    combined: Combined
    likelihood: Gaussian
    training: TrainingResult | None
    transform: Transform | None = None
    calibration: Calibration | None = None

    @property
    def parameters(self) -> Parameters:
        """θ of all experts, with batch dimensions where they differ."""
        return self.ensemble.parameters

    def mean(self, at: Points) -> np.ndarray:
        """The mean of y at N points, (N,), without variance work where it can be avoided."""
        if self.transform is not None:
            return self.predict(at._replace(latent=False))[0]
        return self.scaling.mean(self.combined.mean(self.ensemble, at.inputs), at.X)

    def predict(self, at: Points) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of an observation y or of the latent f, (N,) each."""
        found = self.gaussian(at)
        return self.of_target(*(found if at.latent else self.likelihood.of_observation(*found)))

    def gaussian(self, at: Points) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of g(y), as `predict` has them of y."""
        combined = self.combined
        out = combined.in_own_space(self.ensemble, at.inputs)
        mean = self.scaling.mean(out.mean, at.X)
        return mean, self.likelihood.predicted_variance(
            out.variance, combined.space, self.scaling, at.latent, at.noise
        )

    def of_target(self, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y from those of g(y)."""
        if self.transform is None:
            return mean, variance
        first, second = self.transform.moments(mean, variance)
        return _mapped(first, mean), _mapped(second, mean)

    def quantiles(
        self,
        mean: np.ndarray,
        variance: np.ndarray,
        levels: Sequence[float],
        groups: ArrayLike | None,
        latent: bool,
    ) -> np.ndarray:
        """Quantiles of y at these probabilities from mean and variance of g(y), (N, levels).

        Those of observations are calibrated where the model is.
        """
        if latent and groups is not None:
            raise ValueError(
                "groups= is for intervals of observations, and with latent=True they are of f, which "
                "nobody observes: leave one of the two out"
            )
        scores = None if latent else self.calibration
        steps = [multiples(scores, level, len(mean), groups) for level in levels]
        found = mean[:, None] + np.sqrt(variance)[:, None] * np.stack(steps, -1)
        return found if self.transform is None else _mapped(self.transform.inverse(found), found)

    def parts(self, at: Points) -> list[tuple[np.ndarray, np.ndarray]]:
        """Mean and variance at N points of the summands of f, one for each part of the kernel."""
        if self.transform is not None:
            raise ValueError(
                "parts add up to the function that is modelled, and with target_transform that is not the "
                "target: fit without it"
            )
        kernels = [part.kernel() for part in parts_of(self.parameters.kernel)]
        found = self.combined.parts(self.ensemble, at.inputs, kernels)
        if found is None:
            raise ValueError(
                "the parts of a function are known where it has one posterior given all rows, and this "
                f"model has {self.ensemble.size} {self.ensemble.expert.name} experts, combined by "
                f"{self.aggregation.name!r}: fit with expert='exact' and n_experts=1 where rows are few, "
                "or with expert='sparse'"
            )
        means = (one.mean.cpu().double().numpy() * self.scaling.y_scale for one in found)
        variances = (self.scaling.variance(one.variance) for one in found)
        return list(zip(map(refuse_infinite, means), variances, strict=True))

    def covariance(self, at: Points) -> tuple[np.ndarray, np.ndarray]:
        """Mean at N points, and covariance between them, (N, N)."""
        if self.transform is not None:
            raise ValueError(
                "return_cov is of Gaussian predictions, and with target_transform they are not: draw "
                "from them with sample_y"
            )
        return self._joint(at)

    def sample(self, at: Points, size: int, seed: int) -> np.ndarray:
        """Joint draws of y, or of f, (N, size): without a matrix of N × N where points are many."""
        N = len(at.X)
        what = f"{size:,} draws at {N:,} points"
        refuse_above_free(
            8 * N * size, CPU, what, "draw fewer of them, or at fewer points at a time"
        )
        drawn = self._drawn_as_functions(at, size, seed) if N > DENSE_POINTS else None
        if drawn is None:
            drawn = self._drawn_by_covariance(at, size, seed)
        return drawn if self.transform is None else _mapped(self.transform.inverse(drawn), drawn)

    def _drawn_by_covariance(self, at: Points, size: int, seed: int) -> np.ndarray:
        """Joint draws of g(y), or of f, from the covariance between all points."""
        mean, covariance = self._joint(at)
        wide = torch.as_tensor(covariance)
        L = linalg.cholesky(wide, "the covariance between test points", singular=True)
        normal = torch.as_tensor(np.random.default_rng(seed).standard_normal((len(mean), size)))
        return mean[:, None] + (L @ normal).numpy()

    def _drawn_as_functions(self, at: Points, size: int, seed: int) -> np.ndarray | None:
        """Joint draws of g(y), or of f, as the combination makes them without a covariance, if it can."""
        for_f, for_noise = (int(one) for one in np.random.SeedSequence(seed).generate_state(2))
        found = self.combined.draws(self.ensemble, at.inputs, size, for_f)
        if found is None:
            return None
        drawn = self.scaling.mean(found, at.X)
        if not at.latent:
            variance = self.likelihood.noise_variance(len(at.X), self.scaling, at.noise)
            rng = np.random.default_rng(for_noise)
            for start in range(0, len(drawn), DENSE_POINTS):
                some = drawn[start : start + DENSE_POINTS]
                deviation = np.sqrt(variance[start : start + DENSE_POINTS])
                some += deviation[:, None] * rng.standard_normal(some.shape)
        return drawn

    def log_slope(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """g(y), and the logarithm of g's slope there: 0 where there is no transform."""
        if self.transform is None:
            return y, 0.0
        self.transform.check(y)
        return self.transform.forward(y), self.transform.log_slope(y)

    def gathered(self) -> TargetModel:
        """The same model with its experts in this process."""
        return replace(self, ensemble=self.ensemble.gathered(), combined=self.combined.gathered())

    def _joint(self, at: Points) -> tuple[np.ndarray, np.ndarray]:
        """Mean of g(y), and covariance, in the target's units."""
        N = len(at.X)
        what, instead = f"the covariance between {N:,} points", "give fewer points"
        refuse_above_free(8 * N * N, CPU, what, f"{instead}, or draw from them with sample_y")
        covariance = self.scaling.variance(self.combined.covariance(self.ensemble, at.inputs))
        if not at.latent:
            added = self.likelihood.noise_variance(len(at.X), self.scaling, at.noise)
            covariance[np.diag_indices(len(at.X))] += added
        return self.scaling.mean(self.combined.mean(self.ensemble, at.inputs), at.X), covariance


def _mapped(values: np.ndarray, transformed: np.ndarray) -> np.ndarray:
    """Return predictions of y; refuse those that are not finite where those of g(y) are."""
    refuse_infinite(values[np.isfinite(transformed)], "target_transform")
    return values
