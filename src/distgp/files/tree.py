"""A model as a tree: JSON with tensors beside it, and the names that classes have there.

A model is a tree of our own frozen dataclasses with tensors at its leaves, each stored in the memory
order that it had, so that a loaded model computes the same numbers to the last bit. Classes are written
by the names in `NAMES`, never by module paths, and no other class is ever built from a file.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from distgp import sparsegrid
from distgp.aggregation import AGGREGATORS, Ensemble, variance
from distgp.aggregation.base import POSTERIORS
from distgp.aggregation.exact import ExactCombined
from distgp.aggregation.gram import PooledCombined
from distgp.aggregation.marginals import MarginalCombined
from distgp.aggregation.nearest import NearestCombined
from distgp.aggregation.nested import AugmentedCombined, AugmentedExperts, NestedCombined
from distgp.aggregation.optimal import LocalCombined
from distgp.aggregation.variance import Basis, WeightedCombined
from distgp.data import PARTITIONS, Scaling, Shard, encoding
from distgp.data.rows import Schema
from distgp.diagnostics.calibration import Calibration
from distgp.diagnostics.novelty import TrainingInputs
from distgp.engines import LocalPlacement
from distgp.experts import (
    EXPERTS,
    ExactPosterior,
    NearestPosterior,
    Parameters,
    Posterior,
    SparsePosterior,
    SparseSums,
)
from distgp.experts.neighborhoods import GlobalPart
from distgp.experts.sums import SparseFactors
from distgp.kernels.names import all_kernels
from distgp.likelihoods import Gaussian, transforms
from distgp.model import Model, TargetModel
from distgp.selection.trials import Choice, Trial
from distgp.training import ALGORITHMS, Gamma, LogNormal, Round, TrainingResult

MOST_OBJECTS = 200_000  # objects in a tree: parts that are named twice are looked at twice
LONG_LIST = 1_000  # lists of more numbers than this are stored as tensors, not in the header

NAMES: dict[str, type] = {
    "models": Model,
    "model": TargetModel,
    "schema": Schema,
    "likelihood/gaussian": Gaussian,
    "scaling": Scaling,
    "inputs": TrainingInputs,
    "calibration": Calibration,
    "transform/log": transforms.Log,
    "transform/yeo-johnson": transforms.YeoJohnson,
    "choice": Choice,
    "choice/trial": Trial,
    "shard": Shard,
    "placement": LocalPlacement,
    "table": encoding.Columns,
    "table/column": encoding.Column,
    "ensemble": Ensemble,
    "parameters": Parameters,
    "posterior/exact": ExactPosterior,
    "posterior/sparse": SparsePosterior,
    "posterior/nearest": NearestPosterior,
    "posterior/sparse/sums": SparseSums,
    "posterior/sparse/factors": SparseFactors,
    "training": TrainingResult,
    "training/round": Round,
    "prior/lognormal": LogNormal,
    "prior/gamma": Gamma,
    "combined/marginals": MarginalCombined,
    "combined/grbcm": AugmentedCombined,
    "combined/grbcm/experts": AugmentedExperts,
    "combined/npae": NestedCombined,
    "combined/weighted": WeightedCombined,
    "combined/opt-local": LocalCombined,
    "combined/pooled": PooledCombined,
    "combined/nearest": NearestCombined,
    "combined/exact": ExactCombined,
    "combined/nearest/global": GlobalPart,
    "variance/weighted": variance.Weighted,
    "variance/printed": variance.Printed,
    "variance/mixture": variance.Mixture,
    "variance/nested": variance.Nested,
    "variance/central": variance.Central,
    "variance/own-exact": variance.OwnExact,
    "variance/own-shared": variance.OwnShared,
    "variance/own-nystrom": variance.OwnNystrom,
    "basis": Basis,
    "grid/model": sparsegrid.SparseGridModel,
    "grid/box": sparsegrid.Box,
    "grid/points": sparsegrid.SparseGrid,
    "grid/basis/tensor": sparsegrid.TensorBasis,
    "grid/basis/points": sparsegrid.PointBasis,
    "grid/equations": sparsegrid.NormalEquations,
    "grid/posterior": sparsegrid.GridPosterior,
}
"""Every class of our own that a file may hold, by a name that never changes, even if the class's does."""
NAME_OF = {kind: name for name, kind in NAMES.items()}
REGISTRIES: dict[str, Callable[[], Mapping[str, type]]] = {
    "kernel": all_kernels,
    "expert": lambda: EXPERTS,
    "partition": lambda: PARTITIONS,
    "algorithm": lambda: ALGORITHMS,
    "aggregation": lambda: AGGREGATORS,
    "posterior of": lambda: POSTERIORS,
}
"""Classes that users can add to, by the first part of the name that files know them by."""


