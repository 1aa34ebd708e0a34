"""Choose inducing inputs: by k-means, as a random subset, or greedily, which also chooses m.

A given Z goes straight into `Parameters`. The first functions look at rows in this process, the last at
a sample of rows that live on workers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp._util.checks import silenced, warn_user
from distgp.data import shard as samples
from distgp.data.partition import kmeans_centres
from distgp.data.shard import Shard, unstack
from distgp.engines import Placement, travels
from distgp.kernels import Kernel, coordinates

SAMPLE = 4096
"""Rows that the greedy rule looks at, at least; the rest of a large shard adds little."""


def random_subset(X: Tensor, m: int, seed: int) -> Tensor:
    """Draw m distinct rows of X at random."""
    _check_size(X, m)
    chosen = np.random.default_rng(seed).choice(len(X), size=m, replace=False)
    return X[torch.as_tensor(chosen, device=X.device)]


def kmeans(X: Tensor, m: int, seed: int) -> Tensor:
    """The m centres of k-means on a sample of the rows."""
    _check_size(X, m)
    centres = kmeans_centres(X.detach().cpu().numpy(), m, seed)
    return torch.as_tensor(centres, dtype=X.dtype, device=X.device)


class InducingWarning(UserWarning):
    """The greedy rule stopped at its cap, before its own condition was met."""


def greedy(
    X: Tensor,
    kernel: Kernel,
    noise: float,
    seed: int,
    share: float = 0.01,
    largest: int = 1024,
) -> Tensor:
    """Rows of X by largest conditional variance, until little is left: chooses m by itself.

    A pivoted Cholesky factorisation of K on a sample of rows. Each step takes the row that the
    rows before it explain least; the rule stops at the first m for which the rows not taken have a
    mean residual variance, tr(K − Q) / (s − m), of at most `share` of the noise variance. Where
    that takes more than `largest` it stops there, and says how much is left.
    """
    if not 0 < share < 1 or largest < 1 or not noise > 0:
        raise ValueError(
            f"expected 0 < share < 1, largest ≥ 1 and noise > 0, got {share}, {largest}, {noise}"
        )
    sample = _sample(X, max(SAMPLE, 4 * largest), seed)
    cap = min(largest, len(sample))
    pivots, left = _pivots(sample, kernel, share * noise, cap)
    if left > share * noise and len(pivots) == cap < len(sample):
        warn_user(
            f"{cap} inducing inputs leave a residual variance of {left / noise:.2g} times the noise, "
            f"more than the share {share:g} asked for: raise `largest` if time allows",
            InducingWarning,
        )
    return sample[pivots]


def first_greedy(X: Tensor, kernel: Kernel, m: int, seed: int) -> Tensor:
    """The first m rows in the greedy order, then other rows where nothing is left to explain."""
    _check_size(X, m)
    sample = _sample(X, max(SAMPLE, 4 * m), seed)
    pivots, _ = _pivots(sample, kernel, 0.0, m)
    others = torch.ones(len(sample), dtype=torch.bool, device=X.device)
    others[pivots] = False
    return torch.cat([sample[pivots], sample[others][: m - len(pivots)]])


def spread(shards: Placement[Shard], m: int, seed: int) -> Tensor:
    """The k-means centres of a sample of all shards, at most m."""
    X = samples.central(shards, SAMPLE, seed).X
    return kmeans(X, min(m, len(torch.unique(X, dim=0))), seed)


def greedy_for(
    kernel: Kernel,
    shards: Placement[Shard],
    m: int,
    seed: int,
    noise: float | None = None,
    twice: bool = False,
) -> Tensor:
    """At most m inputs in the greedy order, from a sample of all shards.

    Given the noise variance, no more than the greedy rule asks for, or `twice` that.
    """
    X = samples.central(shards, max(SAMPLE, 4 * m), seed).X
    m = min(m, len(X))
    if noise is None:
        return first_greedy(X, kernel, m, seed)
    with silenced(InducingWarning):  # that the rule ends at its cap is expected here
        Z = greedy(X, kernel, noise, seed, largest=m)
    return first_greedy(X, kernel, min(m, 2 * len(Z)), seed) if twice else Z


def centres_for(kernel: Kernel, shards: Placement[Shard], m: int, seed: int) -> Tensor:
    """At most m k-means centres of a sample of all rows, in units of the kernel's lengthscales."""
    X = samples.drawn(shards, max(SAMPLE, 4 * m), seed).X
    located = coordinates(kernel, X)
    scale = torch.ones_like(X[0])
    if located is not None and located.shape == X.shape:
        scale = (located.std(0) / X.std(0)).nan_to_num(1.0, 1.0, 1.0).clamp_min(1e-6)
    return kmeans(X * scale, min(m, len(torch.unique(X, dim=0))), seed) / scale


def greedy_each(
    kernel: Kernel, shards: Placement[Shard], m: int | None, most: int | None, seed: int
) -> Tensor:
    """Each shard's own inputs in the greedy order, (M, m, d); by default a tenth of its rows.

    No shard can give more than its rows, so m is at most the shortest shard's length, and `most`.
    """
    least = int(samples.sizes(shards).min())
    m = min(max(16, least // 10) if m is None else m, least, least if most is None else most)
    return torch.cat(shards.map(_greedy_per_shard, kernel, m, seed))


@travels("inducing", kernel="parameters")
def _greedy_per_shard(batch: Shard, kernel: Kernel, m: int, seed: int) -> Tensor:
    return torch.stack([first_greedy(shard.X, kernel, m, seed) for shard in unstack(batch)])


def _pivots(sample: Tensor, kernel: Kernel, tolerance: float, largest: int) -> tuple[Tensor, float]:
    with torch.no_grad():
        wide, k = sample.to(torch.float64), kernel.to(dtype=torch.float64)
        return linalg.pivoted_cholesky(
            k.diag(wide), lambda pivot: k(wide, wide[pivot : pivot + 1])[:, 0], tolerance, largest
        )


def _sample(X: Tensor, size: int, seed: int) -> Tensor:
    return X if len(X) <= size else random_subset(X, size, seed)


def _check_size(X: Tensor, m: int) -> None:
    if not 1 <= m <= len(X):
        raise ValueError(f"expected between 1 and {len(X)} inducing inputs (the rows), got {m}")
