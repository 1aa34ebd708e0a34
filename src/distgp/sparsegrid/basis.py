"""The functions that all grids of a sparse grid are made of, and how each grid whitens its own.

Every grid Ω_l is the inducing set of a sparse GP, which needs v_l(x) = L_l⁻¹k(Ω_l, x) with
L_l L_lᵀ = k(Ω_l, Ω_l). All grids share the points of the sparse grid, so the kernel is evaluated
once for all of them.

If the kernel is a product over the columns, so is v: K_uu is the Kronecker product of the axes' kernel
matrices and v_l(x) that of the axes' v_j(x_j). With the points of an axis ordered by level, the
factor of a lower level is the leading block of a higher one's, and its v_j are the first entries. So
the products φ_p(x) = Π_j v_{j,p_j}(x_j), one for each point p of the sparse grid, are orthonormal in
the RKHS, and every grid's v_l is a choice among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from distgp import linalg
from distgp.experts.base import in_chunks
from distgp.kernels import RBF, Constant, Kernel, Periodic, Product, Scale, Stationary
from distgp.kernels.base import TensorLike, places, replaced, vector
from distgp.sparsegrid.grids import Box, SparseGrid

Factors: TypeAlias = dict[int, Kernel]
"""For each column that a kernel looks at, its factor, as a kernel of one column."""


def separable(kind: type[Stationary], lengthscale: TensorLike) -> Kernel:
    """Build the product kernel Π_j kind(x_j, x′_j), with one lengthscale per column.

    Parameters
    ----------
    kind : type of Stationary
        The kernel of each column, such as `Matern52`.
    lengthscale : sequence or Tensor
        One lengthscale per column.

    Returns
    -------
    Kernel
        A `Product` with one factor per column; an RBF kernel is such a product by itself.

    Examples
    --------
    >>> from distgp import Matern52, separable
    >>> list(separable(Matern52, [0.5, 2.0]).parameters())
    ['kernels.0.lengthscale', 'kernels.1.lengthscale']
    """
    lengths = vector(lengthscale)
    if kind is RBF or len(lengths) == 1:
        return kind(lengths)
    return Product(tuple(kind(lengths[j : j + 1], active_dims=(j,)) for j in range(len(lengths))))


def factors(kernel: Kernel, d: int) -> tuple[Kernel, ...] | None:
    """Take a kernel apart into d kernels of one column each whose product it is.

    None where it is no such product, or where its parameters differ between experts.

    Examples
    --------
    >>> from distgp import RBF
    >>> factors(RBF([0.5, 2.0]), 2)
    (RBF(lengthscale=[0.5]), RBF(lengthscale=[2.0]))
    """
    found = None if any(kernel.batches().values()) else _factors(kernel, d)
    if found is None:
        return None
    like = next(iter(kernel.parameters().values()))
    one = Constant(torch.ones_like(like.reshape(-1)[0]))
    return tuple(found.get(j, one) for j in range(d))


@singledispatch
def _factors(kernel: Kernel, d: int) -> Factors | None:
    """Return the factors of a kernel; any that looks at a single column is its own."""
    active = getattr(kernel, "active_dims", None)
    if active is not None and len(active) == 1:
        return {places(active, d)[0]: replaced(kernel, active_dims=None)}
    return {0: kernel} if d == 1 else None


@_factors.register
def _(kernel: Constant, d: int) -> Factors:
    del d
    return {0: kernel}


@_factors.register
def _(kernel: Scale, d: int) -> Factors | None:
    return _multiplied([_factors(kernel.kernel, d), {0: Constant(kernel.variance)}])


@_factors.register
def _(kernel: Product, d: int) -> Factors | None:
    return _multiplied(_factors(part, d) for part in kernel.kernels)


@_factors.register
def _(kernel: RBF, d: int) -> Factors | None:
    if kernel.sphere is not None or kernel.anisotropy is not None:
        return None
    columns = places(kernel.active_dims, d)
    lengths = kernel.lengthscale_by_column(len(columns))  # columns that share one get copies of it
    return _multiplied({column: RBF(_at(lengths, j))} for j, column in enumerate(columns))


@_factors.register
def _(kernel: Periodic, d: int) -> Factors | None:
    return _multiplied(
        {column: Periodic(_at(kernel.lengthscale, j), _at(kernel.period, j))}
        for j, column in enumerate(places(kernel.active_dims, d))
    )


def _multiplied(parts: Iterable[Factors | None]) -> Factors | None:
    """Multiply the factors of each column; None where a part has none."""
    product: Factors = {}
    for part in parts:
        if part is None:
            return None
        both = {j: Product((product[j], part[j])) for j in product.keys() & part.keys()}
        product = product | part | both
    return product


def _at(parameter: Tensor, j: int) -> Tensor:
    """Return the j-th value, or the one for all."""
    return parameter if parameter.shape[-1] == 1 else parameter[j : j + 1]


class Basis(ABC):
    """m functions u_p, one for each point of the sparse grid, whose span contains every grid's mean."""

    travels_as: ClassVar[str] = "basis"
    kernel: Kernel
    grid: SparseGrid

    @abstractmethod
    def at(self, X: Tensor) -> Tensor:
        """Evaluate u(x) at all rows of X (N, d): (m, N)."""

    @abstractmethod
    def whitened(self, u: Tensor, which: int) -> Tensor:
        """Compute v_l(x) of one grid, (m_l, N), from u(x)."""

    @abstractmethod
    def coefficients(self, weights: list[Tensor]) -> Tensor:
        """Write the grids' means f_l(x) = w_lᵀv_l(x) in the basis: W (m, b) with f_l(x) = (Wᵀu(x))_l."""

    @abstractmethod
    def inner(self, W: Tensor) -> Tensor:
        """Compute the inner products ⟨f_l, f_k⟩_H between all grids' means, (b, b)."""

    @property
    def entries(self) -> int:
        """Entries of temporary matrices per row: u, and twice v of the largest grid."""
        return len(self.grid.positions) + 2 * max(len(own) for own in self.grid.members)


