"""A Ray actor holds a shelf of items, and the steps by which they came there make them again."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from distgp.engines.base import released
from distgp.engines.traffic import Function

_DEVICE = ["cpu"]
"""The device that tensors are put on when they arrive in this process."""


def _to_array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _from_array(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array)).to(_DEVICE[0])


def register_tensors() -> None:
    """Have tensors travel as arrays, from any device, and arrive on the device of the receiver.

    Both functions are sent by name, so that the receiver's own `_DEVICE` counts.
    """
    ray.util.register_serializer(Tensor, serializer=_to_array, deserializer=_from_array)


class Worker:
    """An actor: a shelf of items, by number."""

    def __init__(self, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        _DEVICE[0] = device
        register_tensors()
        self._shelf: dict[int, Any] = {}

    def make(self, key: int, source: Callable[[], Any]) -> None:
        """Put what a source makes onto the shelf."""
        self._shelf[key] = source()

    def derive(
        self, key: int, parent: int, function: Function, shared: Sequence[Any], own: Sequence[Any]
    ) -> bool:
        """Put what a function makes of an item onto the shelf; return whether it is more than None."""
        self._shelf[key] = function(self._shelf[parent], *shared, *own)
        return self._shelf[key] is not None

    def apply(
        self,
        key: int,
        function: Function,
        shared: Sequence[Any],
        own: Sequence[Any],
        may_leave: Collection[str] | None,
    ) -> Any:
        """Call a function on an item with the arguments of all workers, then this one's own."""
        return released(function(self._shelf[key], *shared, *own), function, may_leave)

    def forget(self, key: int) -> None:
        """Take an item off the shelf."""
        self._shelf.pop(key, None)

    def pid(self) -> int:
        """Return the number of the actor's process."""
        return os.getpid()


@dataclass(frozen=True)
class Step:
    """One step by which items come onto the shelves: from each worker's source, or from a parent.

    `shared` are the arguments that all workers get and `own` those that each gets alone, or references
    to them; without a parent `own` are the sources.
    """

    key: int
    parent: int | None
    function: Function | None
    shared: Any  # a tuple, or a reference to one
    own: Mapping[int, Any]
