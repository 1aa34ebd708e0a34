"""Everything in this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from distgp.engines.base import Engine, Item, Placement, Result, Traffic


@dataclass(frozen=True, eq=False)
class Local(Placement[Item], Generic[Item]):
    """Items in this process: nothing travels."""

    items: tuple[Item, ...]

    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """One after the other: the tensor library uses all cores for each."""
        return [function(item, *arguments) for item in self.items]

    def first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The first item alone."""
        return function(self.items[0], *arguments)

    def derive(self, function: Callable[..., Any], *arguments: Any) -> Local[Any]:
        """What the function makes of each item; None is left out."""
        made = self.map(function, *arguments)
        return Local(tuple(item for item in made if item is not None))

    def here(self) -> tuple[Item, ...]:
        """The items."""
        return self.items


class LocalEngine(Engine):
    """One process."""

    name: ClassVar[str] = "local"

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.users = weakref.WeakSet()

    def __reduce__(self) -> Any:
        """Nothing lives in it, so that any other is as good."""
        return LocalEngine, ()

    @property
    def workers(self) -> int:
        """One: experts that live together are worked on together."""
        return 1

    def scatter(self, sources: Sequence[Callable[[], Item]], names: Sequence[str]) -> Local[Item]:
        """Make the items."""
        del names
        return Local(tuple(source() for source in sources))

    def close(self) -> None:
        """Nothing to let go of."""
