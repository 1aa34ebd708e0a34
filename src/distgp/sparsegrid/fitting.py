"""A fit on sparse grids: what the parameters stand for, training, the choice of the level, conditioning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from distgp._util.checks import (
    Resolver,
    a_count,
    a_name,
    a_positive_number,
    is_auto,
    is_integer,
    one_of,
)
from distgp._util.progress import doing, is_shown
from distgp.data import Scaling, Shard, place
from distgp.data import shard as sample
from distgp.data.shard import even_parts
from distgp.engines import Engine, Placement
from distgp.experts import Parameters, SparseExpert
from distgp.kernels import KERNELS, InputLayout, Kernel, latitudes
from distgp.plan import an_engine, tensor_like
from distgp.sparsegrid import (
    Box,
    Combination,
    Cost,
    SparseGridModel,
    axis_size,
    choose_level,
    condition,
    factors,
    grid,
    highest_level,
    number_of_points,
    separable,
    sparse_grid,
)
from distgp.training import Learning, PooledBound, TrainingResult
from distgp.training.stage import Initial

LARGEST_UNION = 1_024
"""Points of the sparse grid, at most, that `level="auto"` goes up to."""
TRAINING_UNION = 512
"""Points of the sparse grid, at most, that hyperparameters are trained on."""
RESOLVERS: dict[str, Resolver] = {
    "level": a_count("auto"),
    "combination": one_of(*get_args(Combination)),
    "kernel": a_name(KERNELS, Kernel),
    "noise": a_positive_number("a positive, finite variance"),
    "boundary": one_of(True, False),
    "n_iter": a_count(),
    "training_rows": a_count(None, "auto"),
    "engine": an_engine,
    "normalize": one_of(True, False),
    "max_memory": a_positive_number("a positive number of GiB", None),
    "verbose": one_of("auto", True, False),
}
"""What each parameter may be."""


@dataclass(frozen=True, eq=False)
class GridPlan:
    """The parameters of `SparseGridGP` for d columns, checked, and the fit of one target by them.

    The level is None where it is to be chosen; training looks at so many `rows`, None for all. It is by
    the union of the grids, or by the one with these `levels`, where hyperparameters are `trained`.
    """

    d: int
    level: int | None
    combination: Combination
    boundary: bool
    trained: bool
    levels: list[int] | None
    n_iter: int
    rows: int | None
    start: Initial
    like: Tensor
    verbose: bool

    @staticmethod
    def of(given: Mapping[str, Any], d: int) -> GridPlan:
        """Check all parameters, and find out what they stand for."""
        for name, check in RESOLVERS.items():
            check(name, given[name])
        training, level, rows = given["training"], given["level"], given["training_rows"]
        levels = _named_grid(training, d)
        if not is_auto(given["box"]):
            Box.of(given["box"], d)
        like = tensor_like(given["device"], torch.float64)  # sparse grids compute in float64
        return GridPlan(
            d,
            None if is_auto(level) else int(level),
            given["combination"],
            given["boundary"],
            training is not None,
            levels,
            given["n_iter"],
            SparseExpert.training_rows if is_auto(rows) else None if rows is None else int(rows),
            _initial(given["kernel"], given["noise"], d, like),
            like,
            is_shown(given["verbose"]),
        )

    @property
    def highest_level(self) -> int:
        """The level given, or the highest that may be chosen."""
        return self.level or highest_level(LARGEST_UNION, self.d, self.boundary)

    @property
    def union_level(self) -> int:
        """The level of the sparse grid that hyperparameters are trained on."""
        return min(highest_level(TRAINING_UNION, self.d, self.boundary), self.highest_level)

    def cost(self, n: int, targets: int) -> Cost:
        """Tell what fitting n rows takes."""
        inducing, d = 0, self.d
        if self.levels is not None:
            inducing = math.prod(axis_size(level, self.boundary) for level in self.levels)
        elif self.trained:
            inducing = number_of_points(self.union_level, d, self.boundary)
        return Cost.of(
            n,
            d,
            self.highest_level,
            self.combination,
            boundary=self.boundary,
            kronecker=factors(self.start.parameters.kernel, d) is not None,
            targets=targets,
            training=(inducing, n if self.rows is None else min(n, self.rows)),
            device=self.like.device,
        )

    def fit(
        self, shards: Placement[Shard], scaling: Scaling, box: Box, seed: int
    ) -> SparseGridModel:
        """Train on rows with one target, choose the level, and condition every grid on all rows."""
        theta, result = self.start.parameters, None
        if self.trained:
            result = self._learn(shards, box, seed)
            theta = replace(result.parameters, inducing=None)
        doing("choosing the level of the grid")
        level = self.level or self._chosen_level(shards, theta, box, seed)
        doing("conditioning every grid on all rows")
        posterior = condition(theta, shards, box, level, self.combination, self.boundary)
        return SparseGridModel(scaling, box, posterior, result)

    def _learn(self, shards: Placement[Shard], box: Box, seed: int) -> TrainingResult:
        """Learn θ by the sparse bound of the union of the grids, or of one of them."""
        if self.levels is None:
            Z = sparse_grid(self.union_level, box, self.boundary)
        else:
            Z = grid(self.levels, box, self.boundary)
        learning = Learning(
            PooledBound(n_iter=self.n_iter),
            self.start.parameters,
            inducing=Z,
            search=self.start.named,
            rows=self.rows,
            bounds=self.start.bounds(),
            fixed=self.start.fixed,
            seed=seed,
            verbose=self.verbose,
        )
        return learning.on(SparseExpert(), shards)

    def _chosen_level(
        self, shards: Placement[Shard], theta: Parameters, box: Box, seed: int
    ) -> int:
        """The level by the bound on the rows that training looks at."""
        n = int(sample.sizes(shards).sum())
        looked_at = sample.sampled(shards, min(1.0, (self.rows or n) / n), seed)
        return choose_level(theta, looked_at, box, self.highest_level, self.boundary)


def _initial(kernel: str | Kernel, noise: float, d: int, like: Tensor) -> Initial:
    """Kernel and noise to start from; named kernels are products over the columns."""
    if isinstance(kernel, Kernel):
        if latitudes(kernel, d):
            raise ValueError("sparse grids fill a box, and have no kernels on the sphere")
        return Initial.of(kernel, noise, InputLayout.of_array(d), like)
    # Points of standardised data are √d apart, so that is a lengthscale to start from.
    made = 1.0 * separable(KERNELS[kernel], [math.sqrt(d)] * d)
    start = Parameters.of(made, float(noise)).to(like.device, like.dtype)
    return Initial(start, named=True, signals=("kernel.variance",))


def placed(
    engine: Engine, X: np.ndarray, targets: np.ndarray, scalings: list[Scaling], like: Tensor
) -> Placement[Shard]:
    """The standardised rows with all targets, divided evenly over the engine's workers."""
    columns = zip(scalings, targets.T, strict=True)
    scaled = torch.stack([scaling.targets(column, X, like) for scaling, column in columns], -1)
    data = Shard(scalings[0].inputs(X, like), scaled, torch.arange(len(X), device=like.device))
    parts = even_parts(len(X), engine.workers)
    return place(engine, [data.take(slice(part.start, part.stop)) for part in parts])


def _named_grid(training: str | Sequence[int] | None, d: int) -> list[int] | None:
    """The levels of the grid that training uses; None where it uses the union of all, or none."""
    if training is None or (isinstance(training, str) and training == "union"):
        return None
    fine = isinstance(training, list | tuple | np.ndarray) and len(training) == d
    if not fine or not all(is_integer(level) and level >= 1 for level in training):
        raise ValueError(
            f"training must be 'union', None, or the {d} levels of one grid such as "
            f"{(2,) * d}, got {training!r}"
        )
    return [int(level) for level in training]