def name_of(kind: type) -> str | None:
    """The name that files know a class by; None where they do not."""
    if kind in NAME_OF:
        return NAME_OF[kind]
    for prefix, known in REGISTRIES.items():
        for name, other in known().items():
            if other is kind:
                return f"{prefix}/{name}"
    return None


def class_of(entry: str) -> type:
    """The class that files know by a name such as "kernel/rbf"."""
    prefix, _, name = entry.partition("/")
    if entry in NAMES:
        return NAMES[entry]
    found = REGISTRIES[prefix]().get(name)
    if found is None and not name:
        raise KeyError(entry)
    if found is None:
        room = "kernels" if prefix == "kernel" else "aggregation"
        raise UnregisteredError(
            f"there is no {prefix} {name!r} in distgp: register its class before loading, by "
            f"distgp.{room}.register"
        )
    return found


class UnregisteredError(ValueError):
    """A file holds a part of a user's own that was not registered before loading."""


class Encoder:
    """A tree as JSON, its tensors aside under the paths they were found at; shared parts once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that an id stays one object's while we write

    def encode(self, value: object, path: str) -> Any:
        """Turn a value, found at a path of the tree, into JSON."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if np.isfinite(value) else {"float": str(value)}
        plain = isinstance(value, list)
        if plain and len(value) > LONG_LIST and all(isinstance(item, float) for item in value):
            return self._leaf(np.array(value), path)
        if isinstance(value, list | tuple) and type(value) not in NAME_OF:
            items = [self.encode(item, f"{path}.{i}") for i, item in enumerate(value)]
            return items if plain else {"tuple": items}
        if isinstance(value, dict):
            return {"dict": {k: self.encode(v, f"{path}.{k}") for k, v in value.items()}}
        if isinstance(value, np.generic):
            return self.encode(value.item(), path)
        if id(value) in self._seen:
            return self._seen[id(value)]
        self._kept.append(value)
        if isinstance(value, Tensor | np.ndarray):
            return self._seen.setdefault(id(value), self._leaf(value, path))
        self._seen[id(value)] = {"same": path}
        return self._object(value, path)

    def _leaf(self, value: Tensor | np.ndarray, path: str) -> dict[str, Any]:
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biuf":
                return {"array": self.encode(value.tolist(), path)}
            self.tensors[path] = torch.as_tensor(np.array(value, order="C"))
            return {"tensor": path, "numpy": True}
        turned = value.ndim > 1 and value.mT.is_contiguous() and not value.is_contiguous()
        stored = value.detach().mT if turned else value.detach()
        self.tensors[path] = stored.to("cpu", copy=True).contiguous()
        return {"tensor": path, "turned": turned, "device": value.device.type}

    def _object(self, value: object, path: str) -> dict[str, Any]:
        name = name_of(type(value))
        if name is None:
            raise TypeError(
                f"a model file holds distgp's own objects only, and {type(value).__name__} (at {path}) is "
                "none of them: register it, by distgp.kernels.register or distgp.aggregation.register, or "
                "use joblib for a model with parts of your own"
            )
        if isinstance(value, Posterior):
            value = value.stored()  # files of sparse experts hold no training data
        specs = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        names = getattr(value, "_fields", [spec.name for spec in specs if spec.init])
        fields = {part: self.encode(getattr(value, part), f"{path}.{part}") for part in names}
        return {"class": name, "path": path, "fields": fields}


