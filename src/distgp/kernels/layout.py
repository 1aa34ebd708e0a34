"""The columns of a table and the features made of them, by name.

A user thinks in columns of a table and in their units: "temp", with a lengthscale of 3 degrees. A kernel
sees features: numbers made of the columns, several of a text or a date, each standardised as
(x − mean) / scale. An `InputLayout` says how the two belong together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distgp._util.checks import did_you_mean
from distgp.kernels.base import Kernel, ParameterError, places, replaced, select, with_children
from distgp.kernels.kinds import Periodic
from distgp.kernels.sphere import PLAIN_DEGREES, on_sphere
from distgp.kernels.stationary import Stationary

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
    return f"{did_you_mean(name, known, ':')} there are {listed(list(known))}"


def listed(names: Sequence[str]) -> str:
    """Put names in quotes; of very many, the first and how many there are."""
    text = ", ".join(map(quoted, names[:MOST_NAMES]))
    return text if len(names) <= MOST_NAMES else f"{text}, … ({len(names):,} in all)"


def quoted(text: str) -> str:
    """Put a text in quotes and on one line, cut where it is long."""
    return repr(text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…")


def resolved(kernel: Kernel, layout: InputLayout) -> Kernel:
    """Put the places of columns where a kernel's `active_dims` has their names.

    A text column or a date stands for all of its features; in a `Periodic` kernel a date stands for its
    days alone. Where there is one parameter per named column, the features of a column share it.

    Examples
    --------
    >>> from distgp import Matern52
    >>> layout = InputLayout(("temp", "sky=clear", "sky=grey"), {"temp": (0,), "sky": (1, 2)})
    >>> resolved(2.0 * Matern52([0.5, 3.0], active_dims=["temp", "sky"]), layout)
    Scale(kernel=Matern52(lengthscale=[0.5, 3.0], active_dims=(0, 1, 2), shared=(0, 1, 1)), variance=2.0)
    """
    active = getattr(kernel, "active_dims", None)
    if active is None or not any(isinstance(column, str) for column in active):
        return with_children(kernel, lambda _, child: resolved(child, layout))
    find = layout.places_of_number if isinstance(kernel, Periodic) else layout.places_of
    found = [find(column) if isinstance(column, str) else (column,) for column in active]
    # For each feature, which of the given columns it belongs to.
    owner = [place for place, features in enumerate(found) for _ in features]
    spread = _spread(kernel, owner) if len(owner) > len(active) else {}
    return replaced(kernel, active_dims=tuple(j for features in found for j in features), **spread)


def _spread(kernel: Kernel, owner: list[int]) -> dict[str, object]:
    """Return the parameters of a kernel with one value per column, for the features of the columns."""
    count = max(owner) + 1
    if isinstance(kernel, Stationary):
        each = kernel.shared or tuple(range(kernel.lengthscale.shape[-1]))
        return {"shared": tuple(each[i] for i in owner)} if len(each) == count > 1 else {}
    batches = kernel.batches()
    vectors = {n: v for n, v in kernel.own_parameters().items() if v.ndim > len(batches[n])}
    return {name: v[..., owner] for name, v in vectors.items() if v.shape[-1] == count > 1}


def in_data_units(kernel: Kernel, layout: InputLayout) -> Kernel:
    """Turn a kernel k in the data's units into one, k̃, on standardised inputs.

    k̃((x − mean) / scale, (x′ − mean) / scale) = k(x, x′). Names in `active_dims` are looked up first.
    Lengthscales and periods are divided by the scale of their column, a linear kernel's variances (of
    inputs centred at their means) multiplied by its square; what has no unit of an input stays.

    Examples
    --------
    >>> from distgp import RBF
    >>> in_data_units(RBF([6.0, 6.0]), InputLayout.of_array(2, scale=[2.0, 3.0]))
    RBF(lengthscale=[3.0, 2.0])

    One lengthscale stays one. It is divided by the geometric mean of the scales, and what is left of
    each scale becomes the `stretch` of its column:

    >>> in_data_units(RBF(6.0), InputLayout.of_array(2, scale=[2.0, 8.0]))
    RBF(lengthscale=[1.5], stretch=(0.5, 2.0))
    """
    return _standardised(resolved(kernel, layout), layout)


def _standardised(kernel: Kernel, layout: InputLayout) -> Kernel:
    """Divide every parameter by the scale of its column, to the power of the unit that it has."""
    scales = torch.tensor([[float(value) for value in layout.scale]], dtype=torch.float64)
    active, changes = getattr(kernel, "active_dims", None), {}
    if isinstance(kernel, Stationary):
        if kernel.sphere is not None:
            return _on_sphere(kernel, layout)
        if kernel.shared is not None or kernel.lengthscale.shape[-1] == 1:
            return _with_shared(kernel, select(scales, active)[0])
    for name, power in kernel.units.items():
        given = getattr(kernel, name)
        scale = select(scales, active, given)[0].to(given)
        values = given / scale**power if power > 0 else given * scale**-power
        # One value for all columns stays one where it is still the same for all.
        one = given.shape[-1] == 1 and torch.equal(values[..., :1].expand_as(values), values)
        changes[name] = values[..., :1] if one else values
    return with_children(kernel, lambda _, child: _standardised(child, layout), **changes)


def _on_sphere(kernel: Stationary, layout: InputLayout) -> Kernel:
    """Tell a kernel on the sphere how its two columns were standardised; its lengthscale is in km."""
    standard = tuple(layout.standard[j] for j in places(kernel.active_dims, layout.d))
    on_sphere(torch.zeros(1, len(standard)), PLAIN_DEGREES)  # refuses other than two columns
    return replaced(kernel, sphere=standard)


def latitudes(kernel: Kernel, d: int) -> tuple[int, ...]:
    """List those of d columns that a kernel takes as latitudes, by their places."""
    found = [j for child in kernel.children().values() for j in latitudes(child, d)]
    if isinstance(kernel, Stationary) and kernel.sphere is not None:
        found.append(places(kernel.active_dims, d)[1])
    return tuple(dict.fromkeys(found))


def _with_shared(kernel: Stationary, scale: Tensor) -> Kernel:
    """Divide lengthscales that columns share by the geometric mean of the columns' scales.

    What is left of the scale of each column is its stretch, if the scales are not all the same.
    """
    kernel.lengthscale_by_column(len(scale))  # refuses what does not fit
    if kernel.stretch is not None:
        scale = scale * scale.new_tensor(kernel.stretch)
    of = torch.tensor(kernel.shared or (0,) * len(scale))
    groups = [scale[of == i] for i in range(kernel.lengthscale.shape[-1])]
    middle = torch.stack(
        [s[0] if bool((s == s[0]).all()) else s.log().mean().exp() for s in groups]
    )
    stretch = scale / middle[of]
    even = bool((stretch == 1.0).all())
    lengths = kernel.lengthscale / middle.to(kernel.lengthscale)
    return replaced(kernel, lengthscale=lengths, stretch=None if even else tuple(stretch.tolist()))
