"""Models in files: one safetensors file, its header a JSON description. Never pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from distgp._util.checks import silenced
from distgp._version import __version__
from distgp.data.rows import Schema
from distgp.files.tree import NAMES, Decoder, Encoder, UnregisteredError
from distgp.files.writing import PRIVATE, whole
from distgp.likelihoods import Gaussian
from distgp.model import Model, TargetModel

KIND = "distgp-model"
FORMAT = 2  # files with a lower number are read, those with a higher one refused
LARGEST_TREE = 2_000_000  # values in a header: those of a forged one could fill the memory


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
    encoder = Encoder()
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
        found = Decoder(tensors, device, names).decode(json.loads(tree))
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
            f"{path} is not a model file of distgp, or it is truncated or damaged ({error}): give a file "
            "that `save` or `distgp fit` wrote, or save the model again"
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
