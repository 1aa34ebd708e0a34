"""What "auto" means: the rules behind the defaults, with the costs that they come from.

`benchmarks/estimator.py` measures them on two CPU cores. Training exact experts of s rows costs about
s²n per round. On a smooth function small shards lose nothing and are cheap; on a rough one, where
rows never suffice, the error falls as s grows, and sparse experts are far worse. So s is as large as
seems affordable: 1,000. Two-level adds n² kernel values, again for every n rows predicted: beyond
20,000 rows sparse experts take over, whose cost is linear in n, and constant for training.
"""

from __future__ import annotations

import math

from distgp.aggregation import Aggregator, Ensemble, Nearest, OptLocal, PoE, Pooled, TwoLevel
from distgp.experts import NearestExpert

EXACT_SHARD = 1_000
"""Rows per exact expert, at most."""
EXACT_ROWS = 20_000
"""Rows up to which experts are exact: beyond, the n² kernel values of two-level weigh too much."""
SPARSE_SHARD = 32
"""Rows per sparse expert for each inducing input: its m³ is then little beside its nm²."""
EXPERT_MEMORY = 2**30
"""Bytes that the m × m matrices of all sparse experts may take together."""
LARGEST_INDUCING = 1024
"""Inducing inputs at most, where the greedy rule chooses; conditioning costs m² per row."""
TRAINING_INDUCING = (256, 512)
"""Inducing inputs at most in the two stages of training; they are chosen anew in between."""
NEAREST_INDUCING = 256
"""Inducing inputs of the global part of nearest experts."""
TRAINING_ROWS = 10_000
"""Rows that sparse training looks at, so that its cost does not depend on n."""
TRAINING = {"exact": "fact", "sparse": "pooled", "nearest": "nearest"}
"""The method of training by kind of expert: with one shard, or sparse experts, that of a single GP."""


def expert(n: int) -> str:
    """The kind of expert for n rows: exact while n² is small, sparse beyond."""
    return "exact" if n <= EXACT_ROWS else "sparse"


def number_of_experts(n: int, kind: str, inducing: int, workers: int = 1) -> int:
    """The number of experts for n rows.

    Parameters
    ----------
    n : int
        The number of rows.
    kind : str
        "exact": shards have at most 1,000 rows. "sparse": shards have 32 rows per inducing input, and
        the experts' matrices fit into the memory allowed for them.
    inducing : int
        The number of inducing inputs of sparse experts, at most.
    workers : int
        The number of workers. How rows are divided changes nothing for nearest experts, and nothing
        but the division of work for sparse ones that share all, so that every worker has one.

    Returns
    -------
    int
    """
    if kind == "exact":
        return math.ceil(n / EXACT_SHARD)
    if kind == "nearest":
        return min(workers, n)
    by_rows = math.ceil(n / (SPARSE_SHARD * inducing))
    by_memory = EXPERT_MEMORY // (2 * 8 * inducing**2)
    return max(1, min(by_rows, by_memory, n), min(workers, n))


def cross_validated_experts(n: int) -> list[int]:
    """The numbers of experts that the paper tries: ⌊√n / i⌋ for i = 4, 5, 6."""
    return sorted({max(1, int(math.sqrt(n) / i)) for i in (4, 5, 6)})


def aggregator(ensemble: Ensemble) -> Aggregator:
    """The aggregator that comes closest to the full GP for these experts.

    Nearest for nearest experts that share θ; pooled, the full sparse GP itself, where sparse experts
    share θ and Z; opt-local where hyperparameters differ; two-level otherwise. One exact expert is
    the full GP, and poe returns it.
    """
    if isinstance(ensemble.expert, NearestExpert) and ensemble.shares_hyperparameters:
        return Nearest()
    if ensemble.shares_inducing:
        return Pooled()
    if ensemble.size == 1:
        return PoE()
    return TwoLevel() if ensemble.shares_hyperparameters else OptLocal()
