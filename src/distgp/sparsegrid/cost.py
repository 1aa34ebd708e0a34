"""The cost of a sparse grid, from formulas alone: known before any work, whatever its size."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import comb, prod
from typing import TypedDict, Unpack

import torch

from distgp._util.machine import total_bytes
from distgp.experts.base import CHUNK_ENTRIES
from distgp.sparsegrid.grids import Combination, axis_increment, axis_size, check_size, index_set

BYTES = 8
"""The size of a float64."""
LISTED = 100_000
"""The number of grids up to which their points are listed one by one."""
TEMPORARIES, GRADIENT_TEMPORARIES = 10, 20
"""Matrices of a chunk's size that are alive at the same time, without and with a gradient."""
COPIES = 4
"""Copies of the rows: as given, standardised, in shards, and on their way."""
KERNEL_FLOPS = 20
"""Operations for one value of a kernel, about."""


def number_of_grids(level: int, d: int) -> int:
    """Count the grids of the index set I(η, d): b = Σ_{q=0}^{d−1} C(η+d−2−q, d−1)."""
    check_size(level, d)
    return sum(comb(level + d - 2 - q, d - 1) for q in range(min(d, level)))


def number_of_points(level: int, d: int, boundary: bool = False) -> int:
    """Count the points of the sparse grid Ω_η^d; without the boundary Σ_{i<η} 2^i C(d−1+i, d−1)."""
    return sum(_by_total(level, d, lambda l: axis_increment(l, boundary)))


def highest_level(points: int, d: int, boundary: bool = False) -> int:
    """Find the highest level whose sparse grid has at most so many points; at least 1."""
    level = 1
    while number_of_points(level + 1, d, boundary) <= points:
        level += 1
    return level


def _by_total(
    level: int, d: int, count: Callable[[int], int], over: Callable[[Iterable[int]], int] = sum
) -> list[int]:
    """The sum (or maximum) of Π_j count(l_j) over all l with |l|₁ = d + t, for t = 0 … η−1: O(dη²)."""
    check_size(level, d)
    counts = [count(l) for l in range(1, level + 1)]
    found = [1] + [0] * (level - 1)
    for _ in range(d):
        found = [over(found[t - k] * counts[k] for k in range(t + 1)) for t in range(level)]
    return found


class Fitting(TypedDict, total=False):
    """The number of targets, the inducing inputs and rows of training, and the device."""

    targets: int
    training: tuple[int, int]
    device: torch.device | None


