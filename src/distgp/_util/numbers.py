"""Tests of numbers that users give: a truth value is never one, though Python counts those in."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number; NaN and infinity are."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number, by its type."""
    return isinstance(value, Integral) and not isinstance(value, bool)
