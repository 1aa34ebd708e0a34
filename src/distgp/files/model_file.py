"""Models in files: one safetensors file, its header a JSON description. Never pickle.

A model is a tree of our own frozen dataclasses with tensors at its leaves, each stored in the memory
order that it had, so that a loaded model computes the same numbers to the last bit. Classes are written
by the names in `NAMES`, never by module paths, and no other class is ever built from a file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from distgp import sparsegrid
from distgp._util.checks import silenced
from distgp._util.types import refuse_other_types
from distgp._version import __version__
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
from distgp.files.writing import PRIVATE, whole
from distgp.kernels.names import all_kernels
from distgp.likelihoods import Gaussian, transforms
from distgp.model import Model, TargetModel
from distgp.selection.trials import Choice, Trial
from distgp.training import ALGORITHMS, Gamma, LogNormal, Round, TrainingResult

KIND = "distgp-model"
FORMAT = 2  # files with a lower number are read, those with a higher one refused
LARGEST_TREE = 2_000_000  # values in a header: those of a forged one could fill the memory
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


class ModelFileError(ValueError):
    """A file is not a model of distgp, or is damaged, or too new."""


def check_name(path: Path | str) -> None:
    """Refuse the name of a file that could be written, but not be read again."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"cannot write {str(path)!r}: the name is not written in UTF-8, and safetensors could not read "
            "the file again: give another"
        ) from error


def save(path: Path | str, tree: object, about: dict[str, str]) -> None:
    """Write a tree; `about` are readable entries of the header."""
    check_name(path)
    encoder = _Encoder()
    header = {"kind": KIND, "format": str(FORMAT), "distgp": __version__} | about
    header["tree"] = json.dumps(encoder.encode(tree, "model"), allow_nan=False)
    header["checksum"] = checksum(header["tree"], encoder.tensors)
    with whole(path, PRIVATE) as part:
        try:
            save_file(encoder.tensors, str(part), header)
        except SafetensorError as error:
            raise OSError(f"cannot write {path}: {error}; is the disk full?") from error


def load(path: Path | str, device: str | None = None) -> Any:
    """Read a tree back; its tensors go to `device`, or to where they were if that exists here."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"expected the path of a model file, got {path!r:.60}")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no model file {str(path)!r}")
    with _opened(path) as (file, header):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    with readable(path), silenced(Warning):  # what there was to say was said when it was fitted
        if header.get("checksum") != checksum(header.get("tree", ""), tensors):
            raise ModelFileError(f"{path} was damaged after it was written: save the model again")
        tree, old = header["tree"], header["format"] == "1"
        if sum(map(tree.count, ",[{")) > LARGEST_TREE:
            raise ValueError(f"more than {LARGEST_TREE:,} values in its header")
        names = _names_of_format_1() if old else NAMES
        found = _Decoder(tensors, device, names).decode(json.loads(tree))
        return _state_of_format_1(found) if old else found


@contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Turn whatever goes wrong in building a model from a file, which may be forged, into one error."""
    try:
        yield
    except (ModelFileError, MemoryError, OSError):
        raise
    except UnregisteredError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise ModelFileError(
            f"{path} has the header of a distgp model but not its content ({type(error).__name__}: "
            f"{said}): it was damaged, or written by another version"
        ) from error


def header(path: Path | str) -> dict[str, str]:
    """The readable entries of a model file's header: format, version, estimator, parameters, …"""
    with _opened(path) as (_, found):
        return {name: text for name, text in found.items() if name not in ("tree", "checksum")}


@contextmanager
def _opened(path: Path | str) -> Iterator[tuple[Any, dict[str, str]]]:
    """Open a model file; refuse what is none, is damaged, or is of a later format."""
    try:
        with safe_open(str(path), framework="pt") as file:
            found = file.metadata() or {}
            _check(path, found)
            yield file, found
    except SafetensorError as error:
        raise ModelFileError(
            f"{path} is not a model file of distgp, or it is truncated or damaged ({error}): save the "
            "model again"
        ) from error


def checksum(tree: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of all that a model is made of."""
    digest = hashlib.sha256(tree.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()


def _check(path: Path | str, header: dict[str, str]) -> None:
    if header.get("kind") != KIND:
        raise ModelFileError(f"{path} is a safetensors file, but not a model that distgp has saved")
    number = header.get("format", "")
    if not (number.isascii() and number.isdigit()) or int(number) > FORMAT:
        raise ModelFileError(
            f"{path} was written by distgp {header.get('distgp')!s:.20} in format {number:.20}, this is "
            f"distgp {__version__} which reads up to {FORMAT}: install a newer distgp"
        )


class _Encoder:
    """A tree as JSON, its tensors aside under the paths they were found at; shared parts once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that an id stays one object's while we write

    def encode(self, value: object, path: str) -> Any:
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


class _Decoder:
    """The inverse of `_Encoder`."""

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
            refuse_other_types(cast(type, kind), fields, _hints_of(kind))
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


def _names_of_format_1() -> dict[str, Callable[..., Any]]:
    """The classes of files of format 1, whose combinations held the noise variance."""

    def without_noise(kind: type) -> Callable[..., Any]:
        return lambda noise=None, **fields: kind(**fields)  # noqa: ARG005

    combined = {k: without_noise(v) for k, v in NAMES.items() if k.startswith("combined/")}
    return {**NAMES, **combined, "model": dict}


def _state_of_format_1(state: dict[str, Any]) -> dict[str, Any]:
    """The state of an estimator in a file of format 1, as it is now.

    A list of models stood beside what they have in common, each with row noise and training inputs.
    """
    targets, inputs = [], None
    for one in state["models"]:
        if isinstance(one, dict):
            inputs, row_noise = one.pop("inputs", None), one.pop("row_noise", None)
            likelihood = Gaussian(one["ensemble"].noise(), row_noise)
            one = TargetModel(**one, likelihood=likelihood)
        targets.append(one)
    names, table = state["feature_names"], state["table"]
    schema = Schema(state["n_features"], None if names is None else tuple(names), table)
    model = Model(tuple(targets), state["one_target"], schema, state["seed"], inputs)
    kept = {name: state.get(name) for name in ("estimator", "parameters", "choice", "settled")}
    return {**kept, "model": model}