@dataclass(frozen=True, eq=False)
class TensorBasis(Basis):
    """The basis u = φ for a product kernel, which needs no further whitening.

    There is a kernel in `parts`, the points of an axis in `axes`, and the Cholesky factor L_j of their
    kernel matrix in `factors` for each column.
    """

    kernel: Kernel
    grid: SparseGrid
    parts: tuple[Kernel, ...]
    axes: tuple[Tensor, ...]
    factors: tuple[Tensor, ...]

    def at(self, X: Tensor) -> Tensor:
        """Multiply the axes' functions, Π_j v_j(x_j)."""
        columns = zip(self.parts, self.axes, self.factors, strict=True)
        u: Tensor | None = None
        for j, (kernel, points, L) in enumerate(columns):
            v = linalg.solve_lower(L, kernel(X[:, j : j + 1], points[:, None]).mT)
            rows = v.index_select(0, self.grid.positions[:, j])
            u = rows if u is None else u.mul_(rows)
        assert u is not None
        return u

    def whitened(self, u: Tensor, which: int) -> Tensor:
        """Choose the grid's own entries."""
        return u.index_select(0, self.grid.members[which])

    def coefficients(self, weights: list[Tensor]) -> Tensor:
        """Put each grid's weights in their places."""
        return _scattered(self.grid, weights)

    def inner(self, W: Tensor) -> Tensor:
        """Multiply the coefficients, since φ is orthonormal."""
        return W.mT @ W


@dataclass(frozen=True, eq=False)
class PointBasis(Basis):
    """The basis u(x) = k(Ω, x) for any kernel, whitened by each grid's own factor.

    It holds the `points` Ω, (m, d), the Cholesky factors L_l of the grids' kernel matrices, and the
    `nugget` on the diagonal of all these matrices, 0 where the kernel does without.
    """

    kernel: Kernel
    grid: SparseGrid
    points: Tensor
    factors: tuple[Tensor, ...]
    nugget: Tensor

    def at(self, X: Tensor) -> Tensor:
        """Evaluate the kernel, once for all grids."""
        return self.kernel(X, self.points).mT

    def whitened(self, u: Tensor, which: int) -> Tensor:
        """Solve for L_l⁻¹k(Ω_l, x)."""
        return linalg.solve_lower(self.factors[which], u.index_select(0, self.grid.members[which]))

    def coefficients(self, weights: list[Tensor]) -> Tensor:
        """Put each grid's L_l⁻ᵀw_l in its places."""
        pairs = zip(self.factors, weights, strict=True)
        return _scattered(self.grid, [linalg.solve_upper(L, w[:, None])[:, 0] for L, w in pairs])

    def inner(self, W: Tensor) -> Tensor:
        """Compute WᵀKW with the nugget that all grids have, so that they stay projections of one f."""
        parts = in_chunks(lambda X: self.at(X).mT @ W, self.points, len(self.points))
        return W.mT @ (torch.cat(parts) + self.nugget * W)


def basis_of(kernel: Kernel, grid: SparseGrid, box: Box, dense: bool = False) -> Basis:
    """Build the basis of a sparse grid in a box, in float64 and on the box's device.

    Parameters
    ----------
    kernel, grid, box : Kernel, SparseGrid, Box
        The kernel, the sparse grid, and where it lies.
    dense : bool, default=False
        Whether to treat a product kernel like any other.

    Returns
    -------
    Basis
        A `TensorBasis` with Kronecker factors for a product kernel, a `PointBasis` for others.
    """
    kernel = kernel.to(box.lower.device, torch.float64)
    parts = None if dense else factors(kernel, box.d)
    if parts is None:
        return _point_basis(kernel, grid, grid.points(box))
    axes = tuple(box.axis(j, grid.level, grid.boundary) for j in range(box.d))
    own = tuple(_axis_factor(part, points) for part, points in zip(parts, axes, strict=True))
    return TensorBasis(kernel, grid, parts, axes, own)


def _axis_factor(kernel: Kernel, points: Tensor) -> Tensor:
    K = kernel(points[:, None])
    L = linalg.clear_cholesky(K)
    return linalg.cholesky(K, "the kernel matrix of an axis", singular=True) if L is None else L


def _point_basis(kernel: Kernel, grid: SparseGrid, points: Tensor) -> PointBasis:
    """Factorise every grid's matrix; where one is singular to rounding, with one nugget for all."""
    grids = [points[which] for which in grid.members]
    found, nugget = [linalg.clear_cholesky(kernel(own)) for own in grids], points.new_zeros(())
    if any(L is None for L in found):
        nugget = torch.stack([linalg.rounding_of(kernel(own)) for own in grids]).max()
        lifted = (linalg.add_diagonal(kernel(own), nugget) for own in grids)
        found = [linalg.cholesky(K, "K_uu of a grid") for K in lifted]
    return PointBasis(kernel, grid, points, tuple(L for L in found if L is not None), nugget)


def _scattered(grid: SparseGrid, values: list[Tensor]) -> Tensor:
    """A matrix (m, b) whose column l holds grid l's values at its own points, and 0 elsewhere."""
    W = values[0].new_zeros(len(grid.positions), len(values))
    for column, (which, own) in enumerate(zip(grid.members, values, strict=True)):
        W[which, column] = own
    return W
