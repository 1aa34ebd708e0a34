"""The functions that all grids of a sparse grid are made of, and how a grid whitens its own.

Every grid Ω_l is the inducing set of a sparse GP, and needs v_l(x) = L_l⁻¹k(Ω_l, x). All grids share
their points, so the kernel is evaluated once for the whole sparse grid.

If the kernel is a product over the columns, so is v: K_uu is the Kronecker product of the axes' kernel
matrices and v_l(x) that of the axes' v_j(x_j). With the points of an axis ordered by level, the
factor of a lower level is the leading block of a higher one's, and its v_j the first entries. So
the products φ_p(x) = Π_j v_{j,p_j}(x_j), one for each point p of the sparse grid, are orthonormal in the
RKHS, and every grid's v_l is a choice among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.experts.base import product_in_chunks
from distgp.kernels import Kernel, factors
from distgp.sparsegrid.grids import Box, SparseGrid


class Basis(ABC):
    """m functions u_p, one for each point of the sparse grid, whose spans contain every grid's means."""

    travels_as: ClassVar[str] = "basis"
    kernel: Kernel
    grid: SparseGrid

    @abstractmethod
    def at(self, X: Tensor) -> Tensor:
        """u(x) for all rows of X, (m, N)."""

    @abstractmethod
    def whitened(self, u: Tensor, which: int) -> Tensor:
        """v_l(x) of one grid, (m_l, N), from u(x)."""

    @abstractmethod
    def coefficients(self, weights: list[Tensor]) -> Tensor:
        """W (m, b) with f_l(x) = w_lᵀv_l(x) = (Wᵀu(x))_l."""

    @abstractmethod
    def inner(self, W: Tensor) -> Tensor:
        """⟨f_l, f_k⟩_H of all grids, (b, b)."""

    @property
    def columns(self) -> int:
        """Entries of temporary matrices for each row: u, and v of the largest grid twice."""
        return len(self.grid.positions) + 2 * max(len(own) for own in self.grid.members)


@dataclass(frozen=True, eq=False)
class TensorBasis(Basis):
    """For product kernels: u = φ, whitened as it is."""

    kernel: Kernel
    grid: SparseGrid
    parts: tuple[Kernel, ...]
    axes: tuple[Tensor, ...]
    factors: tuple[Tensor, ...]
    """L_j of each axis' kernel matrix."""

    def at(self, X: Tensor) -> Tensor:
        """Π_j v_j(x_j)."""
        u: Tensor | None = None
        for j, (kernel, points, L) in enumerate(
            zip(self.parts, self.axes, self.factors, strict=True)
        ):
            v = linalg.solve_lower(L, kernel(X[:, j : j + 1], points[:, None]).mT)
            rows = v.index_select(0, self.grid.positions[:, j])
            u = rows if u is None else u.mul_(rows)
        assert u is not None
        return u

    def whitened(self, u: Tensor, which: int) -> Tensor:
        """The grid's own entries."""
        return u.index_select(0, self.grid.members[which])

    def coefficients(self, weights: list[Tensor]) -> Tensor:
        """The weights, each in its place."""
        return _scattered(self.grid, weights)

    def inner(self, W: Tensor) -> Tensor:
        """φ is orthonormal."""
        return W.mT @ W


@dataclass(frozen=True, eq=False)
class PointBasis(Basis):
    """For any kernel: u(x) = k(Ω, x), whitened by each grid's own factor."""

    kernel: Kernel
    grid: SparseGrid
    points: Tensor
    factors: tuple[Tensor, ...]
    """L_l of each grid's kernel matrix."""
    nugget: Tensor
    """What all of them have on their diagonals besides: 0 where the kernel does without."""

    def at(self, X: Tensor) -> Tensor:
        """The kernel, once for all grids."""
        return self.kernel(X, self.points).mT

    def whitened(self, u: Tensor, which: int) -> Tensor:
        """L_l⁻¹k(Ω_l, x)."""
        return linalg.solve_lower(self.factors[which], u.index_select(0, self.grid.members[which]))

    def coefficients(self, weights: list[Tensor]) -> Tensor:
        """L_l⁻ᵀw_l, each in its place."""
        pairs = zip(self.factors, weights, strict=True)
        return _scattered(self.grid, [linalg.solve_upper(L, w[:, None])[:, 0] for L, w in pairs])

    def inner(self, W: Tensor) -> Tensor:
        """WᵀKW, with the nugget that the grids have: so they stay projections of one function."""
        KW = product_in_chunks(self.kernel, self.points, self.points, W)
        return W.mT @ (KW + self.nugget * W)


def basis_of(kernel: Kernel, grid: SparseGrid, box: Box, dense: bool = False) -> Basis:
    """Kronecker factors for a product kernel (unless `dense`), one factor a grid for any other."""
    kernel = kernel.to(box.lower.device, torch.float64)
    parts = None if dense else factors(kernel, box.d)
    return (
        _point_basis(kernel, grid, box)
        if parts is None
        else _tensor_basis(kernel, parts, grid, box)
    )


def _tensor_basis(
    kernel: Kernel, parts: tuple[Kernel, ...], grid: SparseGrid, box: Box
) -> TensorBasis:
    axes = tuple(box.axis(j, grid.level, grid.boundary) for j in range(box.d))
    own = []
    for part, points in zip(parts, axes, strict=True):
        K = part(points[:, None])
        L = linalg.clear_cholesky(K)
        name = "the kernel matrix of an axis"
        own.append(linalg.cholesky(K, name, singular=True) if L is None else L)
    return TensorBasis(kernel, grid, parts, axes, tuple(own))


def _point_basis(kernel: Kernel, grid: SparseGrid, box: Box) -> PointBasis:
    """As it is, or, where one grid's matrix is singular to rounding, with one nugget for all."""
    points = grid.points(box)
    own = [linalg.clear_cholesky(kernel(points[which])) for which in grid.members]
    if all(L is not None for L in own):
        found = tuple(L for L in own if L is not None)
        return PointBasis(kernel, grid, points, found, points.new_zeros(()))
    nugget = torch.stack(
        [linalg.rounding_of(kernel(points[which])) for which in grid.members]
    ).max()
    found = tuple(
        linalg.cholesky(linalg.add_diagonal(kernel(points[which]), nugget), "K_uu of a grid")
        for which in grid.members
    )
    return PointBasis(kernel, grid, points, found, nugget)


def _scattered(grid: SparseGrid, values: list[Tensor]) -> Tensor:
    W = values[0].new_zeros(len(grid.positions), len(values))
    for column, (which, own) in enumerate(zip(grid.members, values, strict=True)):
        W[which, column] = own
    return W
