"""The kinds of what travels between workers and the centre: named, counted, and held back if need be.

Whoever makes a value says what it is: a class by an attribute `travels_as`, a function that runs on
workers by the decorator `travels`. Engines count bytes by these kinds, and can be told which of them may
leave a worker.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Number
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

Kinds: TypeAlias = str | Mapping[str, str]
"""One kind for a whole value; or kinds by the names of its parts, with "*" for all other parts."""
Worker = TypeVar("Worker", bound=Callable[..., Any])

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


def travels(result: Kinds = OTHER, /, **arguments: Kinds) -> Callable[[Worker], Worker]:
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

    def named(function: Worker) -> Worker:
        names = list(inspect.signature(function).parameters)[1:]
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

    def call(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        each: Sequence[Any] | None,
        copies: int,
    ) -> None:
        """Count the arguments of a call on this many workers, and those that each worker gets alone."""
        kinds = list(getattr(function, "arguments_travel_as", ()))
        kinds += [OTHER] * (len(arguments) + 1 - len(kinds))
        for value, kind in zip(arguments, kinds, strict=False):
            self.send(value, kind, copies)
        for value in () if each is None else each:
            self.send(value, kinds[len(arguments)])

    def receive(self, value: object, function: Callable[..., Any]) -> None:
        """Count what a function returned on one worker."""
        self.received.update(returned(value, function))

    def total(self) -> dict[str, int]:
        """The bytes of both directions, by kind."""
        return dict(self.sent + self.received)


def returned(value: object, function: Callable[..., Any]) -> Counter[str]:
    """Count the bytes of a function's result, by kind."""
    return measured(value, getattr(function, "travels_as", OTHER))


def measured(
    value: object,
    kinds: Kinds = OTHER,
    plain: str = OTHER,
    inside: frozenset[int] = frozenset(),
) -> Counter[str]:
    """Count the bytes of all arrays, numbers and texts in a value, by kind.

    Parameters
    ----------
    value : object
        Looked into as far as it is pickled.
    kinds : str or mapping of str to str
        What it is, unless its class has a `travels_as`.
    plain : str
        The kind of numbers and texts that nobody gives one.
    inside : frozenset of int
        The ids of all that it is a part of: a circle is counted once.
    """
    if value is None or id(value) in inside:
        return Counter()
    kinds, parts = getattr(value, "travels_as", kinds), _parts(value)
    if parts is None:
        return _measured_whole(value, kinds, plain)
    total: Counter[str] = Counter()
    for name, part in parts:
        own = kinds if isinstance(kinds, str) else kinds.get(name, kinds)
        total.update(measured(part, own, plain, inside | {id(value)}))
    return total


def _parts(value: object) -> list[tuple[str, Any]] | None:
    """Return the parts of a value with their names, empty where they have none; None if it is whole."""
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [("", part) for part in value]
    whole = Tensor | np.ndarray | type | FunctionType | MethodType | ModuleType
    if isinstance(value, whole) or not hasattr(value, "__dict__"):
        return None
    state = value.__getstate__()
    named = state if isinstance(state, dict) else {"": state}
    return [(name, part) for name, part in named.items() if name != "travels_as"]


def _measured_whole(value: object, kinds: Kinds, plain: str) -> Counter[str]:
    """Count the bytes of a value that has no parts."""
    kind = kinds if isinstance(kinds, str) else kinds.get("*", OTHER)
    if isinstance(value, Tensor | np.ndarray | np.generic):
        size = value.nbytes
    else:
        kind = plain if kind == OTHER else kind
        size = 8 if isinstance(value, Number) else sys.getsizeof(value)
        size = len(value) if isinstance(value, str | bytes) else size
    if kind not in KINDS:
        raise ValueError(f"expected a kind among {', '.join(KINDS)}, got {kind!r} of {value!r:.80}")
    return Counter({kind: size})
