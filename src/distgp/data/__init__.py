"""Data: shards of rows, where they come from, and how rows are divided over experts."""

from distgp.data.partition import (
    PARTITIONS,
    ColumnPartition,
    ContiguousPartition,
    KMeansPartition,
    Partition,
    RandomPartition,
    split,
    with_communication,
)
from distgp.data.scaling import Scaling
from distgp.data.shard import Shard, central_set, concatenate, place, placed, stack, unstack

__all__ = [
    "PARTITIONS",
    "ColumnPartition",
    "ContiguousPartition",
    "KMeansPartition",
    "Partition",
    "RandomPartition",
    "Scaling",
    "Shard",
    "central_set",
    "concatenate",
    "place",
    "placed",
    "split",
    "stack",
    "unstack",
    "with_communication",
]
