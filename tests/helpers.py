"""Shared by the tests: data, discovery of subclasses, and naive float64 versions of the maths."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import distgp
from distgp.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Scale,
    Sum,
)

FLOAT = torch.float64
_BESIDE = Path(__file__).parents[2] / "shared" / "data"
PUBLISHED = os.environ.get("DISTGP_DATA") or (str(_BESIDE) if _BESIDE.is_dir() else None)
"""The folder with the published data sets, or None."""
real = pytest.mark.skipif(
    PUBLISHED is None, reason="the UCI files are not here: set DISTGP_DATA to their folder"
)


def concrete(base: type) -> list[type]:
    """Every concrete subclass of base that distgp defines."""

    def walk(cls: type) -> Iterator[type]:
        for sub in cls.__subclasses__():
            yield from walk(sub)
            if not inspect.isabstract(sub) and sub.__module__.startswith("distgp"):
                yield sub

    return sorted(set(walk(base)), key=lambda cls: cls.__name__)


def inputs(n: int, d: int, seed: int = 0, dtype: torch.dtype = FLOAT) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(n, d, generator=generator, dtype=FLOAT) * 2 - 1).to(dtype)


def shard(n: int, d: int, seed: int = 0, dtype: torch.dtype = FLOAT) -> distgp.data.Shard:
    """A smooth function of d inputs with noise 0.1."""
    X = inputs(n, d, seed)
    generator = torch.Generator().manual_seed(seed + 10_000)
    y = torch.sin(3 * X.sum(-1) / math.sqrt(d)) + 0.5 * X[:, 0]
    y = y + 0.1 * torch.randn(n, generator=generator, dtype=FLOAT)
    return distgp.data.Shard.of(X.to(dtype), y.to(dtype))


def make_data(
    n: int, seed: int = 0, d: int = 2, noise: float = 0.1
) -> tuple[np.ndarray, np.ndarray]:
    """Rows in [−2, 2]^d and noisy values of sin(2x₀) + cos(x₁); the other columns mean nothing."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    truth = np.sin(2 * X[:, 0]) + (np.cos(X[:, 1]) if d > 1 else 0.0)
    return X, truth + noise * rng.normal(size=n)


def example(cls: type[Kernel], d: int) -> Kernel:
    """A kernel of this class with ARD over d columns and no two parameters alike."""
    ard = torch.linspace(0.6, 1.4, d, dtype=FLOAT)
    makers: dict[type[Kernel], Callable[[], Kernel]] = {
        Constant: lambda: Constant(0.7),
        Linear: lambda: Linear(ard),
        Periodic: lambda: Periodic(1.5 * ard, 2.2 * ard),
        RationalQuadratic: lambda: RationalQuadratic(ard, alpha=1.7),
        Scale: lambda: Scale(RBF(ard), 1.3),
        Sum: lambda: Sum((RBF(ard), Linear(0.5 * ard), Constant(0.3))),
        Product: lambda: Product((Matern52(ard), Periodic(2.0, 3.0))),
    }
    return makers[cls]() if cls in makers else cls(ard)  # type: ignore[call-arg]


def directed(cls: type[Kernel], d: int) -> Kernel:
    """A stationary kernel of the first and the last of d columns, longer at 35 degrees than across that."""
    return distgp.kernels.rotated(cls, 1.4, 0.6, angle=35.0, active_dims=(0, d - 1))  # type: ignore[type-var]


