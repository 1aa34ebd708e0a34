"""Shared by the aggregation tests: ensembles of every kind, and naive float64 versions."""

from __future__ import annotations

import numpy as np
import torch
from helpers import FLOAT, inputs, shard
from torch import Tensor

import distgp
from distgp import RBF, Ensemble, ExactExpert, Matern32, Parameters, Shard, SparseExpert, split
from distgp.aggregation import Group
from distgp.shards import stack

KINDS = ["exact", "shared Z", "own Z", "exact, own θ", "sparse, own θ"]
COMMON = KINDS[:3]
"""The kinds whose experts share kernel and noise."""


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


def expert(kind: str) -> distgp.Expert:
    return ExactExpert() if kind.startswith("exact") else SparseExpert()


def build(
    kind: str, M: int, n: int = 60, d: int = 2, noise: float = 0.05, seed: int = 0
) -> tuple[Ensemble, Shard]:
    data = shard(n, d, seed)
    shards = split(data, labels(n, M, seed))
    return Ensemble.condition(expert(kind), parameters(kind, M, d, noise), shards), data


def regrouped(ensemble: Ensemble, sizes: list[int]) -> Ensemble:
    """The same experts in several groups."""
    (group,) = ensemble.groups
    shards, theta = distgp.unstack(group.rows()), group.posterior.parameters
    kind = ExactExpert() if ensemble.exact else SparseExpert()
    groups, first = [], 0
    for size in sizes:
        some = slice(first, first + size)
        batch = stack(shards[some])
        groups.append(Group(kind.condition(theta[some], batch), batch, first))
        first += size
    return Ensemble(tuple(groups))


def shuffled(ensemble: Ensemble, order: list[int]) -> Ensemble:
    """The same experts in another order."""
    (group,) = ensemble.groups
    shards, theta = distgp.unstack(group.rows()), group.posterior.parameters
    kind = ExactExpert() if ensemble.exact else SparseExpert()
    return Ensemble.condition(kind, theta[torch.tensor(order)], [shards[i] for i in order])


def full_gp(ensemble: Ensemble, data: Shard, X: Tensor) -> distgp.Prediction:
    theta = ensemble.parameters
    return ExactExpert().condition(Parameters(theta.kernel, theta.noise), data).predict(X)


def objective_R(ensemble: Ensemble, data: Shard, points: Tensor, coefficients: Tensor) -> Tensor:
    """R(g) = ‖y − g(X)‖² + σ²‖g‖²_H of g = Σ_p c_p k(·, p), from the definition."""
    k, noise = ensemble.parameters.kernel, ensemble.parameters.noise
    g = k(data.X, points) @ coefficients
    return (data.y - g).square().sum() + noise * coefficients @ k(points) @ coefficients


def combination(ensemble: Ensemble, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Points and coefficients of Σβ_i f_i."""
    points, coefficients = ensemble.groups[0].posterior.representer()
    flat = points.reshape(-1, points.shape[-1])
    return flat, (weights[:, None] * coefficients).reshape(-1)


def far(d: int, distance: float) -> Tensor:
    return torch.full((3, d), distance, dtype=FLOAT) + inputs(3, d, 4)
