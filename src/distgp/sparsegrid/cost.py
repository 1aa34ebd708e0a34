"""What a sparse grid costs, from formulas alone: known before any work, whatever its size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from distgp.experts.base import CHUNK_ENTRIES
from distgp.sparsegrid.indices import (
    check,
    index_set,
    largest_grid,
    number_of_grids,
    number_of_points,
    total_over_grids,
)
from distgp.sparsegrid.posterior import Combination

BYTES = 8
LISTED = 100_000
"""Grids at most whose points are listed one by one."""
TEMPORARIES, GRADIENT_TEMPORARIES = 10, 40
"""Matrices of a chunk's size that are alive at once, without and with a gradient."""
COPIES = 4
"""Of the rows: as given, standardised, in shards, on their way."""
KERNEL_FLOPS = 20
"""Operations for a value of the kernel, about."""


@dataclass(frozen=True)
class Cost:
    """The size of a sparse grid GP on n rows, and what it takes."""

    d: int
    level: int
    combination: Combination
    boundary: bool
    kronecker: bool
    n: int
    grids: int
    """b: how many grids are combined."""
    largest: int
    """Points of the largest grid."""
    union: int
    """Points of the sparse grid."""
    memory: int
    """Bytes, about, at the peak of fitting."""
    flops: int
    """Floating-point operations, about, to condition on the rows."""

    @staticmethod
    def of(
        n: int,
        d: int,
        level: int,
        combination: Combination,
        *,
        boundary: bool = False,
        kronecker: bool = True,
        targets: int = 1,
        training: tuple[int, int] = (0, 0),
        device: torch.device | None = None,
    ) -> Cost:
        """By the closed formulas. training: inducing inputs and rows that it uses."""
        check(level, d)
        union = number_of_points(level, d, boundary)
        single = combination == "full"
        points, squares, cubes = (
            union**power if single else total_over_grids(level, d, power, boundary)
            for power in (1, 2, 3)
        )
        b = 1 if single else number_of_grids(level, d)
        largest = union if single else largest_grid(level, d, boundary)
        chunk = CHUNK_ENTRIES["cpu" if device is None else device.type]
        # Kept for every target: L_B of all grids, L_u where that is no Kronecker product, W. Then ΣVVᵀ.
        kept = (1 if kronecker else 2) * squares + union * b + union * d + points
        passing = squares + 2 * largest**2 + 2 * union * b
        conditioning = (
            targets * kept + passing + TEMPORARIES * min(chunk, n * (union + 2 * largest))
        )
        m, rows = training
        learning = 12 * m**2 + GRADIENT_TEMPORARIES * min(chunk, m * rows)
        memory = BYTES * (max(conditioning, learning) + COPIES * n * (d + targets))
        # V itself, by a product over the columns or a triangular solve; V Vᵀ; the factors; F and FᵀF.
        whiten = d * union if kronecker else squares
        flops = n * (whiten + 2 * squares) + cubes * (1 if kronecker else 2)
        if combination == "opticom":
            flops += n * (whiten if kronecker else KERNEL_FLOPS * union) + 2 * n * b * (union + b)
        return Cost(
            d,
            level,
            combination,
            boundary,
            kronecker,
            n,
            b,
            largest,
            union,
            memory,
            targets * flops,
        )

    @property
    def points(self) -> dict[tuple[int, ...], int]:
        """Points of each grid, by its levels."""
        if self.combination == "full":
            return {(0,) * self.d: self.union}
        if self.grids > LISTED:
            raise ValueError(f"{self.grids:,} grids are too many to list")
        sizes = 2 ** index_set(self.level, self.d) + (1 if self.boundary else -1)
        levels = index_set(self.level, self.d).tolist()
        return dict(zip(map(tuple, levels), sizes.prod(-1).tolist(), strict=True))

    def refuse_above(self, limit: int) -> None:
        """Raise where this would not fit into so many bytes."""
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
        return "\n".join(
            [
                f"sparse grid of level {self.level} in {self.d} columns, {boundary} boundary points",
                f"  combination  {self.combination}, {structure}",
                f"  grids        {_amount(self.grids)}, the largest of {_amount(self.largest)} points",
                f"  sparse grid  {_amount(self.union)} points",
                f"  memory       {_amount(self.memory, 2**30)} GiB",
                f"  work         {_amount(self.flops, 10**9)} GFLOP for {self.n:,} rows",
            ]
        )


def _amount(value: int, unit: int = 1) -> str:
    """A whole number in a unit; a power of ten where it is beyond all measure."""
    if value // unit >= 10**15:
        return f"10^{len(str(value // unit)) - 1}"
    return f"{value:,}" if unit == 1 else f"{value / unit:,.3g}"


def memory_limit(device: torch.device) -> int:
    """Half of what the machine, or its container, or the GPU has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1] // 2
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container = Path("/sys/fs/cgroup/memory.max")
    if container.is_file() and (text := container.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total // 2
