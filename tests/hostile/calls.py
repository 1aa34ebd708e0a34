"""Right calls of every public method, found by its signature: what hostile surroundings are tried on.

A new method is called on the day it lands. Where it has an argument of a new name, `test_state.py` says
that values for it are to be added to `VALUES`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from hostile.trial import data, tiny

import distgp
from distgp.data.rows import Rows, Schema
from distgp.mixin import ESTIMATORS

assert distgp.load is not None  # whose import has every estimator in ESTIMATORS
N = 60
CHANGES = ("fit", "fit_rows", "fit_parquet", "partial_fit", "drop_experts", "gather", "close")
"""Methods that change a model: they are called on a copy of it."""


@dataclass
class Case:
    """A fitted model with its rows, a folder of its own, and points to predict."""

    gp: Any
    X: np.ndarray
    y: np.ndarray
    folder: Path
    points: np.ndarray = field(default_factory=lambda: data(8, seed=1)[0])


VALUES: dict[str, Callable[[Case, np.random.Generator], Any]] = {
    "X": lambda case, rng: case.points,
    "y": lambda case, rng: np.resize(case.y, len(case.points)),
    "rows": lambda case, rng: Rows.of(case.X, case.y, Schema(case.X.shape[1], None)),
    "sample_weight": lambda case, rng: rng.choice([0.5, 1.0, 2.0], len(case.points)),
    "noise_variance": lambda case, rng: float(np.var(case.y)) * rng.uniform(0.1, 1, len(case.points)),
    "time": lambda case, rng: np.arange(len(case.points)),
    "groups": lambda case, rng: np.arange(len(case.points)) % 2,
    "return_std": lambda case, rng: bool(rng.random() < 0.5),
    "return_cov": lambda case, rng: bool(rng.random() < 0.3),
    "latent": lambda case, rng: bool(rng.random() < 0.5),
    "aggregation": lambda case, rng: str(rng.choice([*distgp.AGGREGATORS])),
    "coverage": lambda case, rng: float(rng.uniform(0.01, 0.99)),
    "q": lambda case, rng: rng.uniform(0.01, 0.99, int(rng.integers(1, 5))),
    "n_samples": lambda case, rng: int(rng.integers(1, 4)),
    "n_repeats": lambda case, rng: int(rng.integers(1, 3)),
    "random_state": lambda case, rng: int(rng.integers(100)),
    "which": lambda case, rng: int(rng.integers(2)),
    "path": lambda case, rng: str(case.folder / "written.safetensors"),
    "target": lambda case, rng: "y",
    "features": lambda case, rng: ["a"],
    "drop": lambda case, rng: ["b"],
    "categorical": lambda case, rng: [],
    "dates": lambda case, rng: "refuse",
    "missing": lambda case, rng: "drop",
    "n": lambda case, rng: 100,
    "d": lambda case, rng: 2,
    "targets": lambda case, rng: 1,
}  # fmt: skip
"""A right value for every argument, by its name."""


def methods(kind: type) -> list[str]:
    """The public methods of an estimator that are our own."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return [n for n, m in found if not n.startswith("_") and m.__module__.startswith("distgp")]


def takes(kind: type, name: str) -> dict[str, inspect.Parameter]:
    """The arguments of a method, but for those that are passed on."""
    found = inspect.signature(getattr(kind, name)).parameters.values()
    return {p.name: p for p in found if p.name != "self" and p.kind != p.VAR_KEYWORD}


def call(case: Case, name: str, rng: np.random.Generator) -> tuple[Callable[[], Any], str]:
    """A right call of a method with some of its optional arguments, and what it is, in words."""
    return call_with(case, name, rng)[:2]


def call_with(
    case: Case, name: str, rng: np.random.Generator
) -> tuple[Callable[[], Any], str, dict[str, Any]]:
    """A call as of `call`, and its arguments."""
    given = {}
    for argument, parameter in takes(type(case.gp), name).items():
        if parameter.default is parameter.empty or rng.random() < 0.4:
            given[argument] = VALUES[argument](case, rng)
    if name in ("fit", "fit_rows"):
        given |= {"X": case.X, "y": case.y} if name == "fit" else {}
        given = {k: v for k, v in given.items() if k in ("X", "y", "rows")}
    gp = case.gp
    if name == "fit_parquet":
        gp = in_files(case, given)

    def run() -> Any:
        return getattr(copy.deepcopy(gp) if name in CHANGES else gp, name)(**given)

    said = ", ".join(f"{k}={v!r:.40}" for k, v in given.items() if k not in ("X", "y"))
    return run, f"{name}({said})", given


OF_ROWS = ("sample_weight", "noise_variance", "time", "groups")
"""What is given for each row: in a file, by the names of columns."""


def in_files(case: Case, given: dict[str, Any]) -> Any:
    """Name the columns of a file in place of values, and return the model with what they are used for."""
    used = [kind for kind in OF_ROWS if kind in given]
    given |= {kind: kind for kind in used}
    given["path"] = str(case.folder / ("more.parquet" if used else "rows.parquet"))
    if {"time", "groups"} <= {*used}:  # one of them says which rows are held out
        used.remove("groups")
        del given["groups"]
    if used:
        given |= {"features": ["a", "b"], "drop": []}
    gp = copy.deepcopy(case.gp)
    if "time" in used or "groups" in used:
        gp.set_params(validation="last" if "time" in used else "groups")
    return gp


def numbers(found: Any, points: np.ndarray) -> list[np.ndarray]:
    """What a call says, as arrays: a changed model by its predictions, a module by what it computes."""
    if isinstance(found, torch.nn.Module):
        found = found(torch.as_tensor(points, device=next(found.buffers()).device))
    if hasattr(found, "predict"):
        found = found.predict(points, return_std=True)
    if hasattr(found, "falls"):
        found = found.falls  # of importance
    if isinstance(found, dict):
        found = tuple(found.values())  # of the parts of a function
    if isinstance(found, tuple):
        return [part for one in found for part in numbers(one, points)]
    if isinstance(found, torch.Tensor):
        found = found.detach().cpu().numpy()
    return [np.atleast_1d(found)] if isinstance(found, np.ndarray | float) else []


def models() -> Iterator[tuple[str, Callable[[], Any]]]:
    """One small model of every estimator and every kind of expert, not fitted yet."""
    for name in distgp.EXPERTS:
        yield name, lambda name=name: tiny(expert=name)
    yield "calibrated", lambda: tiny(calibrate="conformal")
    yield "sphere", lambda: tiny(kernel="matern32(120 km)", time_limit=None)
    yield "parts", lambda: tiny(kernel="rbf(1, isotropic) + linear", n_experts=1)
    for name, kind in ESTIMATORS.items():
        if kind.__module__.startswith("distgp") and kind is not distgp.DistributedGPRegressor:
            yield name, lambda kind=kind: kind(n_iter=2)


def case_of(
    make: Callable[[], Any], folder: Path, positive: bool = False, scale: float = 1.0
) -> Case:
    """A fitted model, and files of its rows; targets are positive, or in other units, where asked for."""
    X, y = data(N)
    y = scale * (np.exp(y) if positive else y)
    folder.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(X, columns=["a", "b"]).assign(y=y)
    table.to_parquet(folder / "rows.parquet")
    rng = np.random.default_rng(2)
    own = {"sample_weight": rng.choice([0.0, 0.5, 2.0], N), "time": np.arange(N) % 20}
    own |= {"noise_variance": np.var(y) * rng.uniform(0.1, 1, N), "groups": np.arange(N) % 4}
    table.assign(**own).to_parquet(folder / "more.parquet")
    return Case(make().fit(X, y), X, y, folder)
