"""Checks of what users give as parameters, what names stand for, and warnings at a user's own line."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from pathlib import Path
from typing import TypeAlias, TypeGuard, TypeVar

import numpy as np
from sklearn.utils import check_random_state

PACKAGE = str(Path(__file__).parents[1])
Named = TypeVar("Named")
_silenced: ContextVar[tuple[type[Warning], ...]] = ContextVar("silenced", default=())
Resolver: TypeAlias = Callable[[str, object], object]
"""Returns what a parameter, of a name and a value, stands for; a ValueError says what was expected."""


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line of the user's own code that called into distgp, unless it is `silenced`."""
    if issubclass(category, _silenced.get()):
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


@contextmanager
def silenced(*kinds: type[Warning]) -> Iterator[None]:
    """Say nothing by `warn_user` that is of these kinds, in this thread and those that work for it.

    `warnings.catch_warnings` is no use for that: it changes the filters of the whole process, and fits in
    several threads would leave each other's behind.
    """
    token = _silenced.set((*_silenced.get(), *kinds))
    try:
        yield
    finally:
        _silenced.reset(token)


def did_you_mean(name: object, known: Iterable[object], otherwise: str = ";") -> str:
    """Go on after an unknown name: by asking whether one that is like it was meant, or `otherwise`."""
    by_lower = {other.lower(): other for other in known if isinstance(other, str)}
    text = name.lower()[:100] if isinstance(name, str) else ""
    close = difflib.get_close_matches(text, by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else otherwise


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number; NaN and infinity are, truth values are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number by its type, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_auto(value: object) -> bool:
    """Tell whether a parameter leaves the choice to us."""
    return isinstance(value, str) and value == "auto"


def a_count(*others: str | None) -> Resolver:
    """Expect a positive integer, or one of the other values."""

    def resolve(name: str, value: object) -> object:
        plain = value is None or isinstance(value, str)
        if not (value in others if plain else is_integer(value) and value >= 1):
            expected = " or ".join(["a positive integer", *map(repr, others)])
            raise ValueError(f"{name} must be {expected}, got {value!r:.1000}")
        return int(value) if is_integer(value) else value

    return resolve


def a_positive_number(
    what: str = "a positive, finite number", *others: None, most: float = sys.float_info.max
) -> Resolver:
    """Expect a positive number up to a largest one, or None where that is allowed."""

    def resolve(name: str, value: object) -> object:
        if value is None and None in others:
            return None
        if not is_number(value) or not 0 < value <= most:
            either = ", or None" if others else ""
            raise ValueError(f"{name} must be {what}{either}, got {value!r:.1000}")
        return float(value)

    return resolve


def a_name(registry: Mapping[str, object], base: type, *others: str | None) -> Resolver:
    """Expect a name in a registry, an object of its kind, or one of the other values."""

    def resolve(name: str, value: object) -> object:
        if isinstance(value, base) or (value is None and None in others):
            return value
        if not (isinstance(value, str) and (value in registry or value in others)):
            named = ", ".join(map(repr, (*registry, *others)))
            article = "an" if base.__name__[0] in "AEIOU" else "a"
            raise ValueError(
                f"{name} must be one of {named} or {article} {base.__name__} object, got {value!r:.1000}"
            )
        return value

    return resolve


def by_name(
    kind: str, value: object, registry: Mapping[str, Callable[[], Named]], base: type[Named]
) -> Named:
    """Return an object as it is, or the one that a name in a registry stands for, with its defaults."""
    if isinstance(value, base):
        return value
    return registry[str(a_name(registry, base)(kind, value))]()


def one_of(*choices: str | bool | None) -> Resolver:
    """Expect one of a few values."""

    def resolve(name: str, value: object) -> object:
        none = value is None and None in choices
        if not none and (not isinstance(value, str | bool | np.bool_) or value not in choices):
            named = ", ".join(map(repr, choices))
            raise ValueError(f"{name} must be one of {named}, got {value!r:.1000}")
        return bool(value) if isinstance(value, np.bool_) else value

    return resolve


def some_names(what: str) -> Resolver:
    """Expect a sequence of names of `what`, such as "columns"."""

    def resolve(name: str, value: object) -> object:
        if isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(value)
        remedy = f": give [{value!r:.1000}]" if isinstance(value, str) else ""
        raise ValueError(f"{name} must be a list of names of {what}, got {value!r:.1000}{remedy}")

    return resolve


def a_seed(name: str, value: object) -> int:
    """Expect what scikit-learn accepts as a random state, and return one seed of it."""
    if is_integer(value) and value >= 0:
        return int(value)
    try:
        return int(check_random_state(value).randint(2**31 - 1))  # pyright: ignore
    except ValueError as error:
        raise ValueError(
            f"{name} must be an integer from 0, None or a RandomState, got {value!r:.1000}"
        ) from error


def a_probability(name: str, value: object) -> float:
    """Expect a probability between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        raise ValueError(
            f"{name} must be a probability between 0 and 1 such as 0.9, got {value!r:.1000}"
        )
    return float(value)


def probabilities(name: str, values: object) -> list[float]:
    """Expect a probability, or some of them in one dimension."""
    try:
        found = np.atleast_1d(values).tolist()  # pyright: ignore[reportArgumentType, reportCallIssue]
    except ValueError:  # lists of different lengths, which are no numbers either
        found = [values]
    return [a_probability(name, one) for one in found]
