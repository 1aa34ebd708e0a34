"""What runs in a Ray actor: a shelf of items, and the steps by which they came there.

All that an actor holds can be made again: its item from the item's source, and whatever was derived from it
by the functions that derived it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

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
    """What runs in an actor: a shelf of items, by number."""

    def __init__(self, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        _DEVICE[0] = device
        register_tensors()
        self._shelf: dict[int, Any] = {}

    def make(self, key: int, source: Callable[[], Any]) -> None:
        """Put what a source makes onto the shelf."""
        self._shelf[key] = source()

    def derive(self, key: int, parent: int, function: Any, shared: Any, own: Any) -> bool:
        """Put what a function makes of an item onto the shelf; whether it is more than None."""
        self._shelf[key] = self.apply(parent, function, shared, own)
        return self._shelf[key] is not None

    def apply(self, key: int, function: Any, shared: Any, own: Any) -> Any:
        """Call a function on an item with the arguments of all workers, then this one's own."""
        return function(self._shelf[key], *shared, *own)

    def forget(self, key: int) -> None:
        """Take an item off the shelf."""
        self._shelf.pop(key, None)

    def pid(self) -> int:
        """The number of the actor's process."""
        return os.getpid()


@dataclass(frozen=True)
class Step:
    """How an item came onto the shelves: from its parent, or at first from each worker's source.

    Parameters
    ----------
    key : int
        The item's number.
    parent : int or None
        The number of the item that it was derived from.
    function : callable or None
        What derived it.
    shared : Any
        The arguments that all workers get, or a reference to them.
    own : mapping from workers to Any
        The arguments that each worker gets alone, or a reference to them. Without a parent, the source.
    """

    key: int
    parent: int | None
    function: Callable[..., Any] | None
    shared: Any
    own: Mapping[int, Any]
