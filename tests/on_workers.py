"""What tests send to the workers of a cluster, which import it from here."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from distgp.engines import travels
from distgp.experts import ExactExpert


@dataclass(frozen=True)
class Numbers:
    """A source of three numbers from `start` on."""

    start: float

    def __call__(self):
        return self.start + torch.arange(3.0)


@dataclass(frozen=True)
class Once:
    """A source that works once."""

    path: Path

    def __call__(self):
        self.path.touch(exist_ok=False)
        return 1.0


class SlowExpert(ExactExpert):
    """Takes its time over the objective, so that there is time to be killed in."""

    def objective(self, parameters, shard):
        time.sleep(0.2)
        return super().objective(parameters, shard)


def plus(item, *arguments):
    return item + sum(arguments)


def targets_plus(batch, *arguments):
    return plus(batch.y, *arguments)


def total(item):
    return float(item.sum())


def late(item, seconds):
    time.sleep(seconds)
    return seconds


def kept(item, wanted):
    return item if wanted else None


def tail(item, first, *rest):
    return first, rest


def fails(item, text):
    raise ValueError(text)


def dies(item):
    os._exit(1)


@travels("sums", factor="weights")
def scaled_sum(item, factor=None):
    return item.sum() if factor is None else (item * factor).sum()


@travels({"values": "rows", "*": "counts"})
def values_and_count(item):
    return {"values": item, "count": len(item)}


def as_numbers(item):
    return item.tolist()
