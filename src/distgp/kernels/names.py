"""The names and units that users know things by: of kernels, and of the columns of their tables.

A user thinks in columns of a table and in their units: "temp", with a lengthscale of 3 degrees. A kernel
sees features: numbers made of the columns, several of a text or a date, each standardised as
(x − mean) / scale. An `InputLayout` says how the two belong together.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distgp.kernels import base, kinds
from distgp.kernels.base import (
    Kernel,
    KernelType,
    ParameterError,
    places,
    replaced,
    select,
    with_children,
)
from distgp.kernels.kinds import Constant, Linear, Periodic
from distgp.kernels.sphere import EARTH, PLAIN_DEGREES, on_sphere
from distgp.kernels.stationary import Stationary

PLAIN_NAME = r"[^\W\d][\w.-]*"  # of kernels, and of columns that need no quotes
MOST_NAMES = 12  # that an error message lists
LONGEST_QUOTE = 60  # characters of a text that an error message repeats
KERNELS: dict[str, type[Stationary]] = {
    "rbf": kinds.RBF,
    "matern12": kinds.Matern12,
    "matern32": kinds.Matern32,
    "matern52": kinds.Matern52,
    "rational-quadratic": kinds.RationalQuadratic,
    "exponential": kinds.Matern12,
}
"""The kernels that estimators know by name: those with one lengthscale per column."""
ELSEWHERE = {
    "gaussian": "'rbf' is the Gaussian model",
    "spherical": "'exponential' and 'matern32' are nearest to it; a spherical kernel of your own takes "
    "five lines, as the guide to maps shows",
}
"""Names of geostatistics that no kernel has here, and what to take instead."""
OTHERS: dict[str, type[Kernel]] = {
    "linear": Linear,
    "constant": Constant,
    "periodic": Periodic,
    "sum": base.Sum,
    "product": base.Product,
    "scale": base.Scale,
}
"""All other kernels, by the names that files know them by."""


def all_kernels() -> dict[str, type[Kernel]]:
    """List every kernel class by its name."""
    return KERNELS | OTHERS


def register(kind: type[KernelType], name: str | None = None) -> type[KernelType]:
    """Make a kernel class of your own known by name; to be called, or to decorate the class.

    Models with such kernels can then be saved, and loaded in any process that has registered the class by
    the same name. One derived from `Stationary` can be used in texts, "wendland(2.5, columns=temp)".

    Parameters
    ----------
    kind : type of Kernel
        The class. Registering it again, as a notebook's cell does, puts the newer in its place.
    name : str, optional
        Its name; by default its attribute `name`, or else the name of the class in lower case.

    Returns
    -------
    type of Kernel
        The class itself.
    """
    if not (isinstance(kind, type) and issubclass(kind, Kernel)) or inspect.isabstract(kind):
        raise TypeError(
            "register takes a class derived from distgp.Kernel, with gram and diag, or from "
            f"distgp.kernels.Stationary, with shape, got {kind!r:.60}"
        )
    name = name or getattr(kind, "name", kind.__name__.lower())
    if not isinstance(name, str) or not re.fullmatch(PLAIN_NAME, name) or name == "auto":
        raise ParameterError(f"expected a name such as 'my-kernel', not 'auto', got {name!r:.60}")
    holder = all_kernels().get(name, kind)
    if (holder.__module__, holder.__qualname__) != (kind.__module__, kind.__qualname__):
        taken = f"the name {name!r} is taken by {holder.__name__}"
        raise ParameterError(f"{taken}: give {kind.__name__} another")
    OTHERS.pop(name, None)
    if issubclass(kind, Stationary):
        KERNELS[name] = kind
    else:
        KERNELS.pop(name, None)
        OTHERS[name] = kind
    return kind


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


TIMES = {
    "seconds": (1.0 / 86_400.0, "s sec secs second"),
    "minutes": (1.0 / 1_440.0, "min mins minute"),
    "hours": (1.0 / 24.0, "h hr hrs hour"),
    "days": (1.0, "d day"),
    "weeks": (7.0, "w wk week"),
    "months": (365.2425 / 12.0, "month"),
    "years": (365.2425, "y yr year"),
}
"""Units of time, in days, and the other words for them."""
UNITS = {text: unit for unit, (_, texts) in TIMES.items() for text in (unit, *texts.split())}
DISTANCES = {"km": 1.0, "m": 1e-3}
"""Units of distance on the Earth, in km."""


class Amount(NamedTuple):
    """A positive number, with a unit (a key of `TIMES` or `DISTANCES`) where it has one."""

    value: float
    unit: str | None = None

    def __str__(self) -> str:
        number = repr(self.value).removesuffix(".0")
        return f"{number} {self.unit}" if self.unit else number

    def on(self, layout: InputLayout, features: Sequence[int]) -> list[float]:
        """Return the number, in days where it has a unit, in the standardised units of features."""
        return [self.plain / float(layout.scale[j]) for j in features]

    @property
    def plain(self) -> float:
        """The number itself; in days, or in km, where it has a unit."""
        if self.unit is None:
            return self.value
        return self.value * (DISTANCES.get(self.unit) or TIMES[self.unit][0])


class Named(NamedTuple):
    """A kernel by its name, with the numbers and columns given in brackets, in the data's units."""

    name: str
    lengthscale: Amount | None = None
    period: Amount | None = None
    alpha: Amount | None = None
    columns: tuple[str, ...] = ()
    isotropic: bool = False
    sphere: bool = False

    def __str__(self) -> str:
        given = {"period": self.period, "lengthscale": self.lengthscale, "alpha": self.alpha}
        parts = [f"{name}={amount}" for name, amount in given.items() if amount is not None]
        if self.columns:
            names = ", ".join(map(_written, self.columns))
            parts.append(f"columns={names}" if len(self.columns) == 1 else f"columns=[{names}]")
        parts += ["isotropic"] * self.isotropic + ["sphere"] * self.sphere
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    def build(self, layout: InputLayout, variance: float) -> Kernel:
        """Build the kernel; the variance is for a linear one, since the others have none."""
        try:
            if self.name == "linear":
                return Linear([variance], self._features(layout))
            return self._stationary(layout) if self.period is None else self._periodic(layout)
        except ParameterError as error:
            raise ParameterError(f"in {quoted(str(self))}: {error}") from None

    def _periodic(self, layout: InputLayout) -> Kernel:
        assert self.period is not None
        features = self._measured(self.period, layout)
        lengthscale = 1.0 if self.lengthscale is None else self.lengthscale.value
        alone = layout.d == 1 and not self.columns
        return Periodic(lengthscale, self.period.on(layout, features), None if alone else features)

    def _stationary(self, layout: InputLayout) -> Kernel:
        given = self.lengthscale
        if self.sphere or (given is not None and given.unit in DISTANCES):
            return self._spherical(layout)
        timed = given if given is not None and given.unit is not None else None
        active = self._measured(timed, layout) if timed else self._features(layout)
        features = range(layout.d) if active is None else active
        options: dict[str, Any] = {} if self.alpha is None else {"alpha": self.alpha.value}
        if self.isotropic:
            middle = math.exp(sum(math.log(layout.scale[j]) for j in features) / len(features))
            length = math.sqrt(len(features)) * middle if given is None else given.plain
            return in_data_units(KERNELS[self.name](length, active, **options), layout)
        lengths = [math.sqrt(len(features))] * len(features)
        if given is not None:
            lengths = given.on(layout, features)
        if (shared := layout.sharing(features)) is not None:
            logs, of = torch.tensor(lengths, dtype=torch.float64).log(), torch.tensor(shared)
            lengths = [float(logs[of == group].mean().exp()) for group in range(max(shared) + 1)]
            options["shared"] = shared
        return KERNELS[self.name](lengths, active, **options)

    def _spherical(self, layout: InputLayout) -> Kernel:
        """Build the kernel of two columns that are longitude and latitude, with its lengthscale in km."""
        given, columns = self.lengthscale, self.columns or layout.known
        example = f"{self.name}(100 km, columns=[lon, lat])"
        if len(columns) != 2:
            raise ParameterError(
                "a length in km is one on the Earth: name the columns of longitude and latitude, in this "
                f"order, such as {quoted(example)}, got {listed(columns)}"
            )
        if columns[0].lower().startswith("lat") and columns[1].lower().startswith(("lon", "lng")):
            raise ParameterError(
                f"longitude comes first, such as {quoted(example)}, got {listed(columns)}"
            )
        if given is not None and given.unit not in DISTANCES:
            raise ParameterError(f"a lengthscale on the sphere is in km: write {given.value:g} km")
        features = tuple(j for column in columns for j in layout.places_of_number(column))
        if not layout.days.isdisjoint(features):
            raise ParameterError(f"expected longitude and latitude, got dates: {listed(columns)}")
        (_, east), (lat, north) = (layout.standard[j] for j in features)
        spread = math.radians(math.hypot(north, east * math.cos(math.radians(lat))))
        length = EARTH * min(1.0, spread) if given is None else given.plain
        options: dict[str, Any] = {} if self.alpha is None else {"alpha": self.alpha.value}
        return in_data_units(KERNELS[self.name](length, features, sphere=True, **options), layout)

    def _features(self, layout: InputLayout) -> tuple[int, ...] | None:
        """List the features of the columns that were named; None for all."""
        found = [j for name in self.columns for j in layout.places_of(name)]
        return tuple(dict.fromkeys(found)) or None

    def _measured(self, amount: Amount, layout: InputLayout) -> tuple[int, ...]:
        """List the features that a period or a length in time is measured along."""
        columns = self.columns or (self._only_column(amount, layout),)
        found = {j: c for c in columns for j in layout.places_of_number(c)}
        for feature, column in found.items():
            dated = feature in layout.days
            if dated and amount.unit is None:
                raise ParameterError(
                    f"column {quoted(column)} holds dates: say the unit, such as {amount} days"
                )
            if not dated and amount.unit is not None:
                raise ParameterError(
                    f"column {quoted(column)} holds plain numbers, which have no unit of time: write "
                    f"{Amount(amount.value)} if the column is in {amount.unit}"
                )
        return tuple(found)

    def _only_column(self, amount: Amount, layout: InputLayout) -> str:
        """Return the only column that can be meant where none was named."""
        known = layout.known
        dates = [name for name in known if not layout.days.isdisjoint(layout.places_of(name))]
        meant = dates if amount.unit is not None and dates else known
        if len(meant) == 1:
            return meant[0]
        example = f"{self.name}({amount}, columns={_written(meant[0])})"
        raise ParameterError(
            f"name the column that this is measured along, such as {quoted(example)}: there are "
            f"{listed(meant)}"
        )


def _written(name: str) -> str:
    """Write the name of a column as it can stand in a text."""
    if re.fullmatch(PLAIN_NAME, name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


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
