"""Kernels that are built from other kernels: sums, products and scaled kernels."""

from __future__ import annotations

from functools import reduce
from operator import add, mul

from torch import Tensor

from distgp.kernels.base import Kernel, field, scalar


def _flattened(kind: type[Kernel], kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Take the parts of nested sums (or products) out of them, so that k₁ + k₂ + k₃ has three."""
    if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
        raise TypeError(f"{kind.__name__} takes a tuple of at least one kernel, got {kernels!r}")
    nested = [k.children().values() if type(k) is kind else (k,) for k in kernels]
    return tuple(kernel for group in nested for kernel in group)


class Sum(Kernel):
    """The sum of kernels, k(x, x′) = k₁(x, x′) + k₂(x, x′) + …, written `k1 + k2`.

    Parameters
    ----------
    kernels : tuple of Kernel
        At least one; the parts of sums among them are taken out.

    Examples
    --------
    >>> from distgp import RBF, Linear
    >>> RBF(0.5) + Linear()
    Sum(kernels=(RBF(lengthscale=[0.5]), Linear(variance=[1.0])))
    """

    kernels: tuple[Kernel, ...] = field(converter=lambda kernels: _flattened(Sum, kernels))

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Add the matrices."""
        return reduce(add, (kernel.gram(X1, X2) for kernel in self.kernels))

    def diag(self, X: Tensor) -> Tensor:
        """Add the diagonals."""
        return reduce(add, (kernel.diag(X) for kernel in self.kernels))


class Product(Kernel):
    """The product of kernels, k(x, x′) = k₁(x, x′) · k₂(x, x′) · …, written `k1 * k2`.

    Parameters
    ----------
    kernels : tuple of Kernel
        At least one; the parts of products among them are taken out.

    Examples
    --------
    >>> from distgp import RBF, Linear
    >>> RBF(0.5) * Linear()
    Product(kernels=(RBF(lengthscale=[0.5]), Linear(variance=[1.0])))
    """

    kernels: tuple[Kernel, ...] = field(converter=lambda kernels: _flattened(Product, kernels))

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Multiply the matrices entry by entry."""
        return reduce(mul, (kernel.gram(X1, X2) for kernel in self.kernels))

    def diag(self, X: Tensor) -> Tensor:
        """Multiply the diagonals entry by entry."""
        return reduce(mul, (kernel.diag(X) for kernel in self.kernels))


class Scale(Kernel):
    """A scaled kernel, σ_f² k(x, x′), written `variance * kernel`.

    Parameters
    ----------
    kernel : Kernel
        The kernel k.
    variance : float or Tensor, default=1.0
        The signal variance σ_f², (*batch,).

    Examples
    --------
    >>> from distgp import RBF
    >>> 1.5 * RBF([0.5, 2.0])
    Scale(kernel=RBF(lengthscale=[0.5, 2.0]), variance=1.5)
    """

    kernel: Kernel
    variance: Tensor = field(default=1.0, converter=scalar)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Scale the matrix."""
        return self.kernel.multiple(self.variance, X1, X2)

    def diag(self, X: Tensor) -> Tensor:
        """Scale the diagonal."""
        return self.variance[..., None] * self.kernel.diag(X)
