"""What a kernel is: a value object with positive parameters and an algebra.

A kernel is immutable. Its parameters are tensors that may carry leading batch dimensions, one
entry per expert; `k(X1, X2)` broadcasts them against the inputs' own. Training sees a kernel
through `parameters()` and `with_parameters()`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias, cast, dataclass_transform

import numpy as np
import torch
from torch import Tensor

TensorLike: TypeAlias = float | list[float] | tuple[float, ...] | np.ndarray | Tensor


class ParameterError(ValueError):
    """A hyperparameter is outside its range."""


def scalar(value: TensorLike) -> Tensor:
    """A parameter of one number: shape (*batch,)."""
    return value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)


def vector(value: TensorLike) -> Tensor:
    """A parameter of one number a column (ARD) or one for all: (*batch, d) or (*batch, 1)."""
    tensor = scalar(value)
    return tensor.reshape(1) if tensor.ndim == 0 else tensor


def columns(value: list[int] | tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The columns that a kernel looks at; None for all."""
    if value is not None and not len(value):
        raise ParameterError("active_dims must name at least one column, or be None for all")
    return None if value is None else tuple(int(column) for column in value)


def field(*, default: Any = dataclasses.MISSING, converter: Callable[[Any], Any]) -> Any:
    """A dataclass field whose argument is converted when the object is built."""
    return dataclasses.field(default=default, metadata={"converter": converter})


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
class Kernel(ABC):
    """A covariance function k(x, x′). Build larger ones with `+`, `*` and `variance * kernel`."""

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
        """The matrix k(X1, X2), (*batch, n1, n2)."""

    @abstractmethod
    def diag(self, X: Tensor) -> Tensor:
        """The values k(x, x), (*batch, n)."""

    def __call__(self, X1: Tensor, X2: Tensor | None = None) -> Tensor:
        """k(X1, X2), or k(X1, X1)."""
        X2 = X1 if X2 is None else X2
        if X1.shape[-1] != X2.shape[-1] or X1.dtype != X2.dtype:
            raise ParameterError(
                "a kernel compares inputs with the same columns and dtype, got "
                f"{X1.shape[-1]} columns of {X1.dtype} and {X2.shape[-1]} of {X2.dtype}"
            )
        return self.gram(X1, X2)

    __array_ufunc__ = None  # so that NumPy leaves array * kernel to __rmul__

    def __add__(self, other: Kernel) -> Kernel:
        from distgp.kernels.algebra import Sum

        return Sum((self, other)) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | TensorLike) -> Kernel:
        from distgp.kernels.algebra import Product, Scale

        return Product((self, other)) if isinstance(other, Kernel) else Scale(self, other)

    __rmul__ = __mul__

    def children(self) -> dict[str, Kernel]:
        """The kernels that this one is built from, by the prefix of their parameters' names."""
        found: dict[str, Kernel] = {}
        for spec in _fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Kernel):
                found[spec.name] = value
            elif isinstance(value, tuple) and value and isinstance(value[0], Kernel):
                found |= {f"{spec.name}.{i}": child for i, child in enumerate(value)}
        return found

    def own_parameters(self) -> dict[str, Tensor]:
        """The kernel's own positive tensors, without its children's."""
        values = {spec.name: getattr(self, spec.name) for spec in _fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def parameters(self) -> dict[str, Tensor]:
        """Every positive parameter, by its path: `lengthscale`, `kernels.0.variance`, …"""
        nested = {
            f"{prefix}.{name}": value
            for prefix, child in self.children().items()
            for name, value in child.parameters().items()
        }
        return self.own_parameters() | nested

    def batches(self) -> dict[str, torch.Size]:
        """The leading batch dimensions of each parameter; empty where the experts share it."""
        own = {
            spec.name: value.shape[: value.ndim - (spec.metadata["converter"] is vector)]
            for spec in _fields(self)
            if isinstance(value := getattr(self, spec.name), Tensor)
        }
        nested = {
            f"{prefix}.{name}": shape
            for prefix, child in self.children().items()
            for name, shape in child.batches().items()
        }
        return own | nested

    def with_parameters(self, values: Mapping[str, Tensor]) -> Self:
        """The same kernel with these parameters in place of its own; others stay."""
        if unknown := values.keys() - self.parameters().keys():
            raise ParameterError(
                f"no parameter {sorted(unknown)} in {type(self).__name__}, which has "
                f"{sorted(self.parameters())}"
            )
        changes: dict[str, Any] = {
            name: values[name] for name in self.own_parameters() if name in values
        }
        for spec in _fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Kernel):
                changes[spec.name] = value.with_parameters(_below(spec.name, values))
            elif isinstance(value, tuple) and value and isinstance(value[0], Kernel):
                changes[spec.name] = tuple(
                    child.with_parameters(_below(f"{spec.name}.{i}", values))
                    for i, child in enumerate(value)
                )
        return dataclasses.replace(cast(Any, self), **changes)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """The same kernel elsewhere."""
        moved = {name: v.to(device=device, dtype=dtype) for name, v in self.parameters().items()}
        return self.with_parameters(moved)

    def __repr__(self) -> str:
        parts = []
        for spec in _fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                value = _rounded(value)
            if value is not None:
                parts.append(f"{spec.name}={value}")
        return f"{type(self).__name__}({', '.join(parts)})"


def check_positive(name: str, value: Tensor) -> None:
    """Raise unless every entry is positive and finite."""
    if not bool(((value > 0) & torch.isfinite(value)).all()):
        raise ParameterError(f"{name} must be positive and finite, got {_rounded(value)}")


def select(X: Tensor, active: tuple[int, ...] | None, *parameters: Tensor) -> Tensor:
    """The active columns of X, checked to fit the parameters that hold one number a column."""
    if active is not None:
        if max(active) >= X.shape[-1] or min(active) < -X.shape[-1]:
            raise ParameterError(
                f"active_dims {active} reach past the last of the {X.shape[-1]} input columns"
            )
        X = X[..., list(active)]
    for parameter in parameters:
        if parameter.shape[-1] not in (1, X.shape[-1]):
            raise ParameterError(
                f"the kernel holds {parameter.shape[-1]} values, one a column, but looks at "
                f"{X.shape[-1]} columns: give one value for all, one for each, or set active_dims"
            )
    return X


def _fields(kernel: Kernel) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cast(Any, kernel))


def _below(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = prefix + "."
    return {name[len(start) :]: value for name, value in values.items() if name.startswith(start)}


def _rounded(value: Tensor) -> Any:
    flat = value.detach().cpu()
    if flat.numel() > 12:
        return f"<{tuple(flat.shape)}>"
    return np.vectorize(lambda number: float(f"{number:.4g}"))(flat.numpy()).tolist()
