"""Kernels as people write them, "periodic(24 h) + 2 * matern52": a small tree, and the kernel it means.

A text is a sum of terms, a term a product of factors, a factor a kernel by name or a sum in brackets.
`distgp.kernels.parse` makes the tree; `Expression.build` makes the kernel, for given columns.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distgp.kernels.base import Kernel, ParameterError, Product, Scale, Sum
from distgp.kernels.layout import PLAIN_NAME, InputLayout, listed, quoted
from distgp.kernels.nondecaying import Constant, Linear, Periodic
from distgp.kernels.registry import KERNELS

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


@dataclass(frozen=True)
class Amount:
    """A positive number, with a unit of time (a key of `TIMES`) where it has one."""

    value: float
    unit: str | None = None

    def __str__(self) -> str:
        return f"{number(self.value)} {self.unit}" if self.unit else number(self.value)

    def on(self, layout: InputLayout, features: tuple[int, ...] | range) -> list[float]:
        """Return the number, in days where it has a unit, in the standardised units of features."""
        value = self.value * (TIMES[self.unit][0] if self.unit else 1.0)
        return [value / float(layout.scale[j]) for j in features]


@dataclass(frozen=True)
class Named:
    """A kernel by its name, with the numbers and columns given in brackets, in the data's units.

    Without columns it looks at all, or at the only one that can be meant.
    """

    name: str
    lengthscale: Amount | None = None
    period: Amount | None = None
    alpha: Amount | None = None
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        given = {"period": self.period, "lengthscale": self.lengthscale, "alpha": self.alpha}
        parts = [f"{name}={amount}" for name, amount in given.items() if amount is not None]
        if self.columns:
            names = ", ".join(map(_column, self.columns))
            parts.append(f"columns={names}" if len(self.columns) == 1 else f"columns=[{names}]")
        return f"{self.name}({', '.join(parts)})" if parts else self.name


@dataclass(frozen=True)
class Term:
    """A product of kernels, with its starting signal variance."""

    factors: tuple[Named | Expression, ...]
    variance: float = 1.0

    def __str__(self) -> str:
        texts = [f"({f})" if isinstance(f, Expression) else str(f) for f in self.factors]
        return " * ".join(([] if self.variance == 1.0 else [number(self.variance)]) + texts)


@dataclass(frozen=True)
class Expression:
    """A sum of at least one term; `str` of it is a text that means the same.

    Examples
    --------
    >>> from distgp.kernels import InputLayout, parse
    >>> text = parse("matern52 + 0.5*periodic(24)")
    >>> print(text)
    matern52 + 0.5 * periodic(period=24)
    >>> built = text.build(InputLayout.of_array(1, scale=[12.0]))
    >>> built.kernel.kernels[1]
    Scale(kernel=Periodic(lengthscale=[1.0], period=[2.0]), variance=0.5)
    >>> built.fixed
    ('kernel.kernels.1.kernel.period',)
    """

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))

    def size(self) -> int:
        """Count the products in the sum that is left when all brackets are multiplied out."""
        sums = ([f.size() for f in t.factors if isinstance(f, Expression)] for t in self.terms)
        return sum(math.prod(sizes) for sizes in sums)

    def build(self, layout: InputLayout) -> Built:
        """Build the kernel for these columns, in standardised units.

        Every term has one variance to be trained. That is a signal variance σ² in front of it; or the
        variance of a linear kernel, or those of a sum in brackets, among its factors, since a second
        one would say the same twice. A constant among other factors is such a variance too, no more.

        A lengthscale starts at the number given, or else, as far apart as points of standardised
        data are, at the root of the number of features that the kernel looks at. The features of a text
        column share one, which starts at the geometric mean where their scales differ.

        A `ParameterError` says where a column is not there, cannot be meant, or must be named.
        """
        return _Builder(layout).build(self)


@dataclass(frozen=True, eq=False)
class Built:
    """A kernel in standardised units, where training starts, and what training should know about it.

    `fixed` are the full paths, such as "kernel.kernels.0.kernel.period", of parameters that training
    must hold: the periods, since they are known and their likelihood has many local optima; and
    variances that another factor of the same product has already. `signals` are the full paths of the
    terms' signal variances; those of linear and constant kernels are not among them.
    """

    kernel: Kernel
    fixed: tuple[str, ...]
    signals: tuple[str, ...]


class _Builder:
    """Builds kernels from trees, and remembers the tensors that training should know about."""

    def __init__(self, layout: InputLayout) -> None:
        self._layout = layout
        self._fixed: list[Tensor] = []
        self._signals: list[Tensor] = []

    def build(self, expression: Expression) -> Built:
        kernel = self._sum(expression, 1.0, free=True)
        fixed, signals = (
            tuple(f"kernel.{n}" for n, v in kernel.parameters().items() if id(v) in map(id, known))
            for known in (self._fixed, self._signals)
        )
        return Built(kernel, fixed, signals)

    def _sum(self, expression: Expression, variance: float, free: bool) -> Kernel:
        """Build the sum, times a variance; the first term's variance is held where it is not free."""
        terms = enumerate(expression.terms)
        found = tuple(self._term(term, variance, free or place > 0) for place, term in terms)
        return found[0] if len(found) == 1 else Sum(found)

    def _term(self, term: Term, variance: float, free: bool) -> Kernel:
        variance = variance * term.variance
        factors = [f for f in term.factors if isinstance(f, Expression) or f.name != "constant"]
        if not factors:
            return Constant(self._kept(variance, None if free else self._fixed))
        kernels: list[Kernel] = []
        scaled = False  # whether a factor has the term's variance already
        for factor in factors:
            own, first = (1.0 if scaled else variance), free and not scaled
            if isinstance(factor, Expression):
                kernels.append(self._sum(factor, own, first))
            else:
                kernels.append(self._named(factor, own, first))
            scaled = scaled or isinstance(factor, Expression) or factor.name == "linear"
        product = kernels[0] if len(kernels) == 1 else Product(tuple(kernels))
        if scaled:
            return product
        return Scale(product, self._kept(variance, self._signals if free else self._fixed))

    def _kept(self, value: float | list[float], where: list[Tensor] | None) -> Tensor:
        """Make a parameter, remembered in one of the lists."""
        tensor = torch.tensor(value, dtype=torch.float64)
        if where is not None:
            where.append(tensor)
        return tensor

    def _named(self, named: Named, variance: float, free: bool) -> Kernel:
        """Build a kernel by name; the variance is for a linear one, since the others have none."""
        try:
            if named.name == "linear":
                own = self._kept([variance], None if free else self._fixed)
                return Linear(own, self._features(named))
            return self._periodic(named) if named.name == "periodic" else self._stationary(named)
        except ParameterError as error:
            raise ParameterError(f"in {quoted(str(named))}: {error}") from None

    def _stationary(self, named: Named) -> Kernel:
        given, layout = named.lengthscale, self._layout
        timed = given if given is not None and given.unit is not None else None
        active = self._measured(named, timed) if timed else self._features(named)
        features = range(layout.d) if active is None else active
        lengths = [math.sqrt(len(features))] * len(features)
        if given is not None:
            lengths = given.on(layout, features)
        options: dict[str, Any] = {}
        if (shared := layout.sharing(features)) is not None:
            logs, of = torch.tensor(lengths, dtype=torch.float64).log(), torch.tensor(shared)
            lengths = [float(logs[of == group].mean().exp()) for group in range(max(shared) + 1)]
            options["shared"] = shared
        if named.alpha is not None:
            options["alpha"] = named.alpha.value
        return KERNELS[named.name](lengths, active, **options)

    def _periodic(self, named: Named) -> Kernel:
        assert named.period is not None
        features = self._measured(named, named.period)
        period = self._kept(named.period.on(self._layout, features), self._fixed)
        lengthscale = 1.0 if named.lengthscale is None else named.lengthscale.value
        alone = self._layout.d == 1 and not named.columns
        return Periodic(lengthscale, period, None if alone else features)

    def _features(self, named: Named) -> tuple[int, ...] | None:
        """List the features of the columns that were named; None for all."""
        found = [j for name in named.columns for j in self._layout.places_of(name)]
        return tuple(dict.fromkeys(found)) or None

    def _measured(self, named: Named, amount: Amount) -> tuple[int, ...]:
        """List the features that a period or a length in time is measured along."""
        columns = named.columns or (self._only_column(named, amount),)
        found = {j: c for c in columns for j in self._layout.places_of_number(c)}
        for feature, column in found.items():
            dated = feature in self._layout.days
            if dated and amount.unit is None:
                raise ParameterError(
                    f"column {quoted(column)} holds dates: say the unit, such as {amount} days"
                )
            if not dated and amount.unit is not None:
                raise ParameterError(
                    f"column {quoted(column)} holds plain numbers, which have no unit of time: write "
                    f"{number(amount.value)} if the column is in {amount.unit}"
                )
        return tuple(found)

    def _only_column(self, named: Named, amount: Amount) -> str:
        """Return the only column that can be meant where none was named."""
        layout = self._layout
        known = list(layout.known)
        dates = [name for name in known if not layout.days.isdisjoint(layout.places_of(name))]
        meant = dates if amount.unit is not None and dates else known
        if len(meant) == 1:
            return meant[0]
        example = f"{named.name}({amount}, columns={_column(meant[0])})"
        raise ParameterError(
            f"name the column that this is measured along, such as {quoted(example)}: there are "
            f"{listed(meant)}"
        )


def number(value: float) -> str:
    """Write a number as a person would, exactly."""
    return repr(value).removesuffix(".0")


def _column(name: str) -> str:
    """Write the name of a column as it can stand in a text."""
    if re.fullmatch(PLAIN_NAME, name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
