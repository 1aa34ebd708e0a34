"""The local engine: everything lives in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from distgp.engines.base import Engine, Item, Placement, Result, guarded, itself, released
from distgp.engines.traffic import Each, Function


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
        if each is None:
            return [function(item, *arguments) for item in self.items]
        pairs = zip(self.items, each, strict=True)
        return [function(item, *arguments, own) for item, own in pairs]


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
