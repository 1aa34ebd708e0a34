"""The kinds of what travels between workers and the centre: named, counted, and held back if need be.

Whoever makes a value says what it is: a class by an attribute `travels_as`, a function that runs on
workers by the decorator `travels`. Engines count bytes by these kinds, and can be told which of them may
leave a worker.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

Kinds: TypeAlias = str | Mapping[str, str]
"""One kind for a whole value; or kinds by the names of its parts, with "*" for all other parts."""
Function: TypeAlias = Callable[..., Any]
"""A function that runs on workers: of an item, and of the arguments that are sent along."""
Each: TypeAlias = Sequence[Any] | None
"""One further argument for each item, where there is one."""
Named = TypeVar("Named", bound=Function)

ARRAYS = (Tensor, np.ndarray)
WHOLE = (*ARRAYS, str, bytes, int, float, np.generic, type, FunctionType, MethodType, ModuleType)
"""Types of values that are not looked into."""
OTHER = "other"
SETTINGS = "settings"
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "rows": "inputs with their targets, and the rows' numbers, weights and noise",
        "inputs": "inputs of rows, without their targets",
        "categories": "the distinct values of a column of text",
        "counts": "numbers of rows and of experts",
        "moments": "sums, means and products of columns over all rows of a worker",
        "sums": "sums over all rows of a shard of functions of each row, and what is made of them alone",
        "gradients": "values of the objective over all rows of a shard, and their derivatives",
        "parameters": "θ: kernel, noise, inducing inputs in training; and what training keeps beside it",
        "inducing": "inducing inputs, or central ones, that have been chosen",
        "means": "coefficients of experts' means; for exact experts one per row",
        "factors": "factorised kernel matrices of an expert's rows",
        "basis": "functions that sums are taken on",
        "weights": "the experts' weights in a combination",
        "points": "inputs at which something is asked of the experts",
        "predictions": "means, variances and covariances at points",
        "projections": "experts' means at points as combinations of values of f",
        "distances": "distances and correlations between points and rows, and places of rows",
        SETTINGS: "numbers, names and options that tell a worker what to do",
        OTHER: "anything that does not say what it is",
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
        for kind, size in measured(value, kinds, SETTINGS).items():
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
        self.received.update(returned(value, function))

    def total(self) -> dict[str, int]:
        """The bytes of both directions, by kind."""
        return dict(self.sent + self.received)


def returned(value: object, function: Function) -> Counter[str]:
    """Count the bytes of a function's result, by kind."""
    return measured(value, getattr(function, "travels_as", OTHER))


def measured(value: object, kinds: Kinds = OTHER, plain: str = OTHER) -> Counter[str]:
    """Count the bytes of all arrays, numbers and texts in a value, as far as it is pickled, by kind.

    It is of these `kinds`, unless it has a `travels_as`. Numbers and texts that nobody gives a kind are
    `plain`.
    """
    total: Counter[str] = Counter()
    for kind, size, is_array in _pieces(value, kinds, frozenset()):
        total[plain if kind == OTHER and not is_array else kind] += size
    if not total.keys() <= KINDS.keys():
        raise ValueError(f"expected kinds among {', '.join(KINDS)}, got {', '.join(total)}")
    return total


def _pieces(value: object, kinds: Kinds, inside: frozenset[int]) -> Iterator[tuple[str, int, bool]]:
    """Yield kind and bytes of all in a value that has no parts, and whether it is an array.

    `inside` has the ids of all that the value is a part of: a circle ends there.
    """
    if value is None or id(value) in inside:
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
