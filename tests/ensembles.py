"""Shared by the aggregation tests: ensembles of every kind, and naive float64 versions."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from helpers import FLOAT, inputs, shard
from torch import Tensor

from distgp.aggregation import Ensemble
from distgp.data import Shard, split, stack, unstack
from distgp.engines import LocalPlacement, Placement
from distgp.experts import (
    ExactExpert,
    Expert,
    Parameters,
    Posterior,
    Prediction,
    SparseExpert,
)
from distgp.kernels import RBF, Matern32

KINDS = ["exact", "shared Z", "own Z", "exact, own θ", "sparse, own θ"]
COMMON = KINDS[:3]
"""The kinds whose experts share kernel and noise."""


def each_point(marginals: Any, space: str) -> Iterator[tuple[list[float], ...]]:
    """Of every point, the experts' means, variances and prior variances in Python floats."""
    M, N = marginals.mean.shape
    noise = [float(v) if space == "observed" else 0.0 for v in marginals.noise]
    for x in range(N):
        yield (
            [float(marginals.mean[i, x]) for i in range(M)],
            [float(marginals.variance[i, x]) + noise[i] for i in range(M)],
            [float(marginals.base_variance[i, x]) + noise[i] for i in range(M)],
        )


def labels(n: int, M: int, seed: int = 0) -> np.ndarray:
    """Every label used, sizes uneven."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.concatenate([np.arange(M), rng.integers(M, size=n - M)]))


def parameters(kind: str, M: int, d: int, noise: float = 0.05) -> Parameters:
    Z = inputs(8, d, 5)
    if kind == "exact":
        return Parameters.of(1.3 * RBF([0.6] * d), noise)
    if kind == "shared Z":
        return Parameters.of(1.3 * RBF([0.6] * d), noise, Z)
    if kind == "own Z":
        return Parameters.of(1.3 * RBF([0.6] * d), noise, Z + 0.1 * inputs(M, d, 6)[:, None, :])
    factors = 1.0 + 0.2 * inputs(M, 1, 7)[:, 0]
    kernel = factors * Matern32(0.6 * factors[:, None])
    own_Z = None if kind.startswith("exact") else Z.expand(M, *Z.shape)
    return Parameters.of(kernel, noise * factors, own_Z)


def expert(kind: str) -> Expert:
    return ExactExpert() if kind.startswith("exact") else SparseExpert()


@cache  # an ensemble is a value: tests share it
def build(
    kind: str, M: int, n: int = 60, d: int = 2, noise: float = 0.05, seed: int = 0
) -> tuple[Ensemble, Shard]:
    data = shard(n, d, seed)
    shards = split(data, labels(n, M, seed))
    return Ensemble.condition(expert(kind), parameters(kind, M, d, noise), shards), data


def posterior(ensemble: Ensemble) -> Posterior:
    """All experts of an ensemble with a single worker, in this process."""
    assert isinstance(ensemble.placement, LocalPlacement)
    (batch,) = ensemble.placement.items
    return batch


def shards_of(ensemble: Ensemble) -> list[Shard]:
    """The shards of an ensemble with a single worker."""
    return unstack(posterior(ensemble).rows_held())


def regrouped(ensemble: Ensemble, sizes: list[int], elsewhere: bool = False) -> Ensemble:
    """The same experts on several workers."""
    shards = iter(shards_of(ensemble))
    batches = [stack([next(shards) for _ in range(size)]) for size in sizes]
    workers = Elsewhere(batches) if elsewhere else LocalPlacement(tuple(batches))
    return Ensemble.condition(ensemble.expert, ensemble.parameters, workers)


class Elsewhere(Placement[Any]):
    """Items as if in other processes: they, and all that goes to them and comes back, are pickled."""

    def __init__(self, items: list[Any]) -> None:
        self.pickled = [pickle.dumps(item) for item in items]

    def __len__(self) -> int:
        return len(self.pickled)

    def map(self, function, *arguments, each=None):
        call = pickle.dumps((function, arguments))
        own = [()] * len(self) if each is None else [(one,) for one in each]
        results = []
        for item, last in zip(self.pickled, own, strict=True):
            copy, sent = pickle.loads(call)
            result = copy(pickle.loads(item), *sent, *pickle.loads(pickle.dumps(last)))
            results.append(pickle.loads(pickle.dumps(result)))
        return results

    def on_first(self, function, *arguments):
        return self.map(function, *arguments)[0]

    def derive(self, function, *arguments, each=None):
        made = self.map(function, *arguments, each=each)
        return Elsewhere([item for item in made if item is not None])

    def gather(self):
        return LocalPlacement(tuple(pickle.loads(item) for item in self.pickled))


def shuffled(ensemble: Ensemble, order: list[int]) -> Ensemble:
    """The same experts in another order."""
    shards, theta = shards_of(ensemble), ensemble.parameters[torch.tensor(order)]
    return Ensemble.condition(ensemble.expert, theta, [shards[i] for i in order])


def full_gp(ensemble: Ensemble, data: Shard, X: Tensor) -> Prediction:
    theta = ensemble.parameters
    return ExactExpert().condition(Parameters(theta.kernel, theta.noise), data).predict(X)


def objective_R(ensemble: Ensemble, data: Shard, points: Tensor, coefficients: Tensor) -> Tensor:
    """R(g) = ‖y − g(X)‖² + σ²‖g‖²_H of g = Σ_p c_p k(·, p), from the definition."""
    k, noise = ensemble.parameters.kernel, ensemble.parameters.noise
    g = k(data.X, points) @ coefficients
    return (data.y - g).square().sum() + noise * coefficients @ k(points) @ coefficients


def combination(ensemble: Ensemble, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Points and coefficients of Σβ_i f_i."""
    points, coefficients = posterior(ensemble).representer()
    flat = points.reshape(-1, points.shape[-1])
    return flat, (weights[:, None] * coefficients).reshape(-1)


def far(d: int, distance: float) -> Tensor:
    return torch.full((3, d), distance, dtype=FLOAT) + inputs(3, d, 4)
