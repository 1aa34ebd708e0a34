"""Work that is done when the user interrupts: it is told with the interrupt, and need not be done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def telling(name: str, known: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Tell under a name what is known by then, if the user interrupts the block.

    The function gets what was told further inside, by name.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        inside = told_with(stop)
        vars(stop)["told"] = {**inside, name: known(inside)}
        raise


def told_with(error: BaseException) -> dict[str, Any]:
    """Return what was told with an interrupt, by name; nothing with other errors."""
    return vars(error).get("told", {})
