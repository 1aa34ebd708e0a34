"""What a number is, for checks of what users give: never a truth value, though Python counts those in."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a real number; NaN and infinity are."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number, by its type."""
    return isinstance(value, Integral) and not isinstance(value, bool)
