"""Engines place items on workers and run functions where the items are.

An item is whatever a source makes, on the worker that it is placed on. Functions are called with the item
and the arguments sent along; what they return travels back, or, with `derive`, stays as a new item.

Whoever makes a value that travels says what it is: a class by an attribute `travels_as`, a function that
runs on workers by the decorator `travels`. Engines count bytes by these kinds, and can be told which of
them may leave a worker.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

Kinds: TypeAlias = str | Mapping[str, str]
"""One kind for a whole value; or kinds by the names of its parts, with "*" for all other parts."""
Function: TypeAlias = Callable[..., Any]
"""A function that runs on workers: of an item, and of the arguments that are sent along."""
Each: TypeAlias = Sequence[Any] | None
"""One further argument for each item, where there is one."""
Named = TypeVar("Named", bound=Function)
Item = TypeVar("Item")
Result = TypeVar("Result")
Some = TypeVar("Some", bound="Placement[Any]")

ARRAYS = (Tensor, np.ndarray)
WHOLE = (*ARRAYS, str, bytes, int, float, np.generic, type, FunctionType, MethodType, ModuleType)
"""Types of values that are not looked into."""
OTHER = "other"
SETTINGS = "settings"
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "rows": "inputs with targets, row numbers, weights and noise",
        "inputs": "inputs of rows, without targets",
        "categories": "the distinct values of a column of text",
        "counts": "numbers of rows and of experts",
        "moments": "sums, means and products of columns over all rows of a worker",
        "sums": "sums over all rows of a shard, and what is computed from them alone",
        "gradients": "the objective over all rows of a shard, and its derivatives",
        "parameters": "θ (kernel, noise, inducing inputs in training) and the state of training",
        "inducing": "inducing or central inputs that have been chosen",
        "means": "coefficients of experts' means; for exact experts one per row",
        "factors": "factorised kernel matrices of an expert's rows",
        "solve": "vectors from which targets can be computed, in a solve with all rows",
        "basis": "the kernel functions that are summed",
        "weights": "the experts' weights in a combination",
        "points": "inputs to predict at",
        "predictions": "means, variances and covariances at points",
        "projections": "experts' means at points, as combinations of values of f",
        "distances": "distances and correlations between points and rows, and places of rows",
        SETTINGS: "options that tell a worker what to do",
        OTHER: "anything without a kind of its own",
    }
)
"""All kinds, each with a description of what it covers."""


def travels(result: Kinds = OTHER, /, **arguments: Kinds) -> Callable[[Named], Named]:
    """Say what a function that runs on workers returns, and by name what its arguments are.

    Parameters
    ----------
    result : str or mapping of str to str, optional
        The kind of what it returns, or kinds by the names of parts; parts that have a `travels_as` of
        their own keep it. Not needed where the result stays on the worker or has one itself.
    **arguments : str or mapping of str to str
        The same for the arguments that are sent along.

    Examples
    --------
    >>> @travels("predictions", X="points")
    ... def means(expert, X):
    ...     return expert.mean(X)
    """
    for kinds in (result, *arguments.values()):
        check_kinds([kinds] if isinstance(kinds, str) else kinds.values())

    def named(function: Named) -> Named:
        names = list(inspect.signature(function).parameters)[1:]
        assert arguments.keys() <= {*names}, f"{function.__qualname__} has no such arguments"
        sent = [arguments.get(name, OTHER) for name in names]
        function.__dict__.update(travels_as=result, arguments_travel_as=sent)
        return function

    return named


def check_kinds(kinds: Collection[str]) -> frozenset[str]:
    """Return kinds as a set, if all of them are known."""
    if isinstance(kinds, str) or not set(kinds) <= KINDS.keys():
        raise ValueError(f"expected kinds among {', '.join(KINDS)}, got {kinds!r}")
    return frozenset(kinds)


class Traffic:
    """The bytes that travelled, by kind: `sent` to workers and `received` from them."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    def send(self, value: object, kinds: Kinds = OTHER, copies: int = 1) -> None:
        """Count a value that goes to this many workers."""
        for kind, size in bytes_by_kind(value, kinds, SETTINGS).items():
            self.sent[kind] += copies * size

    def call(self, function: Function, arguments: Sequence[Any], each: Each, copies: int) -> None:
        """Count the arguments of a call on this many workers, and those that each worker gets alone."""
        kinds = list(getattr(function, "arguments_travel_as", ()))
        kinds += [OTHER] * (len(arguments) + 1 - len(kinds))
        for value, kind in zip(arguments, kinds, strict=False):
            self.send(value, kind, copies)
        for value in () if each is None else each:
            self.send(value, kinds[len(arguments)])

    def receive(self, value: object, function: Function) -> None:
        """Count what a function returned on one worker."""
        self.received.update(bytes_by_kind(value, getattr(function, "travels_as", OTHER)))

    def total(self) -> dict[str, int]:
        """The bytes of both directions, by kind."""
        return dict(self.sent + self.received)


def bytes_by_kind(value: object, kinds: Kinds = OTHER, plain: str = OTHER) -> Counter[str]:
    """Count the bytes of all in a value, as far as it is pickled, by kind; unnamed numbers are `plain`."""
    total: Counter[str] = Counter()
    for kind, size, is_array in _pieces(value, kinds, frozenset()):
        total[plain if kind == OTHER and not is_array else kind] += size
    if not total.keys() <= KINDS.keys():
        raise ValueError(f"expected kinds among {', '.join(KINDS)}, got {', '.join(total)}")
    return total


def _pieces(value: object, kinds: Kinds, inside: frozenset[int]) -> Iterator[tuple[str, int, bool]]:
    """Yield kind and bytes of all in a value that has no parts, and whether it is an array."""
    if value is None or id(value) in inside:  # a circle ends there
        return
    kinds = getattr(value, "travels_as", kinds)
    parts = None if isinstance(value, WHOLE) else _parts(value)
    if parts is None:
        kind = kinds if isinstance(kinds, str) else kinds.get("*", OTHER)
        yield kind, _size(value), isinstance(value, ARRAYS)
        return
    inside = inside | {id(value)}
    for name, part in parts:
        own = kinds if isinstance(kinds, str) else kinds.get(name, kinds)
        yield from _pieces(part, own, inside)


def _parts(value: object) -> Iterable[tuple[str, Any]] | None:
    """Return the parts of a value with their names, empty where they have none; None if it is whole."""
    if isinstance(value, list | tuple | set | frozenset):
        return [("", part) for part in value]
    if isinstance(value, Mapping):
        return value.items()
    if not hasattr(value, "__dict__"):
        return None
    state = value.__getstate__()
    if not isinstance(state, dict):
        return [("", state)]
    return [(name, part) for name, part in state.items() if name != "travels_as"]


def _size(value: object) -> int:
    """Return the bytes of a value without parts."""
    if isinstance(value, str | bytes):
        return len(value)
    return 8 if isinstance(value, int | float) else getattr(value, "nbytes", sys.getsizeof(value))


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
        found = +bytes_by_kind(result, getattr(function, "travels_as", OTHER))
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
        own = [()] * len(self) if each is None else [(value,) for value in each]
        pairs = zip(self.items, own, strict=True)
        return [function(item, *arguments, *last) for item, last in pairs]


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
