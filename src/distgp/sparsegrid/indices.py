"""Index sets, combination coefficients, and how many points there are: all known before any work.

One-dimensional level l has the 2^l − 1 interior points i / 2^l (the paper's 2^{l−1} is a slip), or with
the boundary the 2^l + 1 points i = 0 … 2^l. They are nested: level l adds what level l − 1 lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor


def check(level: int, d: int) -> None:
    """Refuse what no sparse grid has."""
    if level < 1 or d < 1:
        raise ValueError(f"a sparse grid needs level ≥ 1 and d ≥ 1, got level {level} and d = {d}")


def axis_size(level: int, boundary: bool = False) -> int:
    """Points of one-dimensional level l."""
    return 2**level + (1 if boundary else -1)


def axis_increment(level: int, boundary: bool = False) -> int:
    """Points that level l has and level l − 1 has not."""
    return axis_size(1, boundary) if level == 1 else 2 ** (level - 1)


def index_set(level: int, d: int) -> Tensor:
    """I(η, d) = {l ∈ ℕ₊^d : η ≤ |l|₁ ≤ η + d − 1}, (b, d): the grids that equation (8) combines."""
    check(level, d)
    found = [index for total in range(max(level, d), level + d) for index in compositions(total, d)]
    return torch.tensor(found)


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as an ordered sum of this many positive integers."""
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def combination_coefficients(levels: Tensor, level: int) -> Tensor:
    """(−1)^{η+d−1−|l|₁} C(d−1, |l|₁ − η) of each grid, (b,): equation (8). They sum to 1."""
    d = levels.shape[-1]
    values = [
        (-1.0) ** (level + d - 1 - total) * math.comb(d - 1, total - level)
        for total in levels.sum(-1).tolist()
    ]
    return torch.tensor(values, dtype=torch.float64)


def number_of_grids(level: int, d: int) -> int:
    """b = Σ_{q=0}^{d−1} C(η+d−2−q, d−1)."""
    check(level, d)
    return sum(math.comb(level + d - 2 - q, d - 1) for q in range(min(d, level)))


def number_of_points(level: int, d: int, boundary: bool = False) -> int:
    """Points of the sparse grid Ω_η^d; without the boundary Σ_{i<η} 2^i C(d−1+i, d−1)."""
    return sum(_by_total(level, d, lambda l: axis_increment(l, boundary)))


def total_over_grids(level: int, d: int, power: int, boundary: bool = False) -> int:
    """Σ_l m_l^power over the grids of the index set, m_l the points of grid l."""
    by_total = _by_total(level, d, lambda l: axis_size(l, boundary) ** power)
    return sum(by_total[max(0, level - d) :])


def largest_grid(level: int, d: int, boundary: bool = False) -> int:
    """Points of the largest grid."""
    return max(_by_total(level, d, lambda l: axis_size(l, boundary), max))


def _by_total(
    level: int,
    d: int,
    count: Callable[[int], int],
    over: Callable[[Iterable[int]], int] = sum,
) -> list[int]:
    """Over all l with |l|₁ = d + t the sum (or maximum) of Π_j count(l_j), for t = 0 … η−1: O(dη²)."""
    check(level, d)
    counts = [count(l) for l in range(1, level + 1)]
    found = [1] + [0] * (level - 1)
    for _ in range(d):
        found = [over(found[t - k] * counts[k] for k in range(t + 1)) for t in range(level)]
    return found
