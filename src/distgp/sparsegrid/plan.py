"""The estimator's parameters, checked, and what they stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from distgp import choices
from distgp.engines import Engine
from distgp.experts import Parameters, SparseExpert
from distgp.fitting import Recipe, learn
from distgp.kernels import factors, separable
from distgp.scaling import Scaling
from distgp.settings import (
    bounds_of,
    check_count,
    check_engine,
    check_noise,
    check_varies,
    is_auto,
    opened,
    starting,
    tensor_like,
)
from distgp.sparsegrid.basis import basis_of
from distgp.sparsegrid.cost import Cost, memory_limit
from distgp.sparsegrid.grids import Box, SparseGrid, grid
from distgp.sparsegrid.indices import axis_size, number_of_points
from distgp.sparsegrid.posterior import Combination, GridPosterior
from distgp.training import PooledBound, TrainingResult
from distgp.workers import Workers

LARGEST_UNION = 1_024
"""Points of the sparse grid, at most, that `level="auto"` goes up to."""
TRAINING_UNION = 512
"""Points of the sparse grid, at most, that hyperparameters are trained on."""
GAIN = 1e-3
"""Nats a row by which the bound must rise to make a higher level worth while."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The parameters of a `SparseGridGP`, which explains them, for d columns."""

    level: Any
    combination: Combination
    kernel: Any
    noise: Any
    box: Any
    boundary: Any
    training: Any
    n_iter: Any
    training_rows: Any
    engine: Any
    device: Any
    normalize: Any
    max_memory: Any
    random_state: Any
    verbose: Any
    d: int

    def __post_init__(self) -> None:
        check_count("level", self.level, ("auto",))
        check_count("n_iter", self.n_iter, ())
        check_count("training_rows", self.training_rows, (None, "auto"))
        check_engine(self.engine)
        check_noise(self.noise)
        if self.combination not in get_args(Combination):
            raise ValueError(
                f"combination must be 'opticom', 'ct' or 'full', got {self.combination!r}"
            )
        limit = self.max_memory
        if limit is not None and not (isinstance(limit, Real) and float(limit) > 0):
            raise ValueError(f"max_memory must be a positive number of GiB, or None, got {limit!r}")
        if not is_auto(self.box):
            Box.of(self.box, self.d)
        if not isinstance(self.boundary, bool | np.bool_):
            raise ValueError(f"boundary must be True or False, got {self.boundary!r}")
        if self.training is not None and not self._by_union:
            self._named_grid()

    @cached_property
    def seed(self) -> int:
        """The seed of the rows that training looks at."""
        return choices.seed_of(self.random_state)

    @cached_property
    def like(self) -> Tensor:
        """A tensor on the device; sparse grids compute in float64."""
        return tensor_like(self.device, torch.float64)

    @cached_property
    def start(self) -> Parameters:
        """Where training starts: named kernels are products over the columns."""
        return starting(self.kernel, self.noise, self.d, self.like, separable)

    def check_targets(self, targets: np.ndarray) -> None:
        """Refuse a target that does not vary."""
        if self.normalize or self.training is not None:
            check_varies(targets)

    def open_engine(self) -> Engine:
        """The engine, started if it was given by name."""
        return opened(self.engine)

    def cost(self, n: int, targets: int) -> Cost:
        """Of the level given, or of the highest that "auto" may choose."""
        rows = self._rows
        return Cost.of(
            n,
            self.d,
            self._highest(LARGEST_UNION) if is_auto(self.level) else int(self.level),
            self.combination,
            boundary=bool(self.boundary),
            kronecker=factors(self.start.kernel, self.d) is not None,
            targets=targets,
            training=(self._training_points(), n if rows is None else min(n, rows)),
            device=self.like.device,
        )

    def refuse_too_large(self, n: int, targets: int) -> None:
        """Raise where the sparse grid would not fit."""
        limit = self.max_memory
        allowed = memory_limit(self.like.device) if limit is None else int(float(limit) * 2**30)
        self.cost(n, targets).refuse_above(allowed)

    def box_of(self, X: np.ndarray, scaling: Scaling) -> Box:
        """The box of the grids, in standardised units."""
        if is_auto(self.box):
            low, high = X.min(0).astype(np.float64), X.max(0).astype(np.float64)
            flat = high <= low
            bounds = np.stack(
                [np.where(flat, low - 0.5, low), np.where(flat, high + 0.5, high)], -1
            )
        else:
            box = Box.of(self.box, self.d)
            bounds = torch.stack([box.lower, box.upper], -1).numpy()
        corners = scaling.inputs(bounds.T, self.like)
        return Box(corners[0], corners[1])

    def learn(self, workers: Workers, box: Box) -> tuple[Parameters, TrainingResult | None]:
        """θ, by the sparse bound of the union of the grids, or of one of them."""
        if self.training is None:
            return self.start, None
        if self._by_union:
            sparse = SparseGrid.of(self._training_level, self.d, bool(self.boundary))
            Z = sparse.to(self.like.device).points(box)
        else:
            Z = grid(self._named_grid(), box, bool(self.boundary))
        result = learn(self._recipe(Z), PooledBound(n_iter=self.n_iter), workers)
        return replace(result.parameters, inducing=None), result

    def level_for(self, theta: Parameters, workers: Workers, box: Box) -> int:
        """The level given, or the one after which the bound of the sparse grid gains little.

        The bound is that of the sparse grid itself on the rows that training looks at.
        """
        if not is_auto(self.level):
            return int(self.level)
        sample = workers.sampled(self._share(workers), self.seed)
        best = -float("inf")
        for level in range(1, self._highest(LARGEST_UNION) + 1):
            whole = SparseGrid.of(level, self.d, bool(self.boundary)).whole().to(self.like.device)
            basis = basis_of(theta.kernel, whole, box)
            posterior = GridPosterior.of(theta, basis, sample, "ct")
            bound = float(posterior.bounds[0] / posterior.n)
            if bound < best + GAIN and level > 2:
                return level - 1
            best = max(best, bound)
        return self._highest(LARGEST_UNION)

    @property
    def _rows(self) -> int | None:
        """How many rows training looks at; None for all."""
        return choices.TRAINING_ROWS if is_auto(self.training_rows) else self.training_rows

    @property
    def _by_union(self) -> bool:
        return isinstance(self.training, str) and self.training == "union"

    @property
    def _training_level(self) -> int:
        """Of the sparse grid that hyperparameters are trained on."""
        highest = self._highest(TRAINING_UNION)
        return highest if is_auto(self.level) else min(highest, self.level)

    def _training_points(self) -> int:
        """How many inducing inputs training uses."""
        if self.training is None:
            return 0
        if self._by_union:
            return number_of_points(self._training_level, self.d, bool(self.boundary))
        return math.prod(axis_size(level, bool(self.boundary)) for level in self._named_grid())

    def _highest(self, points: int) -> int:
        """The highest level whose sparse grid has at most so many points; 1 at least."""
        level = 1
        while number_of_points(level + 1, self.d, bool(self.boundary)) <= points:
            level += 1
        return level

    def _share(self, workers: Workers) -> float:
        rows = self._rows
        return 1.0 if rows is None else min(1.0, rows / float(workers.sizes().sum()))

    def _recipe(self, Z: Tensor) -> Recipe:
        return Recipe(
            expert=SparseExpert(),
            start=self.start,
            bounds=bounds_of(self.kernel, self.start),
            search=isinstance(self.kernel, str),
            inducing=Z,
            algorithm=None,
            training_rows=self._rows,
            seed=self.seed,
            verbose=bool(self.verbose),
        )

    def _named_grid(self) -> Sequence[int]:
        levels = self.training
        fine = isinstance(levels, list | tuple | np.ndarray) and len(levels) == self.d
        if not fine or not all(isinstance(l, Integral) and int(l) >= 1 for l in levels):
            raise ValueError(
                f"training must be 'union', None, or the {self.d} levels of one grid such as "
                f"{(2,) * self.d}, got {levels!r}"
            )
        return [int(level) for level in levels]
