"""Whether values are what the annotations of a class say."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np


def refuse_other_types(
    kind: type, fields: Mapping[str, object], hints: Mapping[str, object]
) -> None:
    """Refuse values for the fields of a class that are not of the types that its annotations say."""
    for name, value in fields.items():
        if name in hints and not fits(value, hints[name]):
            expected = getattr(hints[name], "__name__", hints[name])
            raise TypeError(
                f"expected {name} of {kind.__name__} to be {expected}, got {type(value).__name__}"
            )


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type, looked at item by item where it is a container."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inside)
    if origin is Literal:
        return value in inside
    if origin is list and isinstance(value, np.ndarray):  # long lists of numbers in files
        return value.dtype.kind == "f"
    if origin is not None:
        return isinstance(value, origin) and _items_fit(value, inside)
    if hint is None:
        return value is None
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Any or not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return True
    return isinstance(value, hint)


def _items_fit(value: object, inside: tuple[Any, ...]) -> bool:
    """Whether the items of a container are of the types that its annotation names."""
    if isinstance(value, Mapping):
        return all(fits(item, inside[1]) for item in value.values())
    if isinstance(value, tuple) and inside[1:] != (...,):
        return len(value) == len(inside) and all(map(fits, value, inside))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(fits(item, inside[0]) for item in value)
    return True