class Decoder:
    """The inverse of `Encoder`."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        device: str | None,
        names: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._tensors, self._device, self._names = tensors, device, names
        self._seen: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}  # objects in each object, one counted wherever it is named
        self._met = 0

    def decode(self, node: object) -> Any:
        """Turn JSON back into the value."""
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "same" in node:
            self._count(self._sizes[node["same"]])
            return self._seen[node["same"]]
        if "tensor" in node:
            return self._leaf(node)
        if "class" in node:
            return self._object(node)
        if "tuple" in node:
            return tuple(self.decode(item) for item in node["tuple"])
        if "dict" in node:
            return {name: self.decode(child) for name, child in node["dict"].items()}
        if "array" in node:
            return np.array(node["array"])
        return float(node["float"])

    def _object(self, node: dict[str, Any]) -> Any:
        before = self._met
        self._count(1)
        fields = {name: self.decode(child) for name, child in node["fields"].items()}
        kind = self._names.get(node["class"]) or class_of(node["class"])
        if kind in NAME_OF:
            _refuse_other_types(cast(type, kind), fields, _hints_of(kind))
        made = kind(**fields)
        self._seen[node["path"]], self._sizes[node["path"]] = made, self._met - before
        return made

    def _count(self, objects: int) -> None:
        """Refuse a tree of few values that name each other so often that walking it would not end."""
        self._met += objects
        if self._met > MOST_OBJECTS:
            raise ValueError(f"more than {MOST_OBJECTS:,} objects, counted wherever they are named")

    def _leaf(self, node: dict[str, Any]) -> Tensor | np.ndarray:
        name = node["tensor"]
        if name not in self._seen:
            value = self._tensors[name]
            # A copy of its own: the file may change, and matrix products depend, in the last bit, on
            # memory alignment.
            if node.get("numpy"):
                self._seen[name] = value.numpy().copy()
            else:
                there = node["device"] if torch.cuda.is_available() else "cpu"
                value = value.to(there if self._device is None else self._device, copy=True)
                self._seen[name] = value.mT if node["turned"] else value
        return self._seen[name]


@cache
def _hints_of(kind: type) -> dict[str, Any]:
    """The types of a class's fields; some modules import the names of others for annotations alone."""
    known = {other.__name__: other for other in NAMES.values()}
    return get_type_hints(kind, localns=known | vars(sys.modules[kind.__module__]))


def _refuse_other_types(
    kind: type, fields: Mapping[str, object], hints: Mapping[str, object]
) -> None:
    """Refuse values for the fields of a class that are not of the types that its annotations say."""
    for name, value in fields.items():
        if name in hints and not fits(value, hints[name]):
            expected = getattr(hints[name], "__name__", hints[name])
            raise TypeError(
                f"expected {name} of {kind.__name__} to be {expected}, got {type(value).__name__}"
            )


def fits(value: object, hint: object) -> bool:
    """Whether a value is of a type, looked at item by item where it is a container."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inside)
    if origin is Literal:
        return value in inside
    if origin is list and isinstance(value, np.ndarray):  # long lists of numbers in files
        return value.dtype.kind == "f"
    if origin is not None:
        return isinstance(value, origin) and _items_fit(value, inside)
    if hint is None:
        return value is None
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Any or not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return True
    return isinstance(value, hint)


def _items_fit(value: object, inside: tuple[Any, ...]) -> bool:
    """Whether the items of a container are of the types that its annotation names."""
    if isinstance(value, Mapping):
        return all(fits(item, inside[1]) for item in value.values())
    if isinstance(value, tuple) and inside[1:] != (...,):
        return len(value) == len(inside) and all(map(fits, value, inside))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(fits(item, inside[0]) for item in value)
    return True
