"""Gaussian process regression for data too large for one GP.

The estimators, `load`, the kernels and the registries of names are here; everything else is in the
namespaces `data`, `kernels`, `experts`, `training`, `aggregation`, `engines`, `sparsegrid`, `metrics`,
`compare` and `plotting`.
"""

import importlib
from typing import Any

from distgp._util import threads  # noqa: F401  # first, since it says how PyTorch's threads wait

# isort: split
from distgp import (
    aggregation,
    data,
    engines,
    experts,
    kernels,
    linalg,
    sparsegrid,
    training,
)
from distgp._util.moved import know_old_names
from distgp._version import __version__
from distgp.aggregation import AGGREGATORS
from distgp.data import PARTITIONS
from distgp.diagnostics import metrics
from distgp.experts import EXPERTS
from distgp.kernels import (
    KERNELS,
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
from distgp.mixin import load
from distgp.regressor import DistributedGPRegressor
from distgp.sparsegrid import separable
from distgp.sparsegrid.regressor import SparseGridGP
from distgp.training import ALGORITHMS

__all__ = [
    "AGGREGATORS",
    "ALGORITHMS",
    "EXPERTS",
    "KERNELS",
    "PARTITIONS",
    "RBF",
    "Constant",
    "DistributedGPRegressor",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scale",
    "SparseGridGP",
    "Sum",
    "__version__",
    "aggregation",
    "data",
    "engines",
    "experts",
    "kernels",
    "linalg",
    "load",
    "metrics",
    "separable",
    "sparsegrid",
    "training",
]

know_old_names()


def __getattr__(name: str) -> Any:
    """Import `compare` and `plotting` on demand: Matplotlib takes a second to load."""
    late = {"compare": "distgp.diagnostics.compare", "plotting": "distgp.plotting"}
    if name in late:
        return importlib.import_module(late[name])
    raise AttributeError(f"module 'distgp' has no attribute {name!r}")
