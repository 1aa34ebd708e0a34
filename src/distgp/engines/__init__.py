"""Engines: where shards and experts live, and how functions reach them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import torch

from distgp.engines.base import (
    KINDS,
    Engine,
    EngineError,
    EngineWarning,
    Kinds,
    LocalEngine,
    LocalPlacement,
    MayNotLeaveError,
    Placement,
    Traffic,
    travels,
)
from distgp.engines.devices import DevicesEngine

__all__ = [
    "ENGINES", "KINDS", "DevicesEngine", "Engine", "EngineError", "EngineWarning", "Kinds", "LocalEngine",
    "LocalPlacement", "MayNotLeaveError", "Placement", "Traffic", "opened", "register", "travels",
]  # fmt: skip

Factory: TypeAlias = Callable[[str | torch.device], Engine]

ENGINES: dict[str, Factory] = {
    "local": lambda device: DevicesEngine() if _several_gpus(device) else LocalEngine(),
    "ray": lambda device: import_module("distgp.engines.ray").shared_engine(device),
}
"""The engines that have a name. Each factory is given the device that the estimator is to use."""


def register(name: str, factory: Factory) -> None:
    """Give an engine a name, by which estimators open it.

    Parameters
    ----------
    name : str
        The name, as in ``DistributedGPRegressor(engine=name)``.
    factory : callable
        Returns the engine, given the estimator's device; it may return the same one every time.
    """
    ENGINES[name] = factory


def opened(engine: str | Engine, device: str | torch.device = "cpu") -> Engine:
    """Return an engine as it is, or the one that a name in `ENGINES` stands for."""
    if isinstance(engine, Engine):
        return engine
    if not isinstance(engine, str) or engine not in ENGINES:
        names = ", ".join(map(repr, ENGINES))
        raise ValueError(f"engine must be {names} or an Engine object, got {engine!r}")
    return ENGINES[engine](device)


def _several_gpus(device: str | torch.device) -> bool:
    """Whether "local" stands for all GPUs of this machine, since there are several."""
    return str(device) == "cuda" and torch.cuda.device_count() > 1


def __getattr__(name: str) -> Any:
    """Import `RayEngine` on demand, since Ray is an extra."""
    if name == "RayEngine":
        return import_module("distgp.engines.ray").RayEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
