"""The model that is served, and the two ways to change it while it is: new rows, and another file."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from fastapi import Request

from distgp import DistributedGPRegressor, SparseGridGP, __version__
from distgp.data.encoding import Column, Columns
from distgp.regressor import unnamed
from distgp.serve.answers import TOLD
from distgp.serve.rows import finite_inputs, refused

Model: TypeAlias = DistributedGPRegressor | SparseGridGP


class Now(NamedTuple):
    """A model with the columns of its rows, and what `/info` tells of it."""

    model: Model
    columns: Columns
    about: dict[str, Any]


class Served:
    """The model that is served now. A request takes `now` once: a change in between is for the next."""

    def __init__(self, model: Model, limits: dict[str, int]) -> None:
        self.limits = limits
        self._changing = threading.Lock()
        self.take(model)

    def take(self, model: Model) -> None:
        """Serve this model from now on."""
        columns = model.model_.schema.columns or Columns.of_numbers(model.summary().columns)
        self.now = Now(model, columns, _about(model, columns) | self.limits)

    def check_observes(self) -> None:
        """Refuse to observe rows for a model that cannot, or whose target has the name of an input."""
        model, columns, about = self.now
        if not hasattr(model, "partial_fit"):
            raise ValueError(
                f"a {type(model).__name__} cannot learn from new rows: serve it without observing any"
            )
        if both := {column.name for column in columns.inputs} & set(about["targets"]):
            raise ValueError(f"the target and an input are both called {both.pop()!r}: rename one")

    def observe(
        self, read: Callable[..., pa.Table], body: bytearray, max_rows: int
    ) -> dict[str, Any]:
        """Add rows with their targets to the model, and tell how many it has now."""
        with self._changing:
            return self._observed(read, body, max_rows)

    def _observed(
        self, read: Callable[..., pa.Table], body: bytearray, max_rows: int
    ) -> dict[str, Any]:
        model, columns, about = self.now
        assert isinstance(model, DistributedGPRegressor)
        targets = tuple(Column(name, "number") for name in about["targets"])
        both = replace(columns, inputs=(*columns.inputs, *targets), fill=None)
        values = finite_inputs(read(body, both, max_rows), both, model.unknown)
        X, y = np.split(values, [-len(targets)], axis=1)
        told: list[str] = []
        TOLD.set(told)
        try:
            unnamed(model.partial_fit, X, y[:, 0] if model.model_.one_target else y)
        except ValueError as error:
            raise refused(422, str(error)) from error
        self.take(model)
        return {"observed": len(X), "rows": self.now.about["rows"], "warnings": told}

    def reload(self, read: Callable[[], Model]) -> dict[str, Any]:
        """Serve what the model file holds now; where it cannot be read, go on with the model before."""
        try:
            with self._changing:
                self.take(read())
        except (ValueError, OSError) as error:
            print(f"the model file could not be loaded again: {error}", file=sys.stderr, flush=True)
            raise refused(
                503,
                "the model file cannot be read, so the model before is still served: see the server's log",
            ) from error
        return {"rows": self.now.about["rows"]}


async def refuse_pages(request: Request) -> None:
    """Refuse what comes from a page in a browser: it would ask in its user's stead."""
    if "origin" in request.headers:
        raise refused(
            403, "pages in browsers may not change the model: call the server without one"
        )


def _about(model: Model, columns: Columns) -> dict[str, Any]:
    """Describe a model and its columns to a client."""
    targets, listed = model.summary().targets, []
    for column in columns.inputs:
        kind = "boolean" if column.boolean else column.kind
        known = {"categories": column.categories} if column.kind == "category" else {}
        listed.append({"name": column.name, "kind": kind, **known})
    return {
        "distgp": __version__,
        "estimator": type(model).__name__,
        "expert": targets[0].expert,
        "aggregation": targets[0].aggregation,
        "rows": targets[0].rows,
        "targets": [target.target for target in targets],
        "columns": listed,
    }
