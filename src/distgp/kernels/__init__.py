"""Covariance functions: immutable values with positive parameters, built from others by + and *."""

from distgp.kernels.algebra import Product, Scale, Sum
from distgp.kernels.base import Kernel, ParameterError
from distgp.kernels.coordinates import coordinates
from distgp.kernels.nondecaying import Constant, Linear, Periodic
from distgp.kernels.separable import factors, separable
from distgp.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    Stationary,
)

KERNELS: dict[str, type[Stationary]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational-quadratic": RationalQuadratic,
}
"""The kernels that estimators know by name: those with one lengthscale per column."""

__all__ = [
    "KERNELS",
    "RBF",
    "Constant",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "ParameterError",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scale",
    "Stationary",
    "Sum",
    "coordinates",
    "factors",
    "separable",
]
