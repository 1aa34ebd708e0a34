"""Rows with the same inputs: rows are known by hashes of their inputs, and counted where they are."""

from __future__ import annotations

import numpy as np

from distgp.data.shard import Shard
from distgp.data.table import BATCH_ROWS
from distgp.engines import Placement, travels

MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Odd numbers by which bits are mixed, those of the generator SplitMix64."""


def hashes(X: np.ndarray) -> np.ndarray:
    """Hash each row of numbers to 64 bits; 0 and −0 are one number."""
    step, first, second = (np.uint64(number) for number in MULTIPLIERS)
    bits = (np.asarray(X, dtype=np.float64) + 0.0).view(np.uint64)
    found = np.zeros(len(X), dtype=np.uint64)
    for column in bits.T:
        found = (found + step) ^ column
        found = (found ^ (found >> np.uint64(30))) * first
        found = (found ^ (found >> np.uint64(27))) * second
        found ^= found >> np.uint64(31)
    return found


def copies_within(X: np.ndarray) -> np.ndarray:
    """Count the rows of X that have the inputs of each row, itself among them, (n,)."""
    _, labels, count = np.unique(hashes(X), return_inverse=True, return_counts=True)
    return count[labels]


def copies_among(placement: Placement[Shard], X: np.ndarray) -> np.ndarray:
    """Count the rows of all shards that have the inputs of each row of X, (n,)."""
    known, labels = np.unique(hashes(X), return_inverse=True)
    return np.sum(placement.map(_counted, known), axis=0)[labels]


@travels("counts", known="inputs")
def _counted(batch: Shard, known: np.ndarray) -> np.ndarray:
    """Count the rows of a worker that have each of these hashes, which are in ascending order."""
    count = np.zeros(len(known), dtype=np.int64)
    for some in batch.flatten().chunks(BATCH_ROWS):
        found = hashes(some.without_padding().X.cpu().numpy())
        places = np.searchsorted(known, found).clip(max=len(known) - 1)
        count += np.bincount(places[known[places] == found], minlength=len(known))
    return count
