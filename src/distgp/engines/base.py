"""What an engine is: it puts items onto workers, and runs functions where the items are.

An engine knows nothing of GPs. An item is whatever a source makes, on the worker that it is placed
on; functions get the item and the arguments sent along, and what they return travels back, or, with
`derive`, stays. How many bytes of which kind travelled is counted.
"""

from __future__ import annotations

import dataclasses
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
OTHER = "other"
"""The kind of what does not say what it travels as."""


class EngineError(RuntimeError):
    """Workers are lost, or take too long, and retrying did not help."""


class Placement(ABC, Generic[Item]):
    """Items that stay where they are, one a worker."""

    @abstractmethod
    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """function(item, *arguments) for every item, in order."""

    @abstractmethod
    def first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """function(item, *arguments) for the first item alone."""

    @abstractmethod
    def derive(self, function: Callable[..., Any], *arguments: Any) -> Placement[Any]:
        """What the function makes of each item, placed beside it; None is left out."""

    @abstractmethod
    def here(self) -> tuple[Item, ...]:
        """The items themselves, brought to this process if they are elsewhere."""


class Engine(ABC):
    """Where items live."""

    name: ClassVar[str]
    traffic: Traffic
    users: weakref.WeakSet[Any]
    """Whoever has items here: who comes last may close an engine that nobody owns."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many items are worked on at once."""

    @abstractmethod
    def scatter(
        self, sources: Sequence[Callable[[], Item]], names: Sequence[str]
    ) -> Placement[Item]:
        """Place what each source makes; `names` say in errors what is lost with a worker."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all workers."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Traffic:
    """Bytes that travelled, by kind: sent to workers, and received from them."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    def send(self, value: Any, copies: int = 1) -> None:
        """Count what goes to this many workers."""
        for kind, size in measured(value).items():
            self.sent[kind] += copies * size

    def receive(self, value: Any) -> None:
        """Count what comes back from one."""
        self.received.update(measured(value))

    def total(self) -> dict[str, int]:
        """Both ways, by kind."""
        return dict(self.sent + self.received)


def measured(value: Any, kind: str = OTHER) -> Counter[str]:
    """Bytes of the arrays in a tree of dataclasses and containers, by what they travel as.

    A class says so itself, by an attribute `travels_as`; its parts follow it unless they know better.
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
