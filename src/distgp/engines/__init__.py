"""Engines: where shards and experts live, and how functions reach them."""

from typing import Any

from distgp.engines.base import Engine, EngineError, EngineWarning, Placement, Traffic
from distgp.engines.devices import DevicesEngine
from distgp.engines.local import LocalEngine, LocalPlacement

__all__ = [
    "DevicesEngine",
    "Engine",
    "EngineError",
    "EngineWarning",
    "LocalEngine",
    "LocalPlacement",
    "Placement",
    "Traffic",
]


def __getattr__(name: str) -> Any:
    """Import `RayEngine` on demand, since Ray is an extra."""
    if name == "RayEngine":
        from distgp.engines.ray import RayEngine

        return RayEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
