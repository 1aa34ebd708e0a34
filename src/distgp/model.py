"""A fitted model of one target: scaling, experts, and their combination."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distgp import choices, linalg
from distgp.aggregation import AGGREGATORS, Aggregator, Combined, Ensemble, Group
from distgp.engines import Local
from distgp.experts import Parameters
from distgp.scaling import Scaling
from distgp.training import TrainingResult


@dataclass(frozen=True, eq=False)
class Model:
    """What predicts one target, in the target's units. A value: nothing in it changes."""

    scaling: Scaling
    parameters: Parameters
    ensemble: Ensemble
    aggregation: Aggregator
    combined: Combined
    training: TrainingResult | None
    others: dict[str, Combined] = field(default_factory=dict, metadata={"saved": False})
    """Combinations by other aggregators that were asked for by name, kept for the next time."""

    @staticmethod
    def of(
        scaling: Scaling,
        parameters: Parameters,
        ensemble: Ensemble,
        aggregation: str | Aggregator,
        training: TrainingResult | None,
    ) -> Model:
        """Combine the experts."""
        method = resolve(aggregation, ensemble)
        combined = method.combine(ensemble)
        return Model(scaling, parameters, ensemble, method, combined, training)

    def combination(self, aggregation: str | Aggregator | None) -> Combined:
        """The model's own combination, or another aggregator's of the same experts."""
        if aggregation is None:
            return self.combined
        if not isinstance(aggregation, str):
            return resolve(aggregation, self.ensemble).combine(self.ensemble)
        if aggregation not in self.others:
            method = resolve(aggregation, self.ensemble)
            same = method == self.aggregation
            self.others[aggregation] = self.combined if same else method.combine(self.ensemble)
        return self.others[aggregation]

    def mean(self, X: np.ndarray, aggregation: str | Aggregator | None) -> np.ndarray:
        """The mean alone."""
        return self.scaling.mean(self.combination(aggregation).mean(self._inputs(X)))

    def predict(
        self, X: np.ndarray, aggregation: str | Aggregator | None, latent: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance, of y or of the latent f."""
        out = self.combination(aggregation).predict(self._inputs(X), observed=not latent)
        return self.scaling.prediction(out)

    def covariance(
        self, X: np.ndarray, aggregation: str | Aggregator | None, latent: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean, and covariance between the rows of X."""
        combined, inputs = self.combination(aggregation), self._inputs(X)
        covariance = self._noisy(combined, combined.covariance(inputs), latent)
        return self.scaling.mean(combined.mean(inputs)), self.scaling.variance(covariance)

    def sample(self, X: np.ndarray, size: int, seed: int, latent: bool) -> np.ndarray:
        """Draws of y, or of f, at the rows of X jointly: (N, size)."""
        inputs = self._inputs(X)
        covariance = self._noisy(self.combined, self.combined.covariance(inputs), latent).double()
        L = linalg.cholesky(covariance, "the covariance between test points", singular=True)
        normal = torch.as_tensor(np.random.default_rng(seed).standard_normal((len(X), size)))
        return self.scaling.mean(self.combined.mean(inputs)[:, None] + L @ normal.to(L))

    def gathered(self) -> Model:
        """The same model with its experts in this process."""
        if isinstance(self.ensemble.where, Local):
            return self
        return replace(here(self, {}), others={})

    def with_group(self, group: Group, aggregation: str | Aggregator) -> Model:
        """The same model with more experts."""
        ensemble = self.ensemble.extended(group)
        theta = self.parameters.joined(group.posterior.parameters)
        return Model.of(self.scaling, theta, ensemble, aggregation, self.training)

    def _inputs(self, X: np.ndarray) -> Tensor:
        like = self.parameters.noise
        return self.scaling.inputs(X, like)

    def _noisy(self, combined: Combined, covariance: Tensor, latent: bool) -> Tensor:
        if latent:
            return covariance
        return linalg.add_diagonal(covariance, combined.noise.to(covariance))


def resolve(aggregation: str | Aggregator, ensemble: Ensemble) -> Aggregator:
    """An aggregator from its name; "auto" by the rule for these experts."""
    if isinstance(aggregation, str) and aggregation == "auto":
        return choices.aggregator(ensemble)
    return choices.by_name("aggregation", aggregation, AGGREGATORS, Aggregator)


def without_rows(group: Group) -> Group:
    """The same experts without the rows that they were conditioned on."""
    return replace(group, shards=None)


def here(value: Any, seen: dict[int, Any]) -> Any:
    """A tree with every ensemble in it brought to this process; what is shared stays shared."""
    if id(value) in seen:
        return seen[id(value)]
    made = value
    if isinstance(value, Ensemble):
        groups = value.where.here() if value.exact else tuple(value.map(without_rows))
        made = Ensemble(groups, value.about)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {spec.name: getattr(value, spec.name) for spec in fields(value) if spec.init}
        moved = {name: here(part, seen) for name, part in parts.items()}
        if any(moved[name] is not parts[name] for name in parts):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what there was to say was said in fitting
                made = replace(value, **moved)
    elif isinstance(value, tuple):
        items = tuple(here(item, seen) for item in value)
        made = value if all(a is b for a, b in zip(items, value, strict=True)) else items
    seen[id(value)] = made
    return made
