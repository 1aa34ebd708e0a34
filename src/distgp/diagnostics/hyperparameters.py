"""The hyperparameters of a kernel in the units of the data, and the relevance of its columns.

A kernel is taken apart into a sum of products, k = Σ_t σ_t² Π_f k_tf, with products of sums multiplied out.
Each product is a part, with one signal variance σ_t² and factors k_tf. The quantities that are shown follow
from that form and from the scaling of the data:

- a lengthscale ℓ_j and a period p_j are multiplied by the scale of their column. The lengthscale of a
  periodic kernel is one on the circle, which has no unit, and stays as it is;
- the lengthscales along a direction and across it, and its angle, are those of r² = (x − x′)ᵀM(x − x′) with
  M divided by the scales of both columns;
- the standard deviation σ_t of a part, and that of the noise, are multiplied by the target's scale;
- the variance v_j of a linear kernel's weight becomes the standard deviation σ_t √v_j of a slope, in
  units of the target per unit of the column, as is the slope of a linear trend.

Where the features of one column share a lengthscale, as those of a text do, the column has one line: with
the geometric mean of their lengthscales in the units of the data, and the sum of their relevances.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from distgp.data.scaling import Scaling
from distgp.kernels import Constant, Kernel, Linear, Periodic, Product, Scale, Stationary, Sum
from distgp.kernels.sphere import EARTH, Degrees, of_metric
from distgp.kernels.stationary import metric

Shared: TypeAlias = Mapping[str, tuple[int, ...]]
"""The columns that stand for several features with one lengthscale, and the places of these."""


@dataclass(frozen=True)
class Quantity:
    """One hyperparameter in the units of the data.

    `part` is the part of the kernel that it belongs to, from 1, and 0 for the noise and the linear trend;
    `factor` the kernel in it, such as "Matern52", or ""; `column` is None where it belongs to all columns.
    Where experts differ, `value` is their median, and `low` and `high` are their range.
    """

    part: int
    factor: str
    name: str
    column: str | None
    value: float
    low: float
    high: float

    @staticmethod
    def of(part: int, factor: str, name: str, column: str | None, values: np.ndarray) -> Quantity:
        """Summarise the values of all experts."""
        low, middle, high = float(values.min()), float(np.median(values)), float(values.max())
        return Quantity(part, factor, name, column, middle, low, high)

    def __str__(self) -> str:
        if self.low == self.high:
            return plain(self.value)
        return f"{plain(self.value)} ({plain(self.low)} to {plain(self.high)})"


def plain(value: float) -> str:
    """Write a number as people do: 74,870 instead of 7.487e+04, with four digits that count.

    Examples
    --------
    >>> plain(74_871.3), plain(0.12345), plain(3e20)
    ('74,870', '0.1235', '3e+20')
    """
    short = f"{value:.4g}"
    return f"{float(short):,.0f}" if 1e4 <= abs(value) < 1e12 else short


class Part(NamedTuple):
    """A product σ² Π_f k_f without sums or products among its factors; σ² is (M,), or (1,) for all."""

    variance: np.ndarray
    factors: tuple[Kernel, ...] = ()

    def times(self, other: Part) -> Part:
        """Multiply two parts."""
        return Part(self.variance * other.variance, (*self.factors, *other.factors))

    def kernel(self) -> Kernel:
        """The part as a kernel of its own."""
        one = len(self.variance) == 1
        variance = float(self.variance[0]) if one else torch.as_tensor(self.variance)
        return Scale(reduce(mul, self.factors), variance) if self.factors else Constant(variance)


def parts_of(kernel: Kernel) -> list[Part]:
    """Take a kernel apart into the products that it is the sum of."""
    if isinstance(kernel, Sum):
        return [part for child in kernel.kernels for part in parts_of(child)]
    if isinstance(kernel, Product):
        found = [Part(np.ones(1))]
        for child in kernel.kernels:
            found = [a.times(b) for a in found for b in parts_of(child)]
        return found
    if isinstance(kernel, Scale):
        return [Part(per_expert(kernel.variance)).times(part) for part in parts_of(kernel.kernel)]
    if isinstance(kernel, Constant):
        return [Part(per_expert(kernel.variance))]
    return [Part(np.ones(1), (kernel,))]


def per_expert(tensor: Tensor) -> np.ndarray:
    """Return a parameter that is one number, of each expert, (M,), or of all, (1,)."""
    return np.atleast_1d(tensor.detach().cpu().double().numpy())


def quantities_of(
    kernel: Kernel, scaling: Scaling, columns: Sequence[str], shared: Shared
) -> tuple[Quantity, ...]:
    """List the hyperparameters of a kernel, and the slopes of a linear trend, in the units of the data."""
    parts = enumerate(parts_of(kernel), start=1)
    found = [q for number, part in parts for q in _of_part(number, part, scaling, columns, shared)]
    if scaling.slope is not None:
        gains = zip(columns, scaling.slope / scaling.x_scale, strict=True)
        found += [Quantity.of(0, "trend", "trend slope", name, np.array([g])) for name, g in gains]
    return tuple(found)


def _of_part(
    number: int, part: Part, scaling: Scaling, columns: Sequence[str], shared: Shared
) -> Iterator[Quantity]:
    """List the hyperparameters of one part."""
    amplitude = np.sqrt(part.variance) * scaling.y_scale
    linear = next((factor for factor in part.factors if isinstance(factor, Linear)), None)
    if linear is None:
        yield Quantity.of(number, "", "signal sd" if part.factors else "offset sd", None, amplitude)
    for factor in part.factors:
        kind, active = type(factor).__name__, active_columns(factor, len(columns))
        # The part's own amplitude can go to one factor alone.
        own, scale = amplitude[:, None] if factor is linear else 1.0, scaling.x_scale[active]
        units = {"lengthscale": scale, "period": scale, "slope sd": own / scale}
        labels = _labels(factor, active, columns, shared)
        for name, standardised in _by_column(factor, len(active)).items():
            values = standardised * units.get(name, 1.0)
            for label, places in labels:
                yield Quantity.of(number, kind, name, label, _geometric_mean(values[:, places]))
        for name, tensor in (_others(factor) | _of_direction(factor, scale)).items():
            yield Quantity.of(number, kind, name, None, per_expert(tensor).reshape(-1))


def _by_column(factor: Kernel, count: int) -> dict[str, np.ndarray]:
    """Return what a factor has along each of its `count` columns, (M, count) or (1, count), by name."""
    found: dict[str, Tensor] = {}
    if isinstance(factor, Stationary) and factor.anisotropy is None:
        name = "lengthscale" if factor.sphere is None else "lengthscale in km"
        found = {name: factor.lengthscale_by_column(count)}
    elif isinstance(factor, Periodic):
        found = {"period": factor.period, "lengthscale on the circle": factor.lengthscale}
    elif isinstance(factor, Linear):
        found = {"slope sd": factor.variance.sqrt()}
    wide = {name: np.atleast_2d(per_expert(tensor)) for name, tensor in found.items()}
    return {name: np.broadcast_to(v, (len(v), count)) for name, v in wide.items()}


def _others(factor: Kernel) -> dict[str, Tensor]:
    """Return the parameters that `_by_column` leaves out: all of a kernel that it does not know."""
    if isinstance(factor, Periodic | Linear):
        return {}
    if not isinstance(factor, Stationary):
        return factor.parameters()
    shown = ("lengthscale", "anisotropy")
    return {name: v for name, v in factor.own_parameters().items() if name not in shown}


def _of_direction(factor: Kernel, scale: np.ndarray) -> dict[str, Tensor]:
    """Return the lengthscales along and across a direction, and its angle, in the units of the data."""
    if not isinstance(factor, Stationary) or factor.anisotropy is None:
        return {}
    M = metric(factor).detach().cpu().double() / torch.as_tensor(scale[:, None] * scale)
    names = ("lengthscale along", "lengthscale across", "angle in degrees")
    return dict(zip(names, of_metric(M), strict=True))


def _labels(
    factor: Kernel, active: list[int], columns: Sequence[str], shared: Shared
) -> list[tuple[str, list[int]]]:
    """Return the columns of a factor by name, and the places of their values among its own."""
    if isinstance(factor, Stationary) and factor.shared is not None:
        lines = labelled(active, columns, shared)
        return [(label, [active.index(j) for j in features]) for label, features in lines]
    return [(columns[j], [place]) for place, j in enumerate(active)]


def _geometric_mean(values: np.ndarray) -> np.ndarray:
    return values[:, 0] if values.shape[1] == 1 else np.exp(np.log(values).mean(1))


def active_columns(factor: Kernel, d: int) -> list[int]:
    """Return the places of the columns that a factor looks at; a user's own kernel looks at all."""
    active = getattr(factor, "active_dims", None)
    return list(range(d)) if active is None else [column % d for column in active]


