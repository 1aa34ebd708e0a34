"""What a sparse grid costs, from formulas alone: known before any work, whatever its size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

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
CHUNK = 2**24
"""Bytes of a chunk's matrix: see `experts.base.CHUNK_ENTRIES`."""


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
        n: int, d: int, level: int, combination: Combination, boundary: bool, kronecker: bool
    ) -> Cost:
        """By the closed formulas."""
        check(level, d)
        union = number_of_points(level, d, boundary)
        single = combination == "full"
        squares = union**2 if single else total_over_grids(level, d, 2, boundary)
        cubes = union**3 if single else total_over_grids(level, d, 3, boundary)
        b = 1 if single else number_of_grids(level, d)
        largest = union if single else largest_grid(level, d, boundary)
        # ΣVVᵀ, B and L_B of every grid, its L_u where that is no Kronecker product, W, u twice.
        matrices = (2 if kronecker else 3) * squares + 2 * largest**2
        indices = union * d + (union if single else total_over_grids(level, d, 1, boundary))
        memory = BYTES * (matrices + union * (b + 2) + indices) + 3 * CHUNK
        # V Vᵀ, V itself by a triangular solve or a product over the columns; the factors; OptiCom's F.
        whiten = d * union if kronecker else squares
        second = n * (union * (b + 2) + (d if kronecker else 10) * union) if not single else 0
        flops = n * (2 * squares + whiten) + cubes * (1 if kronecker else 2)
        flops += second if combination == "opticom" else 0
        return Cost(d, level, combination, boundary, kronecker, n, b, largest, union, memory, flops)

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
                f"a sparse grid of level {self.level} in {self.d} columns has {self.grids:,} grids of up "
                f"to {self.largest:,} points, {self.union:,} in all, and needs about "
                f"{self.memory / 2**30:,.1f} GiB; {limit / 2**30:.1f} GiB are allowed. To go on, "
                f"{remedy}, or raise max_memory (GiB)"
            )

    def __str__(self) -> str:
        boundary = "with" if self.boundary else "without"
        structure = "Kronecker factors" if self.kronecker else "a factor for each grid"
        return "\n".join(
            [
                f"sparse grid of level {self.level} in {self.d} columns, {boundary} boundary points",
                f"  combination  {self.combination}, {structure}",
                f"  grids        {self.grids:,}, the largest of {self.largest:,} points",
                f"  sparse grid  {self.union:,} points",
                f"  memory       {self.memory / 2**30:,.3g} GiB",
                f"  work         {self.flops / 1e9:,.3g} GFLOP for {self.n:,} rows",
            ]
        )


def memory_limit(device: torch.device) -> int:
    """Half of what the machine, or its container, or the GPU has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1] // 2
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container = Path("/sys/fs/cgroup/memory.max")
    if container.is_file() and (text := container.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total // 2
