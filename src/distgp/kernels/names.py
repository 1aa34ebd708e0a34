"""The names that texts and files know kernels by."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from distgp.kernels import base, kinds
from distgp.kernels.base import Kernel, KernelType, ParameterError
from distgp.kernels.kinds import Constant, Linear, Periodic
from distgp.kernels.layout import InputLayout, in_data_units, listed, quoted
from distgp.kernels.sphere import EARTH, anisotropy_of
from distgp.kernels.stationary import Stationary

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


AMOUNTS = ("period", "lengthscale", "across", "angle", "alpha")
"""Arguments of kernels in texts that are numbers."""
FLAGS = ("isotropic", "rotated", "sphere")
"""Arguments that are words by themselves."""


class Amount(NamedTuple):
    """A number, with a unit (a key of `TIMES` or `DISTANCES`) where it has one.

    Examples
    --------
    >>> str(Amount(36.0, "hours")), Amount(36.0, "hours").plain
    ('36 hours', 1.5)
    """

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
    across: Amount | None = None
    angle: Amount | None = None
    rotated: bool = False

    def __str__(self) -> str:
        given = {name: getattr(self, name) for name in AMOUNTS}
        parts = [f"{name}={amount}" for name, amount in given.items() if amount is not None]
        if self.columns:
            names = ", ".join(map(_written, self.columns))
            parts.append(f"columns={names}" if len(self.columns) == 1 else f"columns=[{names}]")
        parts += [flag for flag in FLAGS if getattr(self, flag)]
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
        directed = self.rotated or self.across is not None or self.angle is not None
        if self.sphere or (given is not None and given.unit in DISTANCES):
            return self._spherical(layout, directed)
        if directed:
            return self._directed(layout)
        timed = given if given is not None and given.unit is not None else None
        active = self._measured(timed, layout) if timed else self._features(layout)
        features = range(layout.d) if active is None else active
        if self.isotropic:
            length = _far(layout, features) if given is None else given.plain
            return in_data_units(KERNELS[self.name](length, active, **self._options()), layout)
        lengths = [math.sqrt(len(features))] * len(features)
        if given is not None:
            lengths = given.on(layout, features)
        options = self._options()
        if (shared := layout.sharing(features)) is not None:
            logs, of = torch.tensor(lengths, dtype=torch.float64).log(), torch.tensor(shared)
            lengths = [float(logs[of == group].mean().exp()) for group in range(max(shared) + 1)]
            options["shared"] = shared
        return KERNELS[self.name](lengths, active, **options)

    def _options(self) -> dict[str, Any]:
        """Return the parameters that only some kernels have."""
        return {} if self.alpha is None else {"alpha": self.alpha.value}

    def _directed(self, layout: InputLayout) -> Kernel:
        """Build the kernel of two columns that has a lengthscale along a direction and one across it."""
        features = self._plane(layout)
        along, across, angle = self.lengthscale, self.across, self.angle
        length, ratio, degrees = _far(layout, features) if along is None else along.value, 1.0, 0.0
        if across is not None or angle is not None:
            if along is None or across is None or angle is None:
                raise ParameterError(
                    "a direction has a lengthscale along it, one across it, and an angle in degrees, as in "
                    f"{quoted(f'{self.name}(120, across=40, angle=30)')}; where training is to find it, "
                    "write 'rotated' alone"
                )
            length, ratio = math.sqrt(along.value * across.value), along.value / across.value
            degrees = angle.value
        numbers = anisotropy_of(ratio, degrees)
        made = KERNELS[self.name](length, features, anisotropy=numbers, **self._options())
        return in_data_units(made, layout)

    def _plane(self, layout: InputLayout) -> tuple[int, ...]:
        """List the two features that a direction lies in."""
        columns = self.columns or layout.known
        features = tuple(j for column in columns for j in layout.places_of_number(column))
        timed = any(a is not None and a.unit is not None for a in (self.lengthscale, self.across))
        if len(columns) != 2 or timed or not layout.days.isdisjoint(features):
            raise ParameterError(
                "a direction lies in two columns of plain numbers in the same unit: name them, such as "
                f"{quoted(f'{self.name}(columns=[x, y], rotated)')}, got {listed(columns)}"
            )
        if self.isotropic:
            raise ParameterError("an isotropic kernel has no direction: leave out one of the words")
        return features

    def _spherical(self, layout: InputLayout, directed: bool) -> Kernel:
        """Build the kernel of two columns that are longitude and latitude, with its lengthscale in km."""
        given, columns = self.lengthscale, self.columns or layout.known
        if directed:
            raise ParameterError(
                "a kernel on the sphere has no direction, since that is another one at every place: make x "
                "and y of a flat map out of longitude and latitude, and write lengthscales without a unit"
            )
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
        made = KERNELS[self.name](length, features, sphere=True, **self._options())
        return in_data_units(made, layout)

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


def _far(layout: InputLayout, features: Sequence[int]) -> float:
    """Return how far standardised points are apart in these features, in the units of the data."""
    middle = math.exp(sum(math.log(layout.scale[j]) for j in features) / len(features))
    return math.sqrt(len(features)) * middle


def _written(name: str) -> str:
    """Write the name of a column as it can stand in a text."""
    if re.fullmatch(PLAIN_NAME, name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


PLAIN_NAME = r"[^\W\d][\w.-]*"  # of kernels, and of columns that need no quotes
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
    """List every kernel class by its name.

    Examples
    --------
    >>> all_kernels()["exponential"].__name__
    'Matern12'
    """
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