def labelled(
    places: Iterable[int], columns: Sequence[str], shared: Shared
) -> list[tuple[str, list[int]]]:
    """Return the names of these columns, and the places of each: one name for those that share."""
    owner = {j: label for label, features in shared.items() for j in features}
    found: dict[str, list[int]] = {}
    for j in places:
        found.setdefault(owner.get(j, columns[j]), []).append(j)
    return list(found.items())


def shared_columns(
    kernels: Iterable[Kernel], columns: Sequence[str], names: Mapping[tuple[int, ...], str]
) -> dict[str, tuple[int, ...]]:
    """Find the columns with one lengthscale for several features, and the places of these.

    They go by the names of their places, or of the features; where kernels disagree the first counts.
    """
    found: dict[str, tuple[int, ...]] = {}
    parts = (part for kernel in kernels for part in parts_of(kernel))
    for factor in (factor for part in parts for factor in part.factors):
        if not isinstance(factor, Stationary) or factor.shared is None:
            continue
        pairs = list(zip(factor.shared, active_columns(factor, len(columns)), strict=True))
        for number in set(factor.shared):
            group = tuple(sorted(j for i, j in pairs if i == number))
            known = any(set(group) & set(other) for other in found.values())
            if len(group) > 1 and not known:
                found[names.get(group, ", ".join(columns[j] for j in group))] = group
    return found


