"""The base class of all kernels: an immutable value with positive parameters and an algebra.

The parameters are tensors that may carry leading batch dimensions, one entry per expert; they are
broadcast against those of the inputs.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add, mul
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, cast, dataclass_transform

import numpy as np
import torch
from torch import Tensor

TensorLike: TypeAlias = float | list[float] | tuple[float, ...] | np.ndarray | Tensor
Columns: TypeAlias = tuple[int | str, ...] | None
"""The input columns that a kernel looks at, by place or name; None for all."""
KernelType = TypeVar("KernelType", bound="Kernel")
Value = TypeVar("Value")


class ParameterError(ValueError):
    """A hyperparameter is outside its range, or does not fit the inputs."""


def scalar(value: TensorLike) -> Tensor:
    """Convert a parameter that is one number per kernel to a tensor of shape (*batch,)."""
    return value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)


def vector(value: TensorLike) -> Tensor:
    """Convert a parameter with one number per column, (*batch, d), or one for all, (*batch, 1)."""
    tensor = scalar(value)
    return tensor.reshape(1) if tensor.ndim == 0 else tensor


def pair(value: TensorLike | None) -> Tensor | None:
    """Convert the two numbers of an anisotropy, (*batch, 2); None where there is none."""
    found = None if value is None else vector(value)
    if found is not None and found.shape[-1] != 2:
        raise ParameterError(
            f"anisotropy has two numbers, got {found.shape[-1]}: distgp.kernels.rotated finds them for a "
            "direction and two lengthscales"
        )
    return found


def columns(value: str | Sequence[int | str] | None) -> Columns:
    """Convert the input columns that a kernel looks at, by place or name, to a tuple; None for all."""
    if value is None:
        return None
    given = (value,) if isinstance(value, str) else tuple(value)
    if not given:
        raise ParameterError("active_dims must name at least one column, or be None for all")
    return tuple(str(c) if isinstance(c, str) else int(c) for c in given)


def field(
    *,
    default: object = dataclasses.MISSING,
    converter: Callable[[Any], object],
    kw_only: bool = False,
) -> Any:
    """Declare a dataclass field whose value is converted when the kernel is built.

    The `converter` is `scalar`, `vector`, `columns`, or any function that checks and converts the
    value. Tensors that it returns are hyperparameters, and must be positive.
    """
    metadata = {"converter": converter}
    return dataclasses.field(default=cast(Any, default), metadata=metadata, kw_only=kw_only)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
class Kernel(ABC):
    """A covariance function k(x, x′).

    Kernels are built from others with `+`, `*` and `variance * kernel`. A subclass is a frozen
    dataclass without a decorator of its own: it lists its parameters with `field` and implements
    `gram` and `diag`.

    Examples
    --------
    >>> from distgp import RBF, Linear
    >>> kernel = 2.0 * RBF(0.5) + Linear()
    >>> list(kernel.parameters())
    ['kernels.0.variance', 'kernels.0.kernel.lengthscale', 'kernels.1.variance']
    """

    units: ClassVar[Mapping[str, int]] = {}
    """The power of a column's unit in each parameter, by `vector`, that has one: 1 for a length."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        for spec in _fields(self):
            if converter := spec.metadata.get("converter"):
                value = converter(getattr(self, spec.name))
                if isinstance(value, Tensor):
                    check_positive(spec.name, value)
                object.__setattr__(self, spec.name, value)

    @abstractmethod
    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute k(X1, X2), (*batch, n1, n2), of inputs (*batch, n, d) known to fit together."""

    @abstractmethod
    def diag(self, X: Tensor) -> Tensor:
        """Compute the values k(x, x), (*batch, n), of the inputs X (*batch, n, d)."""

    def multiple(self, variance: Tensor, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute variance · k(X1, X2), for a variance (*batch,)."""
        return variance[..., None, None] * self.gram(X1, X2)

    def __call__(self, X1: Tensor, X2: Tensor | None = None) -> Tensor:
        """Compute the matrix k(X1, X2), or k(X1, X1) where X2 is left out.

        Parameters
        ----------
        X1 : Tensor
            Inputs (*batch, n1, d).
        X2 : Tensor, optional
            Inputs (*batch, n2, d). Put training rows or inducing inputs here: distances are
            computed relative to their median.

        Returns
        -------
        Tensor
            (*batch, n1, n2), with the batch dimensions of inputs and parameters broadcast.
        """
        X2 = X1 if X2 is None else X2
        if X1.shape[-1] != X2.shape[-1] or X1.dtype != X2.dtype:
            raise ParameterError(
                "a kernel compares inputs with the same columns and dtype, got "
                f"{X1.shape[-1]} columns of {X1.dtype} and {X2.shape[-1]} of {X2.dtype}"
            )
        return self.gram(X1, X2)

    __array_ufunc__ = None  # so that NumPy leaves array * kernel to __rmul__

    def __add__(self, other: Kernel) -> Kernel:
        return Sum((self, other)) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | TensorLike) -> Kernel:
        return Product((self, other)) if isinstance(other, Kernel) else Scale(self, other)

    __rmul__ = __mul__

    def children(self) -> dict[str, Kernel]:
        """List the kernels that this one is built from, by the prefix of their parameters' names."""
        found: dict[str, Kernel] = {}
        for name, value in _values(self).items():
            if isinstance(value, Kernel):
                found[name] = value
            elif isinstance(value, tuple) and value and isinstance(value[0], Kernel):
                found |= {f"{name}.{i}": child for i, child in enumerate(value)}
        return found

    def own_parameters(self) -> dict[str, Tensor]:
        """List the kernel's own positive tensors by name, without those of its children."""
        return {name: value for name, value in _values(self).items() if isinstance(value, Tensor)}

    def parameters(self) -> dict[str, Tensor]:
        """List every positive parameter by its path: `lengthscale`, `kernels.0.variance`, …"""
        nested = {prefix: child.parameters() for prefix, child in self.children().items()}
        return self.own_parameters() | _by_path(nested)

    def batches(self) -> dict[str, torch.Size]:
        """List each parameter's leading batch dimensions; empty where the experts share it."""
        vectors = {f.name for f in _fields(self) if f.metadata.get("converter") in (vector, pair)}
        own = {n: v.shape[: v.ndim - (n in vectors)] for n, v in self.own_parameters().items()}
        nested = {prefix: child.batches() for prefix, child in self.children().items()}
        return own | _by_path(nested)

    def with_parameters(self, values: Mapping[str, Tensor]) -> Self:
        """Build the same kernel with other values of some parameters.

        Parameters
        ----------
        values : mapping of str to Tensor
            New values, positive and finite, by the paths that `parameters` lists; others stay.
        """
        if unknown := values.keys() - self.parameters().keys():
            raise ParameterError(
                f"no parameter {sorted(unknown)} in {type(self).__name__}, which has "
                f"{sorted(self.parameters())}"
            )

        def changed(prefix: str, child: Kernel) -> Kernel:
            start = f"{prefix}."
            inner = {n.removeprefix(start): v for n, v in values.items() if n.startswith(start)}
            return child.with_parameters(inner)

        own = {name: values[name] for name in self.own_parameters() if name in values}
        return with_children(self, changed, **own)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """Build the same kernel on another device or in another dtype."""
        moved = {name: v.to(device=device, dtype=dtype) for name, v in self.parameters().items()}
        return self.with_parameters(moved)

    def __repr__(self) -> str:
        parts = [
            f"{name}={_rounded(value) if isinstance(value, Tensor) else value}"
            for name, value in _values(self).items()
            if value is not None
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


def replaced(kernel: KernelType, /, **changes: object) -> KernelType:
    """Build the same kernel with other values of some fields."""
    return dataclasses.replace(cast(Any, kernel), **changes) if changes else kernel


def with_children(
    kernel: KernelType, change: Callable[[str, Kernel], Kernel], **changes: object
) -> KernelType:
    """Build the same kernel with each child, known by its prefix, changed, and some fields too."""
    found: dict[str, Any] = {}
    for prefix, child in kernel.children().items():
        name, _, place = prefix.partition(".")
        new = change(prefix, child)
        found[name] = (*found.get(name, ()), new) if place else new
    return replaced(kernel, **changes, **found)


def check_positive(name: str, value: Tensor) -> None:
    """Raise a `ParameterError` unless every entry is positive and finite."""
    if not bool(((value > 0) & torch.isfinite(value)).all()):
        raise ParameterError(f"{name} must be positive and finite, got {_rounded(value)}")


def places(active: Columns, d: int) -> list[int]:
    """List the places, 0 … d − 1, of the columns that a kernel looks at, counted from either end."""
    if active is None:
        return list(range(d))
    numbers = [column for column in active if not isinstance(column, str)]
    if len(numbers) < len(active):
        raise ParameterError(
            f"active_dims {active} has names, which only a table's columns have: let an estimator or "
            "distgp.kernels.resolved look them up, or give the places of columns, 0 for the first"
        )
    if max(numbers) >= d or min(numbers) < -d:
        raise ParameterError(f"active_dims {active} reach past the last of the {d} input columns")
    return [column % d for column in numbers]


def columns_with_period(kernel: Kernel, d: int) -> frozenset[int]:
    """Return the places of those of d columns along which a part of a kernel repeats itself.

    Examples
    --------
    >>> from distgp import RBF, Periodic
    >>> sorted(columns_with_period(Periodic(1.0, period=24.0, active_dims=[1]) * RBF([1.0, 1.0]), 2))
    [1]
    """
    repeats = "period" in kernel.own_parameters()
    own = places(getattr(kernel, "active_dims", None), d) if repeats else ()
    return frozenset(own).union(*(columns_with_period(k, d) for k in kernel.children().values()))


def select(X: Tensor, active: Columns, *parameters: Tensor) -> Tensor:
    """Select the columns of X (*batch, n, d) that a kernel looks at; the parameters must fit them."""
    if active is not None:
        X = X[..., places(active, X.shape[-1])]
    for parameter in parameters:
        if parameter.shape[-1] not in (1, X.shape[-1]):
            raise wrong_width(parameter.shape[-1], X.shape[-1])
    return X


def wrong_width(held: int, count: int) -> ParameterError:
    """Say that a parameter has neither one value nor one for each column."""
    return ParameterError(
        f"the kernel holds {held} values, one a column, but looks at {count} columns: give one value "
        "for all, one for each, or set active_dims"
    )


def _fields(kernel: Kernel) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cast(Any, kernel))


