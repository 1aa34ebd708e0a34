"""Covariance functions: value objects with positive parameters and an algebra."""

from distgp.kernels.algebra import Product, Scale, Sum
from distgp.kernels.base import Kernel, ParameterError
from distgp.kernels.linear import Constant, Linear
from distgp.kernels.periodic import Periodic
from distgp.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    Stationary,
)

__all__ = [
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
]
