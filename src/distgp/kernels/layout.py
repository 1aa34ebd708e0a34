"""The columns of a table and the features made of them, by name.

A user thinks in columns of a table and in their units: "temp", with a lengthscale of 3 degrees. A kernel
sees features: numbers made of the columns, several of a text or a date, each standardised as
(x − mean) / scale. An `InputLayout` says how the two belong together.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from distgp.kernels.base import ParameterError

MOST_NAMES = 12  # that an error message lists
LONGEST_QUOTE = 60  # characters of a text that an error message repeats


@dataclass(frozen=True)
class InputLayout:
    """The features that kernels see, and how they belong to a user's columns.

    Parameters
    ----------
    names : tuple of str
        The name of each feature.
    columns : mapping of str to tuple of int
        The user's columns, and the places of their features; empty for arrays, whose columns are
        features themselves.
    days : frozenset of int
        The places of features that are days since 1970, one for each column of dates.
    groups : tuple of int, optional
        Which lengthscale each feature has: the features of one text column share one. None where
        each has its own.
    scale : sequence of float
        What each feature was divided by when it was standardised; 1 where a kernel's numbers are
        those of standardised features.
    standard : sequence of (float, float)
        The mean and the scale by which each feature was standardised, whatever a kernel's numbers are.

    Examples
    --------
    >>> layout = InputLayout(("temp", "sky=clear", "sky=grey"), {"temp": (0,), "sky": (1, 2)},
    ...                      groups=(0, 1, 1), scale=(7.0, 0.5, 0.5))
    >>> layout.places_of("sky")
    (1, 2)
    """

    names: tuple[str, ...]
    columns: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    days: frozenset[int] = frozenset()
    groups: tuple[int, ...] | None = None
    scale: Sequence[float] = ()
    standard: Sequence[tuple[float, float]] = ()

    def __post_init__(self) -> None:
        d = len(self.names)
        if not len(self.scale):
            object.__setattr__(self, "scale", (1.0,) * d)
        if not len(self.standard):
            object.__setattr__(self, "standard", ((0.0, 1.0),) * d)
        assert len(self.scale) == len(self.standard) == d and all(scale > 0 for scale in self.scale)
        assert self.groups is None or len(self.groups) == d
        assert all(0 <= j < d for found in self.columns.values() for j in found)

    @staticmethod
    def of_array(
        d: int, scale: Sequence[float] = (), standard: Sequence[tuple[float, float]] = ()
    ) -> InputLayout:
        """Return the layout of an array with d columns, which are called x0, x1, …"""
        return InputLayout(tuple(f"x{j}" for j in range(d)), scale=scale, standard=standard)

    @property
    def d(self) -> int:
        """The number of features."""
        return len(self.names)

    @property
    def known(self) -> tuple[str, ...]:
        """The names of the user's columns."""
        return tuple(self.columns) or self.names

    def places_of(self, name: str) -> tuple[int, ...]:
        """List the features of a column, or the one feature of a name; arrays know 0, 1, … too."""
        if name in self.columns:
            return self.columns[name]
        if name in self.names:
            return (self.names.index(name),)
        numbers = [] if self.columns else [str(j) for j in range(self.d)]
        if name in numbers:
            return (numbers.index(name),)
        raise ParameterError(f"there is no column {quoted(name)}{near(name, self.known)}")

    def places_of_number(self, name: str) -> tuple[int, ...]:
        """List the features of a column that can be measured: of a date, its days; text is refused."""
        found = self.places_of(name)
        if dates := tuple(j for j in found if j in self.days):
            return dates
        if len(found) > 1:
            raise ParameterError(
                f"column {quoted(name)} is text, which has neither period nor unit: name a column of "
                "numbers or dates"
            )
        return found

    def sharing(self, features: Sequence[int]) -> tuple[int, ...] | None:
        """Tell which lengthscale each of these features has, from 0; None where each has its own."""
        if self.groups is None:
            return None
        order = list(dict.fromkeys(self.groups[j] for j in features))
        found = tuple(order.index(self.groups[j]) for j in features)
        return found if len(order) < len(found) else None


def near(name: str, known: Collection[str]) -> str:
    """End a message about an unknown name: with the name that was likely meant, and with those known."""
    by_lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower()[:100], by_lower, n=1, cutoff=0.5)
    meant = f"; did you mean {quoted(by_lower[close[0]])}?" if close else ":"
    return f"{meant} there are {listed(list(known))}"


def listed(names: Sequence[str]) -> str:
    """Put names in quotes; of very many, the first and how many there are."""
    text = ", ".join(map(quoted, names[:MOST_NAMES]))
    return text if len(names) <= MOST_NAMES else f"{text}, … ({len(names):,} in all)"


def quoted(text: str) -> str:
    """Put a text in quotes and on one line, cut where it is long."""
    return repr(text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…")
