"""Engines place items on workers and run functions where the items are.

An engine knows nothing of Gaussian processes. An item is whatever a source makes, on the worker that
it is placed on. Functions are called with the item and the arguments sent along; what they return
travels back, or, with `derive`, stays on the worker as a new item.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from distgp.engines.traffic import Each, Function, Traffic, check_kinds, returned

if TYPE_CHECKING:
    from distgp.engines.base import LocalPlacement
from dataclasses import dataclass

Item = TypeVar("Item")
Result = TypeVar("Result")
Some = TypeVar("Some", bound="Placement[Any]")


class EngineWarning(UserWarning):
    """A cluster is other than was asked for, or open to others."""


class EngineError(RuntimeError):
    """Workers were lost or took too long, and retrying did not help."""


class MayNotLeaveError(EngineError):
    """A result was of a kind that may not leave its worker; it has not left."""


class Placement(ABC, Generic[Item]):
    """Items that stay where they are, one per worker: shards, or experts."""

    may_leave: frozenset[str] | None = None
    """The kinds of results that may leave the workers; None for all."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of items."""

    @abstractmethod
    def map(
        self, function: Callable[..., Result], *arguments: Any, each: Each = None
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
            The results, in the order of the items.

        Raises
        ------
        MayNotLeaveError
            If a result is of a kind that may not leave. It is raised before anything leaves.
        """

    @abstractmethod
    def on_first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call ``function(item, *arguments)`` on the first item alone."""

    @abstractmethod
    def derive(self, function: Function, *arguments: Any, each: Each = None) -> Placement[Any]:
        """Place what a function makes of each item beside it; arguments as for `map`.

        Items for which the function returns None are left out of the new placement.
        """

    @abstractmethod
    def gather(self) -> LocalPlacement[Item]:
        """Bring a copy of every item into this process, if all that is in it may leave."""

    def only(self, *kinds: str) -> Placement[Item]:
        """Return a placement of the same items, from which results of these kinds alone may leave.

        The restriction holds for all that is derived from it too. It can be narrowed, but not widened.

        Parameters
        ----------
        *kinds : str
            Kinds of `distgp.engines.KINDS`.
        """
        allowed = check_kinds(kinds)
        both = allowed if self.may_leave is None else allowed & self.may_leave
        return guarded(self.derive(itself), both)


class Engine(ABC):
    """A place where items live and work is done: this process, or a cluster.

    Parameters
    ----------
    may_leave : collection of str, optional
        The kinds of results, of `distgp.engines.KINDS`, that may leave a worker; all by default.
    """

    name: ClassVar[str]

    def __init__(self, may_leave: Collection[str] | None = None) -> None:
        self.may_leave = None if may_leave is None else check_kinds(may_leave)
        self.traffic = Traffic()
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def itself(item: Item) -> Item:
    """Return the item; it travels as what it says that it is."""
    return item


def guarded(placement: Some, may_leave: frozenset[str] | None) -> Some:
    """Have results of these kinds alone leave the workers of a placement that nobody has yet."""
    object.__setattr__(placement, "may_leave", may_leave)
    return placement


def released(result: Result, function: Function, may_leave: Collection[str] | None) -> Result:
    """Return a function's result, on its worker, if all that is in it may leave."""
    if may_leave is not None:
        found = +returned(result, function)
        held = sorted(found.keys() - may_leave)
        if held:
            raise MayNotLeaveError(
                f"{', '.join(f'{kind} ({found[kind]:,} bytes)' for kind in held)} would leave a worker "
                f"as the result of {function.__module__}.{function.__qualname__}, and only "
                f"{', '.join(sorted(may_leave)) or 'nothing'} may leave: choose a method that keeps "
                f"{'it' if len(held) == 1 else 'them'} there, or add to may_leave"
            )
    return result


@dataclass(frozen=True, eq=False)
class LocalPlacement(Placement[Item]):
    """Items in this process. Nothing travels."""

    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    def map(
        self, function: Callable[..., Result], *arguments: Any, each: Each = None
    ) -> list[Result]:
        """Call the function on one item after the other; PyTorch uses all cores for each."""
        found = self._called(function, arguments, each)
        return [released(result, function, self.may_leave) for result in found]

    def on_first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call the function on the first item alone."""
        return released(function(self.items[0], *arguments), function, self.may_leave)

    def derive(self, function: Function, *arguments: Any, each: Each = None) -> LocalPlacement[Any]:
        """Keep what the function makes of each item; None is left out."""
        made = self._called(function, arguments, each)
        kept = LocalPlacement(tuple(item for item in made if item is not None))
        return guarded(kept, self.may_leave)

    def gather(self) -> LocalPlacement[Item]:
        """Return the placement itself, since its items are here already."""
        return self if self.may_leave is None else LocalPlacement(tuple(self.map(itself)))

    def _called(self, function: Function, arguments: Sequence[Any], each: Each) -> list[Any]:
        if each is None:
            return [function(item, *arguments) for item in self.items]
        pairs = zip(self.items, each, strict=True)
        return [function(item, *arguments, own) for item, own in pairs]


class LocalEngine(Engine):
    """One process, and in it one worker: experts that live together are worked on together.

    Parameters
    ----------
    may_leave : collection of str, optional
        The kinds of results, of `distgp.engines.KINDS`, that may leave a worker; all by default.
    """

    name: ClassVar[str] = "local"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a new engine: nothing lives in the object itself."""
        return LocalEngine, (self.may_leave,)

    @property
    def workers(self) -> int:
        """One."""
        return 1

    def scatter(
        self, sources: Sequence[Callable[[], Item]], names: Sequence[str]
    ) -> LocalPlacement[Item]:
        """Make the items here."""
        del names
        return guarded(LocalPlacement(tuple(source() for source in sources)), self.may_leave)

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""
