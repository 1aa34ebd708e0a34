"""The rules behind "auto", with the costs that they come from, and names turned into objects.

`benchmarks/estimator.py` measures them, on two CPU cores. Training exact experts of s rows costs about
s²n a round. On a smooth function small shards lose nothing and are cheap; on a rough one, where rows
never suffice, the error falls as s grows, and sparse experts are far worse. So s is as large as
seems affordable: 1,000. Two-level adds n² kernel values, again for every n rows predicted: beyond
20,000 rows sparse experts take over, whose cost is linear in n, and constant for training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from distgp.aggregation import Aggregator, Ensemble, OptLocal, PoE, Pooled, TwoLevel

EXACT_SHARD = 1_000
"""Rows of an exact expert, at most."""
EXACT_ROWS = 20_000
"""Rows up to which experts are exact: beyond, the n² kernel values of two-level weigh too much."""
SPARSE_SHARD = 32
"""Rows of a sparse expert for each inducing input: its m³ is then little beside its nm²."""
EXPERT_MEMORY = 2**30
"""Bytes that the m × m matrices of all sparse experts may take together."""
LARGEST_INDUCING = 1024
"""Inducing inputs at most, where the greedy rule chooses; a row costs m² to condition and to predict."""
TRAINING_INDUCING = (256, 512)
"""Inducing inputs at most in the two stages of training; they are chosen anew in between."""
TRAINING_ROWS = 10_000
"""Rows that sparse training looks at: the cost of training does not depend on n then."""

Named = TypeVar("Named")


def by_name(kind: str, value: Any, registry: Mapping[str, type[Named]], base: type[Named]) -> Named:
    """An object as it is, or the one that a name stands for, with its defaults."""
    if isinstance(value, base):
        return value
    if isinstance(value, str) and value in registry:
        return registry[value]()
    raise ValueError(
        f"{kind} must be one of {', '.join(map(repr, registry))} or a {base.__name__} object, "
        f"got {value!r}"
    )


def expert_kind(n: int) -> str:
    """Exact while n² is small, sparse beyond."""
    return "exact" if n <= EXACT_ROWS else "sparse"


def number_of_experts(n: int, kind: str, largest_inducing: int) -> int:
    """Exact: shards of at most 1,000 rows. Sparse: 32 rows an inducing input, within the memory."""
    if kind == "exact":
        return math.ceil(n / EXACT_SHARD)
    by_rows = math.ceil(n / (SPARSE_SHARD * largest_inducing))
    by_memory = EXPERT_MEMORY // (2 * 8 * largest_inducing**2)
    return max(1, min(by_rows, by_memory, n))


def cross_validated_experts(n: int) -> list[int]:
    """The paper's candidates: ⌊√n / i⌋ for i = 4, 5, 6."""
    return sorted({max(1, int(math.sqrt(n) / i)) for i in (4, 5, 6)})


def aggregator(ensemble: Ensemble) -> Aggregator:
    """What comes closest to the full GP for these experts.

    Pooled, the full sparse GP itself, where sparse experts share θ and Z; opt-local where hyperparameters
    differ; two-level else. One exact expert is the full GP: poe returns it as it is.
    """
    if ensemble.shares_inducing:
        return Pooled()
    if ensemble.size == 1:
        return PoE()
    return TwoLevel() if ensemble.shares_hyperparameters else OptLocal()


def seed_of(random_state: Any) -> int:
    """One seed from what scikit-learn accepts as a random state."""
    from sklearn.utils import check_random_state

    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
