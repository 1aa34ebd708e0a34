"""Kernels of the scaled distance r² = Σ_j (x_j − x′_j)² / ℓ_j², and where their points lie."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
from distgp.kernels.base import safe_sqrt as safe_sqrt  # for kernels of users' own
from distgp.kernels.sphere import Degrees, anisotropy_of, degrees, of_metric, on_sphere, squeezed

BLOCK = 2**18
"""Entries of a matrix that are worked on at a time on a CPU: 2 MiB, which stays in the cache."""
TOLERATED = 1e-9
"""The error of squared distances, in lengthscales, or their share, from which they are mended: rows must be
some 1,500 lengthscales away from the middle of all to have it."""
SMALL_SET = 256
"""Rows up to which the middle of a set in a batch is that of three of its rows."""


def squared_distance(A: Tensor, B: Tensor) -> Tensor:
    """Compute ‖a_i − b_j‖² for all rows of A and B, the points of reference, by one matrix product.

    ‖a‖² + ‖b‖² − 2aᵀb is the product of the augmented rows (−2a, ‖a‖², 1) and (b, 1, ‖b‖²), in float64,
    where its cancellation mostly does no harm. Both are shifted by the median of B, so that neither an
    offset nor outliers take digits from other rows. The norms are shrunk by the rounding error that the
    product is likely to have, (2 + √d)ε, so that equal rows get exactly 0, in value and in gradient.
    Where cancellation does harm, between rows that are close to each other and far from all others, the
    differences are squared and added.

    Examples
    --------
    >>> A = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> squared_distance(A, A)
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    dtype, (A, B) = A.dtype, centred(A, B)
    a, b = norms(A, B)
    left, right = augmented(A, B, a, b)
    square = (left @ right.mT).clamp_min(0.0)
    if cancels(a, b):
        batch = square.shape[:-2]
        wide = (P.expand(*batch, *P.shape[-2:]).reshape(-1, *P.shape[-2:]) for P in (A, B))
        square = by_differences(square.reshape(-1, *square.shape[-2:]), *wide).reshape(square.shape)
    return square.to(dtype)


def centred(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points in float64, shifted by the middle of B; the same tensor twice if both are one."""
    same, B = A is B, B.to(torch.float64)
    centre = _middle(B.detach())
    shifted = B - centre
    return shifted if same else A.to(torch.float64) - centre, shifted


def _shrink(d: int) -> float:
    """Return 1 less the rounding error that a product of d columns is likely to have."""
    return 1.0 - (2.0 + math.sqrt(d)) * torch.finfo(torch.float64).eps


def norms(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return ‖a‖² and ‖b‖², shrunk."""
    a, b = both((A, B), lambda P: torch.linalg.vecdot(P, P) * _shrink(P.shape[-1]))
    return a, b


def augmented(A: Tensor, B: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows whose products are the squared distances, from rows and their norms."""
    left = torch.cat([-2.0 * A, a[..., None], torch.ones_like(a)[..., None]], -1)
    return left, torch.cat([B, torch.ones_like(b)[..., None], b[..., None]], -1)


def cancels(a: Tensor, b: Tensor) -> bool:
    """Whether the rounding error of some squared distance may be more than `TOLERATED`, by the norms."""
    if torch.compiler.is_compiling() or not a.numel() or not b.numel():
        return False  # an exported program cannot look at its numbers
    largest = a.detach().max() + b.detach().max()
    return bool(torch.finfo(a.dtype).eps * largest > TOLERATED)


def by_differences(square: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """Replace the squared distances (count, n1, n2) that lost their digits by those of the differences.

    The product is wrong by about ε(‖a‖² + ‖b‖²), which is tolerated up to `TOLERATED`, or that share of
    the squared distance.
    """
    with torch.no_grad():
        eps = torch.finfo(A.dtype).eps
        wrong = eps * (A.square().sum(-1)[..., None] + B.square().sum(-1)[..., None, :])
        lost = (wrong > TOLERATED * square.clamp_min(1.0)).nonzero(as_tuple=True)
    item, row, column = lost
    parts = zip(*(index.split(BLOCK) for index in (item, row, column)), strict=True)
    mended = [(A[i, r] - B[i, c]).square().sum(-1) for i, r, c in parts]
    return square.index_put(lost, torch.cat(mended).to(square.dtype)) if mended else square


def _middle(B: Tensor) -> Tensor:
    """Return a point in the middle of the rows of B (*batch, n, d), column by column, (*batch, 1, d).

    That is the median, so that outliers do not move it, of some hundreds of rows where there are more; of
    many small sets (neighbourhoods of rows) that of the first, a middle and the last row, which costs far
    less.
    """
    n = B.shape[-2]
    if B.ndim == 2 or n > SMALL_SET:
        return B[..., :: max(1, n // SMALL_SET), :].median(-2, keepdim=True).values
    first, middle, last = B[..., :1, :], B[..., n // 2 : n // 2 + 1, :], B[..., -1:, :]
    low, high = torch.minimum(first, last), torch.maximum(first, last)
    return torch.maximum(low, torch.minimum(high, middle))


def both(pair: tuple[Tensor, Tensor], change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Change two tensors, which stay one if they are one."""
    first = change(pair[0])
    return first, first if pair[1] is pair[0] else change(pair[1])


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