@dataclass(frozen=True)
class Cost:
    """The size of a sparse grid GP on n rows, and what fitting it takes.

    It tells the number of `grids` that are combined, the number of points of the `largest` one and of
    their `union`, the `memory` at the peak of fitting, in bytes, and the `flops` of conditioning on the
    rows, both about. With `kronecker` the kernel is a product over the columns, so that there is a factor
    per axis; there is one per grid otherwise.

    Examples
    --------
    >>> cost = Cost.of(n=1000, d=3, level=4, combination="opticom")
    >>> cost.grids, cost.largest, cost.union
    (19, 27, 111)
    """

    d: int
    level: int
    combination: Combination
    boundary: bool
    kronecker: bool
    n: int
    grids: int
    largest: int
    union: int
    memory: int
    flops: int

    @staticmethod
    def of(
        n: int,
        d: int,
        level: int,
        combination: Combination,
        *,
        boundary: bool = False,
        kronecker: bool = True,
        **fitting: Unpack[Fitting],
    ) -> Cost:
        """Work out the cost by closed formulas.

        Parameters
        ----------
        n, d : int
            The number of rows and of columns.
        level, combination : int, str
            The sparse grid and how it is used, as `SparseGridGP` explains them.
        boundary : bool, default=False
            Whether it has points on the boundary.
        kronecker : bool, default=True
            Whether the kernel is a product over the columns.
        targets : int, default=1
            The number of targets, each with a model of its own.
        training : pair of int, default=(0, 0)
            How many inducing inputs and rows the hyperparameters are learnt with.
        device : torch.device, optional
            Where the work is done; the CPU by default.
        """
        union = number_of_points(level, d, boundary)
        points, squares, cubes = union, union**2, union**3
        b, largest = 1, union
        if combination != "full":
            b = number_of_grids(level, d)
            largest = max(_by_total(level, d, lambda l: axis_size(l, boundary), max))
            points, squares, cubes = (
                sum(_by_total(level, d, lambda l, p=p: axis_size(l, boundary) ** p)[-d:])
                for p in (1, 2, 3)
            )
        targets, (m, rows) = fitting.get("targets", 1), fitting.get("training", (0, 0))
        device = fitting.get("device")
        chunk = CHUNK_ENTRIES["cpu" if device is None else device.type]
        # Kept for every target: L_B of all grids, L_u where that is no Kronecker product, W. Then ΣVVᵀ.
        kept = (1 if kronecker else 2) * squares + union * b + union * d + points
        passing = squares + 2 * largest**2 + 2 * union * b
        temporary = TEMPORARIES * min(chunk, n * (union + 2 * largest))
        learning = 12 * m**2 + GRADIENT_TEMPORARIES * min(chunk, m * rows)
        peak = max(targets * kept + passing + temporary, learning)
        memory = BYTES * (peak + COPIES * n * (d + targets))
        # V itself, by a product over the columns or a triangular solve; V Vᵀ; the factors; F and FᵀF.
        whiten = d * union if kronecker else squares
        flops = n * (whiten + 2 * squares) + cubes * (1 if kronecker else 2)
        if combination == "opticom":
            flops += n * (whiten if kronecker else KERNEL_FLOPS * union) + 2 * n * b * (union + b)
        flops *= targets
        return Cost(d, level, combination, boundary, kronecker, n, b, largest, union, memory, flops)

    @property
    def points(self) -> dict[tuple[int, ...], int]:
        """The number of points of each grid, by its levels."""
        if self.combination == "full":
            return {(0,) * self.d: self.union}
        if self.grids > LISTED:
            raise ValueError(f"{self.grids:,} grids are too many to list")
        levels = index_set(self.level, self.d)
        return {tuple(l): prod(axis_size(k, self.boundary) for k in l) for l in levels.tolist()}

    def refuse_above(self, limit: int) -> None:
        """Raise a MemoryError where this would not fit into so many bytes."""
        if self.memory > limit:
            remedy = "lower the level" if self.level > 1 else "use DistributedGPRegressor"
            raise MemoryError(
                f"a sparse grid of level {self.level} in {self.d} columns has {_amount(self.grids)} grids "
                f"of up to {_amount(self.largest)} points, {_amount(self.union)} in all, and needs about "
                f"{_amount(self.memory, 2**30)} GiB; {limit / 2**30:.3g} GiB are allowed. To go on, "
                f"{remedy}, or raise max_memory (GiB)"
            )

    def __str__(self) -> str:
        boundary = "with" if self.boundary else "without"
        structure = "Kronecker factors" if self.kronecker else "a factor for each grid"
        return (
            f"sparse grid of level {self.level} in {self.d} columns, {boundary} boundary points\n"
            f"  combination  {self.combination}, {structure}\n"
            f"  grids        {_amount(self.grids)}, the largest of {_amount(self.largest)} points\n"
            f"  sparse grid  {_amount(self.union)} points\n"
            f"  memory       {_amount(self.memory, 2**30)} GiB\n"
            f"  work         {_amount(self.flops, 10**9)} GFLOP for {self.n:,} rows"
        )


def _amount(value: int, unit: int = 1) -> str:
    """Write a whole number in a unit, as a power of ten where it has more than 15 digits."""
    if value // unit >= 10**15:
        return f"10^{len(str(value // unit)) - 1}"
    return f"{value:,}" if unit == 1 else f"{value / unit:,.3g}"


def memory_limit(device: torch.device) -> int:
    """Half of the bytes that the machine, its container, or the GPU has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1] // 2
    total = total_bytes()
    return sys.maxsize if total is None else total // 2
