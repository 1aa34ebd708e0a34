"""Kernels of the scaled distance r² = Σ_j (x_j − x′_j)² / ℓ_j², and where their points lie."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from distgp.kernels.base import (
    Columns,
    Kernel,
    ParameterError,
    columns,
    field,
    pair,
    places,
    vector,
    wrong_width,
)
from distgp.kernels.distances import safe_sqrt as safe_sqrt  # for kernels of users' own
from distgp.kernels.distances import squared_distance
from distgp.kernels.rotation import anisotropy_of, of_metric, squeezed
from distgp.kernels.sphere import Degrees, degrees, on_sphere

StationaryType = TypeVar("StationaryType", bound="Stationary")


def lengths(value: Sequence[int] | None) -> tuple[int, ...] | None:
    """Convert the places of lengthscales, one for each column, to a tuple; None for one each."""
    if value is None:
        return None
    found = tuple(int(place) for place in value)
    if not found or min(found) < 0:
        raise ParameterError(
            "shared must say for each column which lengthscale it has, by numbers from 0, such as "
            f"(0, 1, 1), or be None, got {found}"
        )
    return found


def stretches(value: Sequence[float] | None) -> tuple[float, ...] | None:
    """Convert the factors of columns, one for each, to a tuple; None where all are 1."""
    if value is None:
        return None
    found = tuple(float(factor) for factor in value)
    if not found or not all(0.0 < factor < math.inf for factor in found):
        raise ParameterError(
            f"stretch must have a positive, finite number for each column, or be None, got {found}"
        )
    return found


class Stationary(Kernel):
    """The base class of kernels k(x, x′) = shape(r²), shape(0) = 1, with the parameters of `RBF`."""

    units: ClassVar[Mapping[str, int]] = {"lengthscale": 1}
    lengthscale: Tensor = field(default=1.0, converter=vector)
    active_dims: Columns = field(default=None, converter=columns)
    shared: tuple[int, ...] | None = field(default=None, converter=lengths, kw_only=True)
    stretch: tuple[float, ...] | None = field(default=None, converter=stretches, kw_only=True)
    sphere: Degrees | None = field(default=None, converter=degrees, kw_only=True)
    anisotropy: Tensor | None = field(default=None, converter=pair, kw_only=True)

    @abstractmethod
    def shape(self, square: Tensor) -> Tensor:
        """Compute the kernel from the matrix of r²."""

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute shape(r²) for all pairs."""
        A = self.scaled(X1)
        B = A if X2 is X1 else self.scaled(X2)
        return self.shape(squared_distance(A, B))

    def diag(self, X: Tensor) -> Tensor:
        """Return ones."""
        each = self.lengthscale[..., :1]
        each = each if self.anisotropy is None else each * self.anisotropy[..., :1]
        return torch.ones_like(X[..., 0] * each, dtype=X.dtype)

    def scaled(self, X: Tensor) -> Tensor:
        """Return the active columns in units of the lengthscales, x / ℓ."""
        X = self.located(X)
        return X / self.lengthscale_of_each(X.shape[-1])[..., None, :]

    def located(self, X: Tensor) -> Tensor:
        """Place points so that differences need only be divided by `lengthscale_of_each` coordinate.

        These are the active columns; on the sphere, points in km; for a kernel with a direction, columns
        in which it has none.
        """
        if self.active_dims is not None:
            X = X[..., places(self.active_dims, X.shape[-1])]
        if self.anisotropy is not None:
            self._check_direction(X.shape[-1])
            return squeezed(
                X if self.stretch is None else X * X.new_tensor(self.stretch), self.anisotropy
            )
        return X if self.sphere is None else on_sphere(X, self.sphere)

    def lengthscale_of_each(self, count: int) -> Tensor:
        """Return the lengthscale of each of the `count` coordinates of `located`, or one for all."""
        return (
            self.lengthscale if self.anisotropy is not None else self.lengthscale_by_column(count)
        )

    def lengthscale_by_column(self, count: int) -> Tensor:
        """Return the lengthscale of each of the `count` active columns, or one for all of them."""
        found = self._shared_by(count)
        if self.stretch is None:
            return found
        if len(self.stretch) != count:
            raise wrong_width(len(self.stretch), count)
        return found / found.new_tensor(self.stretch)

    def _check_direction(self, count: int) -> None:
        """Raise a `ParameterError` unless a kernel with a direction has what a direction needs."""
        if self.sphere is not None:
            raise ParameterError(
                "a kernel on the sphere has no direction, since that is another one at every place: make x "
                "and y of a flat map out of longitude and latitude"
            )
        if count != 2:
            raise ParameterError(
                f"a kernel with a direction looks at two columns, got {count}: name them in active_dims"
            )
        if self.lengthscale.shape[-1] != 1 or self.shared is not None:
            raise ParameterError(
                "a kernel with a direction has one lengthscale, the mean of those along and across it, got "
                f"{self.lengthscale.shape[-1]}: distgp.kernels.rotated takes both and the angle"
            )

    def _shared_by(self, count: int) -> Tensor:
        """Return the lengthscale of each active column, or one for all, before columns are stretched."""
        held = self.lengthscale.shape[-1]
        if self.sphere is not None and held > 1:
            raise ParameterError(
                f"a kernel on the sphere has one lengthscale, in km, got {held}: give one number"
            )
        if self.shared is None:
            if held not in (1, count):
                raise wrong_width(held, count)
            return self.lengthscale
        if len(self.shared) != count:
            raise ParameterError(
                f"shared says which lengthscale each of {len(self.shared)} columns has, but the kernel "
                f"looks at {count} columns: give it one entry for each of them"
            )
        if set(self.shared) != set(range(held)):
            raise ParameterError(
                f"the kernel holds {held} lengthscales, but shared refers to {sorted(set(self.shared))}: "
                f"it must refer to all of them, by numbers from 0 to {held - 1}"
            )
        return self.lengthscale[..., list(self.shared)]


