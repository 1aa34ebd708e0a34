"""Gaussian process regression for data too large for one GP.

The estimators, `load`, the kernels and the registries of names are here; everything else is in the
namespaces `data`, `kernels`, `experts`, `training`, `aggregation`, `engines`, `sparsegrid`, `metrics`,
`compare`, `forecasting`, `maps` and `plotting`.
"""

import importlib
from typing import TYPE_CHECKING

from distgp._util import waiting  # noqa: F401  # says how PyTorch's threads wait, before it is loaded
from distgp._util.moved import know_old_names
from distgp._version import __version__

if (
    TYPE_CHECKING
):  # at run time each is imported when it is asked for: PyTorch takes seconds to load
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
    from distgp import plotting as plotting
    from distgp.aggregation import AGGREGATORS
    from distgp.data import PARTITIONS
    from distgp.diagnostics import compare as compare
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

_KERNELS = (
    *("KERNELS", "RBF", "Constant", "Kernel", "Linear", "Matern12", "Matern32", "Matern52"),
    *("Periodic", "Product", "RationalQuadratic", "Scale", "Sum"),
)
_PLACES = dict.fromkeys(_KERNELS, "kernels") | {
    "AGGREGATORS": "aggregation",
    "ALGORITHMS": "training",
    "DistributedGPRegressor": "regressor",
    "EXPERTS": "experts",
    "PARTITIONS": "data",
    "SparseGridGP": "sparsegrid.regressor",
    "load": "mixin",
    "separable": "sparsegrid",
}
"""The module of each name that is not a module itself."""
_BELOW = {"compare": "diagnostics.compare", "metrics": "diagnostics.metrics"}
"""Modules that can be asked for as if they were not inside another."""

know_old_names()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_BELOW, "forecasting", "maps", "plotting"})


if not TYPE_CHECKING:  # so that tools still know which names there are

    def __getattr__(name: str) -> object:
        """Import what is asked for: a name that a module has, or any module of the package."""
        if name in _PLACES:
            for estimator in ("regressor", "sparsegrid.regressor"):  # `load` must know them all
                importlib.import_module(f"distgp.{estimator}")
            found = getattr(importlib.import_module(f"distgp.{_PLACES[name]}"), name)
            return globals().setdefault(name, found)
        module = f"distgp.{_BELOW.get(name, name)}"
        if not name.startswith("_"):
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise
        raise AttributeError(f"module 'distgp' has no attribute {name!r}")
