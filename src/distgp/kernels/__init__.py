"""Covariance functions: value objects with positive parameters and an algebra."""

from distgp.kernels.algebra import Product, Scale, Sum
from distgp.kernels.base import Kernel, ParameterError
from distgp.kernels.linear import Constant, Linear
from distgp.kernels.periodic import Periodic
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
"""The kernels that have a name: those with a lengthscale for each column."""

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
    "factors",
    "separable",
]
