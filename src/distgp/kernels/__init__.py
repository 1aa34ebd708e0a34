"""Covariance functions: immutable values with positive parameters, built from others by + and *."""

from distgp.kernels.base import Kernel, ParameterError, Product, Scale, Sum
from distgp.kernels.kinds import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    coordinates,
)
from distgp.kernels.layout import InputLayout, in_data_units, latitudes, resolved
from distgp.kernels.names import KERNELS, register
from distgp.kernels.prior import PriorDraws, prior_draws, spectrum
from distgp.kernels.stationary import Stationary, directions, rotated
from distgp.kernels.text import Built, Expression, parse

__all__ = [
    "KERNELS",
    "RBF",
    "Built",
    "Constant",
    "Expression",
    "InputLayout",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "ParameterError",
    "Periodic",
    "PriorDraws",
    "Product",
    "RationalQuadratic",
    "Scale",
    "Stationary",
    "Sum",
    "coordinates",
    "directions",
    "in_data_units",
    "latitudes",
    "parse",
    "prior_draws",
    "register",
    "resolved",
    "rotated",
    "spectrum",
]