def _values(kernel: Kernel) -> dict[str, Any]:
    return {spec.name: getattr(kernel, spec.name) for spec in _fields(kernel)}


def _by_path(nested: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """Put the prefix of each child before the names of its values."""
    return {f"{prefix}.{name}": v for prefix, found in nested.items() for name, v in found.items()}


def _rounded(value: Tensor) -> str | list[float]:
    flat = value.detach().cpu()
    if flat.numel() > 12:
        return f"<{tuple(flat.shape)}>"
    return np.vectorize(lambda number: float(f"{number:.4g}"))(flat.numpy()).tolist()


def _flattened(kind: type[Kernel], kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Take the parts of nested sums (or products) out of them, so that k₁ + k₂ + k₃ has three."""
    if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
        raise TypeError(f"{kind.__name__} takes a tuple of at least one kernel, got {kernels!r}")
    nested = [k.children().values() if type(k) is kind else (k,) for k in kernels]
    return tuple(kernel for group in nested for kernel in group)


class Sum(Kernel):
    """The sum of a tuple of kernels, k(x, x′) = k₁(x, x′) + k₂(x, x′) + …, written `k1 + k2`.

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
    """The product of a tuple of kernels, k(x, x′) = k₁(x, x′) · k₂(x, x′) · …, written `k1 * k2`.

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


def safe_sqrt(square: Tensor) -> Tensor:
    """Compute the square root, with derivative 0 instead of infinity at 0."""
    return square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()
