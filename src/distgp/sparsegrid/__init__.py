"""GP regression on sparse grids: index sets, grids, the combination technique, OptiCom."""

from distgp.sparsegrid.basis import Basis, PointBasis, TensorBasis, basis_of
from distgp.sparsegrid.combination import NormalEquations
from distgp.sparsegrid.cost import Cost
from distgp.sparsegrid.grids import Box, SparseGrid, axis, grid, sparse_grid
from distgp.sparsegrid.indices import (
    axis_size,
    combination_coefficients,
    index_set,
    number_of_grids,
    number_of_points,
)
from distgp.sparsegrid.posterior import GridPosterior
from distgp.sparsegrid.regressor import SparseGridGP, VarianceWarning

__all__ = [
    "Basis",
    "Box",
    "Cost",
    "GridPosterior",
    "NormalEquations",
    "PointBasis",
    "SparseGrid",
    "SparseGridGP",
    "TensorBasis",
    "VarianceWarning",
    "axis",
    "axis_size",
    "basis_of",
    "combination_coefficients",
    "grid",
    "index_set",
    "number_of_grids",
    "number_of_points",
    "sparse_grid",
]
