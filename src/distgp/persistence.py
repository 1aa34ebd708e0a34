"""Models in files: one safetensors file, its header a JSON description. Never pickle.

A model is a tree of our own frozen dataclasses with tensors at its leaves. The tree goes into the header,
the tensors into the file, each in the memory order that it had, so that a loaded model computes the
same numbers to the last bit. Only classes of this package are ever built from a file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import pkgutil
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from distgp._version import __version__
from distgp.aggregation import Group
from distgp.experts import SparsePosterior
from distgp.files import whole

FORMAT = "distgp-model"
VERSION = 1
PACKAGES = (
    "aggregation",
    "experts",
    "kernels",
    "partition",
    "shards",
    "scaling",
    "model",
    "training",
    "columns",
    "engines.local",
    "sparsegrid",
)
"""Where the classes live that a file may name."""


class ModelFileError(ValueError):
    """A file is not a model of distgp, or is damaged, or too new."""


def save(path: Path | str, tree: Any, about: dict[str, str]) -> None:
    """Write a tree; `about` are readable entries of the header."""
    encoder = _Encoder()
    header = {"format": FORMAT, "version": str(VERSION), "distgp": __version__} | about
    header["tree"] = json.dumps(encoder.encode(tree, "model"), allow_nan=False)
    header["checksum"] = checksum(header["tree"], encoder.tensors)
    with whole(path) as part:
        save_file(encoder.tensors, str(part), header)


def load(path: Path | str, device: str | None = None) -> Any:
    """Read a tree back; its tensors go to `device`, or to where they were if that exists here."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {str(path)!r}")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            _check(path, header)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ModelFileError(
            f"{path} is not a model file of distgp, or it is truncated or damaged ({error}): save the "
            "model again"
        ) from error
    if header.get("checksum") != checksum(header.get("tree", ""), tensors):
        raise ModelFileError(f"{path} was damaged after it was written: save the model again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what there was to say was said when it was fitted
            return _Decoder(tensors, device).decode(json.loads(header["tree"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelFileError(
            f"{path} has the header of a distgp model but not its content ({error}): it was damaged, "
            "or written by another version"
        ) from error


def checksum(tree: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of all that a model is made of."""
    digest = hashlib.sha256(tree.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()


def _check(path: Path, header: dict[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise ModelFileError(f"{path} is a safetensors file, but not a model that distgp has saved")
    version = header.get("version", "")
    if not (version.isascii() and version.isdigit()) or int(version) > VERSION:
        raise ModelFileError(
            f"{path} was written by distgp {header.get('distgp')} in format {version}, this is distgp "
            f"{__version__} which reads up to {VERSION}: install a newer distgp"
        )


@cache
def _classes() -> dict[str, type]:
    """Our dataclasses by name, such as `aggregation.pooled.PooledCombined`."""
    found: dict[str, type] = {}
    for name in PACKAGES:
        package = importlib.import_module(f"distgp.{name}")
        inner = pkgutil.iter_modules(getattr(package, "__path__", []))
        for module in (
            package,
            *(importlib.import_module(f"distgp.{name}.{m.name}") for m in inner),
        ):
            found |= {_name_of(v): v for v in vars(module).values() if _is_ours(v, module.__name__)}
    return found


def _is_ours(value: Any, module: str) -> bool:
    return (
        isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module
    )


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("distgp.")


class _Encoder:
    """A tree as JSON, its tensors aside under the paths they were found at; shared parts once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that an id stays one object's while we write

    def encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if np.isfinite(value) else {"float": str(value)}
        if isinstance(value, list | tuple):
            items = [self.encode(item, f"{path}.{i}") for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
        if isinstance(value, dict):
            return {"dict": {k: self.encode(v, f"{path}.{k}") for k, v in value.items()}}
        if isinstance(value, np.generic):
            return self.encode(value.item(), path)
        if id(value) in self._seen:
            return self._seen[id(value)]
        self._kept.append(value)
        if isinstance(value, Tensor | np.ndarray):
            node = self._leaf(value, path)
            self._seen[id(value)] = node
            return node
        self._seen[id(value)] = {"same": path}
        return self._object(value, path)

    def _leaf(self, value: Tensor | np.ndarray, path: str) -> Any:
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biuf":
                return {"array": self.encode(value.tolist(), path)}
            self.tensors[path] = torch.as_tensor(np.array(value, order="C"))
            return {"tensor": path, "numpy": True}
        turned = value.ndim > 1 and value.mT.is_contiguous() and not value.is_contiguous()
        stored = value.detach().mT if turned else value.detach()
        self.tensors[path] = stored.to("cpu", copy=True).contiguous()
        return {"tensor": path, "turned": turned, "device": value.device.type}

    def _object(self, value: Any, path: str) -> Any:
        name = _name_of(type(value))
        if name not in _classes():
            raise TypeError(
                f"a model file holds distgp's own objects only, and {type(value).__name__} (at {path}) is "
                "none of them: use joblib for a model with parts of your own"
            )
        if isinstance(value, Group) and isinstance(value.posterior, SparsePosterior):
            value = dataclasses.replace(value, shards=None)  # sparse models hold no training data
        fields = {
            spec.name: self.encode(getattr(value, spec.name), f"{path}.{spec.name}")
            for spec in dataclasses.fields(value)
            if spec.init and spec.metadata.get("saved", True)
        }
        return {"class": name, "path": path, "fields": fields}


class _Decoder:
    """The inverse of `_Encoder`."""

    def __init__(self, tensors: dict[str, Tensor], device: str | None) -> None:
        self._tensors = tensors
        self._device = device
        self._seen: dict[str, Any] = {}

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "same" in node:
            return self._seen[node["same"]]
        if "tensor" in node:
            return self._leaf(node)
        if "class" in node:
            fields = {name: self.decode(child) for name, child in node["fields"].items()}
            made = _classes()[node["class"]](**fields)
            self._seen[node["path"]] = made
            return made
        return self._plain(node)

    def _plain(self, node: dict[str, Any]) -> Any:
        if "tuple" in node:
            return tuple(self.decode(item) for item in node["tuple"])
        if "dict" in node:
            return {name: self.decode(child) for name, child in node["dict"].items()}
        if "array" in node:
            return np.array(node["array"])
        return float(node["float"])

    def _leaf(self, node: dict[str, Any]) -> Tensor | np.ndarray:
        name = node["tensor"]
        if name not in self._seen:
            value = self._tensors[name]
            if node.get("numpy"):
                self._seen[name] = value.numpy()
            else:
                # A copy of its own: matrix products depend, in the last bit, on memory alignment.
                value = value.to(self._place(node["device"]), copy=True)
                self._seen[name] = value.mT if node["turned"] else value
        return self._seen[name]

    def _place(self, device: str) -> str:
        """Where asked, or where the tensor was if that exists here."""
        if self._device is not None:
            return self._device
        return device if torch.cuda.is_available() else "cpu"
