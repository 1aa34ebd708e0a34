"""Answers: in the form that the client accepts, with the warnings of the work that they are about."""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import pyarrow as pa
from fastapi import FastAPI, Request, Response

from distgp.serve.rows import arrow_rows, json_rows, one_line, refused

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"

TOLD: ContextVar[list[str] | None] = ContextVar("told", default=None)
"""The warnings of what this thread works on."""


def forms(request: Request) -> tuple[Callable[..., pa.Table], Callable[..., Response]]:
    """Return the reader of a request's content type, and the writer of the type that the client accepts."""
    given = request.headers.get("content-type", "")
    form = given.partition(";")[0].strip().lower()
    if form not in _READERS:
        raise refused(415, f"expected the content type {JSON} or {ARROW}, got {given!r}")
    accepted = request.headers.get("accept", "").lower()
    answered = next((other for other in _READERS if other in accepted), form)
    return _READERS[form], _WRITERS[answered]


@asynccontextmanager
async def warnings_kept(api: FastAPI) -> AsyncIterator[None]:
    """Put distgp's warnings into the answer of the work that they are about."""
    del api
    show = warnings.showwarning  # `catch_warnings` would mix up those of different threads

    def keep(message: Warning | str, category: type[Warning], *details: Any) -> None:
        told = TOLD.get()
        if told is not None and category.__module__.startswith("distgp"):
            told.append(one_line(str(message)))
        else:
            show(message, category, *details)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)  # for each answer, not the first alone
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        warnings.showwarning = keep
        yield


def _json_answer(found: Mapping[str, np.ndarray], told: list[str]) -> Response:
    lists = {name: values.tolist() for name, values in found.items()}
    return Response(json.dumps({**lists, "warnings": told}), media_type=JSON)


def _arrow_answer(found: Mapping[str, np.ndarray], told: list[str]) -> Response:
    """Answer with a stream of one column each, of lists where there are several targets."""
    columns = {name: _column(values) for name, values in found.items()}
    table = pa.table(columns, metadata={"warnings": json.dumps(told)})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return Response(out.getvalue().to_pybytes(), media_type=ARROW)


def _column(values: np.ndarray) -> pa.Array:
    flat = pa.array(values.ravel())
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


_READERS = {JSON: json_rows, ARROW: arrow_rows}
_WRITERS = {JSON: _json_answer, ARROW: _arrow_answer}