def rotated(
    kind: type[StationaryType],
    along: float,
    across: float,
    angle: float,
    active_dims: Columns = None,
) -> StationaryType:
    """Build a kernel of two columns with one lengthscale along a direction and another across it.

    Parameters
    ----------
    kind : type of Stationary
        The kernel, such as `Matern32`.
    along, across : float
        The lengthscales along the direction and across it.
    angle : float
        The direction in degrees, from the first column towards the second: where these are east and north,
        counterclockwise from east. An azimuth, clockwise from north, is 90 less this angle.
    active_dims : sequence of int or str, optional
        The two columns, which have the same unit.

    Returns
    -------
    Stationary
        The kernel. Its lengthscale is the geometric mean of both, its `anisotropy` holds the direction, and
        `directions` reads them.

    Examples
    --------
    >>> from distgp import Matern32
    >>> kernel = rotated(Matern32, 120.0, 40.0, angle=30.0)
    >>> [round(float(value), 6) for value in directions(kernel)]
    [120.0, 40.0, 30.0]
    """
    if not (0.0 < along < math.inf and 0.0 < across < math.inf and math.isfinite(angle)):
        raise ParameterError(
            "expected two positive lengthscales and an angle in degrees, got "
            f"{along}, {across} and {angle}"
        )
    numbers = anisotropy_of(along / across, angle)
    return kind(math.sqrt(along * across), active_dims, anisotropy=numbers)


def directions(kernel: Stationary) -> tuple[Tensor, Tensor, Tensor]:
    """Return the longer lengthscale of a kernel with a direction, the shorter, and the angle of the longer.

    Parameters
    ----------
    kernel : Stationary
        A kernel with an `anisotropy`.

    Returns
    -------
    along, across, angle : Tensor
        Each is (*batch,). The angle is in degrees, from 0 to less than 180. They are those of the inputs
        that the kernel sees, which an estimator has standardised; `gp.summary()` shows those of the data.
    """
    return of_metric(metric(kernel))


def metric(kernel: Stationary) -> Tensor:
    """Return the matrix M (*batch, 2, 2) of r² = (x − x′)ᵀ M (x − x′) for a kernel with a direction."""
    if kernel.anisotropy is None:
        raise ParameterError(f"{type(kernel).__name__} has no anisotropy, and so no direction")
    units = torch.diag(kernel.lengthscale.new_tensor(kernel.stretch or (1.0, 1.0)))
    root = squeezed(units, kernel.anisotropy) / kernel.lengthscale[..., None]
    return root @ root.mT
