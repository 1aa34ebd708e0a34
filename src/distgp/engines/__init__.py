"""Engines: where shards and experts live, and how functions reach them."""

from typing import Any

from distgp.engines.base import Engine, EngineError, Placement, Traffic
from distgp.engines.local import Local, LocalEngine

__all__ = ["Engine", "EngineError", "Local", "LocalEngine", "Placement", "Traffic"]


def __getattr__(name: str) -> Any:
    """`RayEngine` on demand: Ray is an extra."""
    if name == "RayEngine":
        from distgp.engines.ray import RayEngine

        return RayEngine
    raise AttributeError(name)