def naive_value(kernel: Kernel, x: Tensor, z: Tensor) -> float:
    """k(x, z) for one pair of points, straight from the formula, in Python floats."""
    if isinstance(kernel, Sum):
        return sum(naive_value(child, x, z) for child in kernel.kernels)
    if isinstance(kernel, Product):
        return math.prod(naive_value(child, x, z) for child in kernel.kernels)
    if isinstance(kernel, Scale):
        return float(kernel.variance) * naive_value(kernel.kernel, x, z)
    if isinstance(kernel, Constant):
        return float(kernel.variance)
    pairs = list(zip(x.tolist(), z.tolist(), strict=True))
    if isinstance(kernel, Linear):
        v = kernel.variance.expand(len(pairs)).tolist()
        return sum(v[j] * a * b for j, (a, b) in enumerate(pairs))
    if getattr(kernel, "anisotropy", None) is not None:
        kernel, pairs = turned(kernel, [pairs[j] for j in kernel.active_dims])  # type: ignore[attr-defined]
    scale = kernel.lengthscale.expand(len(pairs)).tolist()  # type: ignore[attr-defined]
    if isinstance(kernel, Periodic):
        p = kernel.period.expand(len(pairs)).tolist()
        sines = (math.sin(math.pi * (a - b) / p[j]) / scale[j] for j, (a, b) in enumerate(pairs))
        return math.exp(-2 * sum(s * s for s in sines))
    r = math.sqrt(sum(((a - b) / scale[j]) ** 2 for j, (a, b) in enumerate(pairs)))
    if isinstance(kernel, RationalQuadratic):
        alpha = float(kernel.alpha)
        return (1 + r * r / (2 * alpha)) ** -alpha
    shapes: dict[type, Callable[[float], float]] = {
        RBF: lambda r: math.exp(-r * r / 2),
        Matern12: lambda r: math.exp(-r),
        Matern32: lambda r: (1 + math.sqrt(3) * r) * math.exp(-math.sqrt(3) * r),
        Matern52: lambda r: (1 + math.sqrt(5) * r + 5 * r * r / 3) * math.exp(-math.sqrt(5) * r),
    }
    return shapes[type(kernel)](r)


def turned(
    kernel: Kernel, pairs: list[tuple[float, float]]
) -> tuple[Kernel, list[tuple[float, float]]]:
    """The kernel without its direction, and points turned by the angle, so that it lies along the first."""
    along, across, angle = map(float, distgp.kernels.directions(kernel))  # type: ignore[arg-type]
    u, v = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    (x0, z0), (x1, z1) = pairs
    found = [(u * x0 + v * x1, u * z0 + v * z1), (u * x1 - v * x0, u * z1 - v * z0)]
    plain = dataclasses.replace(
        kernel, lengthscale=[along, across], active_dims=None, anisotropy=None
    )  # type: ignore[type-var]
    return plain, found


def naive_gram(kernel: Kernel, X: Tensor, Z: Tensor) -> Tensor:
    return torch.tensor([[naive_value(kernel, x, z) for z in Z] for x in X], dtype=FLOAT)


def value_and_gradient(
    objective: Callable[[distgp.experts.Parameters], Tensor], parameters: distgp.experts.Parameters
) -> tuple[Tensor, dict[str, Tensor]]:
    """The summed objective and its gradient in the unconstrained parameters."""
    view = {k: v.detach().clone().requires_grad_() for k, v in parameters.unconstrained().items()}
    value = objective(parameters.with_unconstrained(view)).sum()
    value.backward()
    gradient = {k: torch.zeros_like(v) if v.grad is None else v.grad for k, v in view.items()}
    return value.detach(), gradient


def finite_differences(
    objective: Callable[[distgp.experts.Parameters], Tensor],
    parameters: distgp.experts.Parameters,
    h: float = 1e-5,
) -> dict[str, Tensor]:
    """Central differences of the summed objective in every unconstrained number."""
    view = {k: v.detach().clone() for k, v in parameters.unconstrained().items()}
    out = {k: torch.zeros_like(v) for k, v in view.items()}
    for name, tensor in view.items():
        for i in range(tensor.numel()):
            ends = []
            for sign in (1, -1):
                moved = tensor.clone()
                moved.view(-1)[i] += sign * h
                ends.append(objective(parameters.with_unconstrained(view | {name: moved})).sum())
            out[name].view(-1)[i] = (ends[0] - ends[1]) / (2 * h)
    return out


def close(a: Tensor, b: Tensor, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
