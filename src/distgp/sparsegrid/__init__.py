"""GP regression on sparse grids: index sets, grids, the combination technique, OptiCom."""

from distgp.sparsegrid.basis import Basis, PointBasis, TensorBasis, basis_of, factors, separable
from distgp.sparsegrid.cost import (
    Cost,
    highest_level,
    memory_limit,
    number_of_grids,
    number_of_points,
)
from distgp.sparsegrid.grids import (
    Box,
    Combination,
    SparseGrid,
    axis,
    axis_size,
    combination_coefficients,
    grid,
    index_set,
    sparse_grid,
)
from distgp.sparsegrid.posterior import (
    GridPosterior,
    NormalEquations,
    SparseGridModel,
    VarianceWarning,
    choose_level,
    condition,
)

__all__ = [
    "Basis", "Box", "Combination", "Cost", "GridPosterior", "NormalEquations", "PointBasis",
    "SparseGrid", "SparseGridModel", "TensorBasis", "VarianceWarning", "axis", "axis_size", "basis_of",
    "choose_level", "combination_coefficients", "condition", "factors", "grid", "highest_level",
    "index_set", "memory_limit", "number_of_grids", "number_of_points", "separable", "sparse_grid",
]  # fmt: skip
