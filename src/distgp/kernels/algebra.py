"""Kernels made of kernels: sum, product, scale."""

from __future__ import annotations

from functools import reduce
from operator import add, mul

from torch import Tensor

from distgp.kernels.base import Kernel, field, scalar


def _flattened(kind: type[Kernel], kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
        raise TypeError(f"{kind.__name__} takes a tuple of at least one kernel, got {kernels!r}")
    nested = [k.children().values() if type(k) is kind else (k,) for k in kernels]
    return tuple(kernel for group in nested for kernel in group)


class Sum(Kernel):
    """k₁ + k₂ + …"""

    kernels: tuple[Kernel, ...] = field(converter=lambda kernels: _flattened(Sum, kernels))

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """The sum of the matrices."""
        return reduce(add, (kernel.gram(X1, X2) for kernel in self.kernels))

    def diag(self, X: Tensor) -> Tensor:
        """The sum of the diagonals."""
        return reduce(add, (kernel.diag(X) for kernel in self.kernels))


class Product(Kernel):
    """k₁ · k₂ · …"""

    kernels: tuple[Kernel, ...] = field(converter=lambda kernels: _flattened(Product, kernels))

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """The entrywise product of the matrices."""
        return reduce(mul, (kernel.gram(X1, X2) for kernel in self.kernels))

    def diag(self, X: Tensor) -> Tensor:
        """The entrywise product of the diagonals."""
        return reduce(mul, (kernel.diag(X) for kernel in self.kernels))


class Scale(Kernel):
    """variance · k: written `variance * kernel`, the signal variance σ_f²."""

    kernel: Kernel
    variance: Tensor = field(default=1.0, converter=scalar)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """The scaled matrix."""
        return self.variance[..., None, None] * self.kernel.gram(X1, X2)

    def diag(self, X: Tensor) -> Tensor:
        """The scaled diagonal."""
        return self.variance[..., None] * self.kernel.diag(X)
