"""Where inducing inputs come from: k-means, a random subset, or greedily, which also chooses m.

A given Z needs no function: it goes straight into `Parameters`. Z drawn from all rows is shared
by the experts; drawn shard by shard and stacked it is each expert's own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp.clustering import kmeans_centres
from distgp.kernels import Kernel

SAMPLE = 4096
"""Rows that the greedy rule looks at, at least; the rest of a large shard adds little."""


def random_subset(X: Tensor, m: int, seed: int) -> Tensor:
    """M distinct rows of X, at random."""
    _check_size(X, m)
    chosen = np.random.default_rng(seed).choice(len(X), size=m, replace=False)
    return X[torch.as_tensor(chosen, device=X.device)]


def kmeans(X: Tensor, m: int, seed: int) -> Tensor:
    """The m centres of k-means on a sample of the rows."""
    _check_size(X, m)
    centres = kmeans_centres(X.detach().cpu().numpy(), m, seed)
    return torch.as_tensor(centres, dtype=X.dtype, device=X.device)


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
    mean residual variance, tr(K − Q) / (s − m), of at most `share` of the noise variance, or at
    `largest`. The collapsed bound then lies within about n·share/2 of its best, plus what Q does
    to the fit; sparse and exact expert are the same in practice.
    """
    if not 0 < share < 1 or largest < 1:
        raise ValueError(f"expected 0 < share < 1 and largest ≥ 1, got {share} and {largest}")
    with torch.no_grad():
        sample = _sample(X, max(SAMPLE, 4 * largest), seed)
        pivots = linalg.pivoted_cholesky(
            kernel.diag(sample),
            lambda pivot: kernel(sample, sample[pivot : pivot + 1])[:, 0],
            tolerance=share * noise,
            largest=min(largest, len(sample)),
        )
    return sample[pivots]


def _sample(X: Tensor, size: int, seed: int) -> Tensor:
    return X if len(X) <= size else random_subset(X, size, seed)


def _check_size(X: Tensor, m: int) -> None:
    if not 1 <= m <= len(X):
        raise ValueError(f"expected between 1 and {len(X)} inducing inputs (the rows), got {m}")
