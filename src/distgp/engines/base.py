"""What an engine is: it places items on workers and runs functions where the items are.

An engine knows nothing of Gaussian processes. An item is whatever a source makes, on the worker that
it is placed on. Functions are called with the item and the arguments sent along; what they return
travels back, or, with `derive`, stays on the worker as a new item. The bytes that travel are counted
by kind.
"""

from __future__ import annotations

import dataclasses
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from distgp.engines.local import LocalPlacement

Item = TypeVar("Item")
Result = TypeVar("Result")
OTHER = "other"
"""The kind under which values are counted that do not say what they travel as."""


class EngineWarning(UserWarning):
    """A cluster is other than was asked for, or open to others."""


class EngineError(RuntimeError):
    """Workers were lost or took too long, and retrying did not help."""


class Placement(ABC, Generic[Item]):
    """Items that stay where they are, one per worker: shards, or experts."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of items."""

    @abstractmethod
    def map(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        each: Sequence[Any] | None = None,
    ) -> list[Result]:
        """Call a function on every item, where the item is.

        Parameters
        ----------
        function : callable
            Called as ``function(item, *arguments)``, or ``function(item, *arguments, each[i])``.
        *arguments
            Sent to every worker.
        each : sequence, optional
            One further argument per item, sent to that item's worker alone.

        Returns
        -------
        list
            What the function returned, in the order of the items.
        """

    @abstractmethod
    def on_first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call ``function(item, *arguments)`` on the first item alone."""

    @abstractmethod
    def derive(
        self, function: Callable[..., Any], *arguments: Any, each: Sequence[Any] | None = None
    ) -> Placement[Any]:
        """Place what a function makes of each item beside it; arguments as for `map`.

        Items for which the function returns None are left out of the new placement.
        """

    @abstractmethod
    def gather(self) -> LocalPlacement[Item]:
        """Bring a copy of every item into this process."""


class Engine(ABC):
    """A place where items live and work is done: this process, or a cluster."""

    name: ClassVar[str]
    traffic: Traffic
    users: weakref.WeakSet[Any]
    """Estimators with items here. The last of them may close an engine that nobody owns."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """The number of items that are worked on at the same time."""

    @abstractmethod
    def scatter(
        self, sources: Sequence[Callable[[], Item]], names: Sequence[str]
    ) -> Placement[Item]:
        """Place what each source makes.

        Parameters
        ----------
        sources : sequence of callables
            Each makes one item when it is called on its worker, and again if that worker is lost.
        names : sequence of str
            What error messages call the items.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of all workers."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Traffic:
    """The bytes that travelled, by kind: `sent` to workers and `received` from them."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    def send(self, value: Any, copies: int = 1) -> None:
        """Count a value that goes to this many workers."""
        for kind, size in measured(value).items():
            self.sent[kind] += copies * size

    def receive(self, value: Any) -> None:
        """Count a value that comes back from one worker."""
        self.received.update(measured(value))

    def total(self) -> dict[str, int]:
        """The bytes of both directions, by kind."""
        return dict(self.sent + self.received)


def measured(value: Any, kind: str = OTHER) -> Counter[str]:
    """Count the bytes of all arrays in a tree of dataclasses and containers, by kind.

    A class names the kind of its arrays in an attribute `travels_as`; its parts have the same kind
    unless they name another.
    """
    if isinstance(value, Tensor | np.ndarray):
        return Counter({kind: value.nbytes})
    kind = getattr(value, "travels_as", kind)
    parts: Sequence[Any] = ()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, spec.name) for spec in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = value
    total: Counter[str] = Counter()
    for part in parts:
        total += measured(part, kind)
    return total