def relevance(kernel: Kernel, scaling: Scaling, varies: np.ndarray | None = None) -> np.ndarray:
    """Return the shares, (d,), of the slopes' root mean squares; a column that does not vary has none."""
    d = len(scaling.x_scale)
    slopes = np.zeros((1, d))
    if scaling.slope is not None:
        slopes = (scaling.slope[None] / scaling.y_scale) ** 2
    for part in parts_of(kernel):
        moments = [_slopes_and_variance(factor, d) for factor in part.factors]
        for i, (squared, _) in enumerate(moments):
            others = [variance for place, (_, variance) in enumerate(moments) if place != i]
            slopes = slopes + math.prod(others, start=part.variance)[:, None] * squared
    root = np.sqrt(slopes) if varies is None else np.sqrt(slopes) * varies
    total = root.sum(1, keepdims=True)
    shares = np.median(np.divide(root, total, out=np.zeros_like(root), where=total > 0), axis=0)
    return shares / shares.sum() if shares.sum() > 0 else shares


def _slopes_and_variance(factor: Kernel, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the variances of a factor's slope along each column, (M, d) or (1, d), and of its values.

    The latter is the mean of k(x, x) over standardised rows: Σ_j v_j for a linear kernel, 1 for others.
    """
    active, variance = active_columns(factor, d), np.ones(1)
    values = _by_column(factor, len(active))
    if isinstance(factor, Stationary):
        if factor.anisotropy is not None:
            M = metric(factor).detach().cpu().double().numpy()
            own = np.atleast_2d(M.diagonal(axis1=-2, axis2=-1))
        elif factor.sphere is None:
            own = values["lengthscale"] ** -2.0
        else:
            own = (km_of_units(factor.sphere) / values["lengthscale in km"]) ** 2
        if factor.shared is not None:  # a text counts as one column, however many texts there are
            own = own / np.bincount(factor.shared)[list(factor.shared)] ** 2
    elif isinstance(factor, Periodic):
        own = (2.0 * math.pi / (values["lengthscale on the circle"] * values["period"])) ** 2
    elif isinstance(factor, Linear):
        own = values["slope sd"] ** 2
        variance = own.sum(1)
    else:
        return np.zeros((1, d)), variance
    found = np.zeros((len(own), d))
    for place, column in enumerate(active):
        found[:, column] += own[:, place]
    return found, variance


def km_of_units(sphere: Degrees) -> np.ndarray:
    """Return the km of one unit of standardised longitude, at the mean latitude, and of latitude, (2,)."""
    (_, east), (latitude, north) = sphere
    return EARTH * np.radians([east * math.cos(math.radians(latitude)), north])


def name_of(part: Part, columns: Sequence[str], shared: Shared) -> str:
    """Name the factors of a part by their classes, with their columns where they are not all."""
    names: list[str] = []
    for factor in part.factors:
        active = active_columns(factor, len(columns))
        own = ", ".join(label for label, _ in labelled(active, columns, shared))
        name = type(factor).__name__
        names.append(name if len(active) == len(columns) else f"{name}({own})")
    return " × ".join(names) or "Constant"


def by_column(quantities: Iterable[Quantity]) -> dict[tuple[int, str, str], dict[str, Quantity]]:
    """Return the quantities of columns by part, factor and name; factors that are alike get numbers."""
    cells: dict[tuple[int, str, str], dict[str, Quantity]] = {}
    for q in quantities:
        if q.column is None:
            continue
        key, again = (q.part, q.factor, q.name), 1
        while q.column in cells.get(key, {}):
            again += 1
            key = (q.part, f"{q.factor} {again}", q.name)
        cells.setdefault(key, {})[q.column] = q
    return cells


def cell(quantities: Sequence[Quantity]) -> str:
    """Write the quantities in one place of a table; of several that differ, their range."""
    texts = dict.fromkeys(map(str, quantities))
    if len(texts) < 2:
        return "".join(texts)
    return f"{plain(min(q.low for q in quantities))} to {plain(max(q.high for q in quantities))}"


def titles(keys: Sequence[tuple[int, str, str]]) -> list[str]:
    """Return the shortest titles that tell hyperparameters apart: by name, factor and part."""
    forms = ("{2}", "{1} {2}", "{1} {2} (part {0})")
    every = ([form.format(*key) for key in keys] for form in forms)
    return next(found for found in every if len(set(found)) == len(found))
