"""The local engine: everything lives in this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from distgp.engines.base import Engine, Item, Placement, Result, Traffic


@dataclass(frozen=True, eq=False)
class LocalPlacement(Placement[Item], Generic[Item]):
    """Items in this process. Nothing travels."""

    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    def map(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        each: Sequence[Any] | None = None,
    ) -> list[Result]:
        """Call the function on one item after the other; PyTorch uses all cores for each."""
        if each is None:
            return [function(item, *arguments) for item in self.items]
        pairs = zip(self.items, each, strict=True)
        return [function(item, *arguments, own) for item, own in pairs]

    def on_first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call the function on the first item alone."""
        return function(self.items[0], *arguments)

    def derive(
        self, function: Callable[..., Any], *arguments: Any, each: Sequence[Any] | None = None
    ) -> LocalPlacement[Any]:
        """Keep what the function makes of each item; None is left out."""
        made = self.map(function, *arguments, each=each)
        return LocalPlacement(tuple(item for item in made if item is not None))

    def gather(self) -> LocalPlacement[Item]:
        """Return the placement itself, since its items are here already."""
        return self


class LocalEngine(Engine):
    """One process, and in it one worker: experts that live together are worked on together."""

    name: ClassVar[str] = "local"

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.users = weakref.WeakSet()

    def __reduce__(self) -> Any:
        """Pickle as a new engine: nothing lives in the object itself."""
        return LocalEngine, ()

    @property
    def workers(self) -> int:
        """One."""
        return 1

    def scatter(
        self, sources: Sequence[Callable[[], Item]], names: Sequence[str]
    ) -> LocalPlacement[Item]:
        """Make the items here."""
        del names
        return LocalPlacement(tuple(source() for source in sources))

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""
