"""A fitted model over HTTP: rows come in as JSON or Arrow, means and standard deviations go out."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from ipaddress import ip_address
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import torch

try:
    import uvicorn
    from fastapi import Depends, FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.requests import ClientDisconnect
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(
        "serving needs FastAPI and uvicorn, which are not installed: pip install 'distgp[serve]'"
    ) from error

from distgp import DistributedGPRegressor, SparseGridGP, __version__, load
from distgp.data.encoding import Columns
from distgp.regressor import unnamed
from distgp.serve.connections import Connection, room
from distgp.serve.rows import (
    Held,
    arrow_rows,
    finite_inputs,
    json_rows,
    one_line,
    refused,
    whole_body,
)

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
MOST_ROWS, MOST_BYTES = 100_000, 2**26
MOST_JSON = 2**23
"""Bytes of JSON at most: while Python reads it, nothing else may run, `/health` included."""
CORES = os.cpu_count() or 1
PATIENCE = 30
"""Seconds that running requests have to finish once the server is told to end."""
OUTPUTS = ("mean", "std", "lower", "upper")
Model: TypeAlias = DistributedGPRegressor | SparseGridGP

_told: ContextVar[list[str] | None] = ContextVar("told", default=None)
"""The warnings of the prediction that this thread works on."""


def app(
    model: Model,
    max_rows: int = MOST_ROWS,
    max_bytes: int = MOST_BYTES,
    at_once: int | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """Build the ASGI application that answers `POST /predict`, `GET /info` and `GET /health`.

    Parameters
    ----------
    model : DistributedGPRegressor or SparseGridGP
        A fitted model.
    max_rows, max_bytes : int
        The largest number of rows, and of bytes, of one request; larger ones are refused, as is JSON
        of more than 8 MiB. Unfinished requests together may have sent four times `max_bytes`.
    at_once : int, optional
        The number of requests at most that are predicted at the same time, the others wait; by
        default the root of the number of cores.
    hosts : collection of str, optional
        Names by which clients may call the server, beside "localhost" and any IP address; others are
        refused. By default all names are taken: a server of your own knows its names.
    """
    checks = [] if hosts is None else [Depends(_named({name.lower() for name in hosts}))]
    api = FastAPI(lifespan=_warnings_kept, openapi_url=None, dependencies=checks)
    api.add_exception_handler(RequestValidationError, _bad_options)
    api.add_exception_handler(Exception, _internal_error)
    columns = model.model_.schema.columns or Columns.of_numbers(model.summary().columns)
    about = _about(model, columns) | {"max_rows": max_rows, "max_bytes": max_bytes}
    about["max_json_bytes"] = most_json = min(max_bytes, MOST_JSON)
    slots, held = asyncio.Semaphore(at_once or _predictions_at_once()), Held(4 * max_bytes)

    @api.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @api.get("/info")
    async def info() -> dict[str, Any]:
        return about

    @api.post("/predict")
    async def predict(
        request: Request,
        latent: bool = False,
        interval: Annotated[float | None, Query(gt=0, lt=1)] = None,
        unknown: Literal["refuse", "new"] | None = None,
    ) -> Response:
        read, write = _forms(request)
        most = most_json if read is json_rows else max_bytes

        def work(body: bytearray) -> Response:
            rows = read(body, columns, max_rows)
            X = finite_inputs(rows, columns, unknown or getattr(model, "unknown", "refuse"))
            return write(*_predicted(model, X, latent, interval))

        with suppress(ClientDisconnect):
            async with whole_body(request, most, held) as body, slots:
                if not await request.is_disconnected():
                    return await asyncio.to_thread(work, body)
        return Response(status_code=400)  # nobody is there to read it

    return api


def serve(
    path: Path | str,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str | None = None,
    ready: Callable[[str], object] = print,
    at_once: int | None = None,
    names: Collection[str] = (),
    **limits: int,
) -> None:
    """Serve a model file until the process is interrupted or told to end; running requests are answered.

    Parameters
    ----------
    path : path-like
        A file that `save` or `distgp fit` wrote.
    host : str, default="127.0.0.1"
        The address to listen at: only this machine by default, "0.0.0.0" for everyone.
    port : int, default=8000
        The port; 0 for one that is free.
    device : str, optional
        Where to put the model, as of `distgp.load`.
    ready : callable
        Called with the server's URL once clients can connect.
    names : collection of str, default=()
        Names by which clients may call the server, beside `host`, "localhost" and any IP address: a
        page in a browser can have its own name stand for this machine, and ask in its user's stead.
    at_once, **limits
        As of `app`: `max_rows` and `max_bytes`.
    """
    at_once = at_once or _predictions_at_once()
    # Predictions that each had threads for all cores would spend their time waiting for each other's.
    torch.set_num_threads(max(1, min(torch.get_num_threads(), CORES // at_once)))
    api = app(load(path, device), at_once=at_once, hosts={host, *names}, **limits)
    config = uvicorn.Config(
        api,
        http=Connection,
        backlog=room()[1],
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=PATIENCE,
    )
    with _listening(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listener.getsockname()[1]}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _named(hosts: Collection[str]) -> Callable[[Request], Awaitable[None]]:
    """Return a check that a request calls the server by an address, or by one of these names."""

    async def check(request: Request) -> None:
        host = re.sub(r":\d*$", "", request.headers.get("host", "").lower())
        with suppress(ValueError):
            ip_address(host.removeprefix("[").removesuffix("]"))
            return
        if host not in {"", "localhost", *hosts}:
            raise refused(
                421,
                f"this server does not answer as {host!r}: call it by its address, or start it with "
                f"--names {host}",
            )

    return check


def _predictions_at_once() -> int:
    """Return √cores, rounded up: short requests need not wait for a long one, which has several cores."""
    return math.isqrt(CORES - 1) + 1


def _listening(host: str, port: int) -> socket.socket:
    """Open a socket that accepts connections."""
    if not host.strip():
        raise ValueError(
            "expected the address to listen at, such as 127.0.0.1, or 0.0.0.0 for other machines too, "
            "got an empty text"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Connections inherit it. Without it the second half of an answer waits 40 ms for the client.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise ValueError(
            f"cannot listen at {host}, port {port}: {reason}; choose another host or port, or end the "
            "program that uses this one"
        ) from error


def _forms(request: Request) -> tuple[Callable[..., pa.Table], Callable[..., Response]]:
    """Return the reader of a request's content type, and the writer of the type that the client accepts."""
    given = request.headers.get("content-type", "")
    form = given.partition(";")[0].strip().lower()
    if form not in _READERS:
        raise refused(415, f"expected the content type {JSON} or {ARROW}, got {given!r}")
    accepted = request.headers.get("accept", "").lower()
    answered = next((other for other in _READERS if other in accepted), form)
    return _READERS[form], _WRITERS[answered]


def _predicted(
    model: Model, X: np.ndarray, latent: bool, interval: float | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return mean, std and the ends of the interval for each row, and the model's warnings about them."""
    told: list[str] = []
    _told.set(told)
    try:
        values = _predictions(model, X, latent, interval)
    except ValueError as error:  # values too large to compute with are the client's to mend
        raise refused(422, str(error)) from error
    finite = np.isfinite(np.stack(values, axis=1)).reshape(len(X), -1).all(1)
    if not finite.all():
        raise refused(
            422,
            f"no finite interval for {int((~finite).sum())} of {len(X)} rows: calibration had too few rows "
            "for so wide an interval",
        )
    return dict(zip(OUTPUTS, values, strict=False)), told


def _predictions(
    model: Model, X: np.ndarray, latent: bool, interval: float | None
) -> tuple[np.ndarray, ...]:
    """Return mean and std, and the ends of the interval where one is asked for."""
    if interval is not None and isinstance(model, DistributedGPRegressor):
        return unnamed(model.predict_with_interval, X, interval, latent=latent)
    mean, std = unnamed(model.predict, X, return_std=True, latent=latent)
    if interval is None:
        return mean, std
    half = NormalDist().inv_cdf(0.5 + interval / 2) * std
    return mean, std, mean - half, mean + half


@asynccontextmanager
async def _warnings_kept(api: FastAPI) -> AsyncIterator[None]:
    """Put distgp's warnings into the answer of the prediction that they are about."""
    del api
    show = warnings.showwarning  # `catch_warnings` would mix up those of different threads

    def keep(message: Warning | str, category: type[Warning], *details: Any) -> None:
        told = _told.get()
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


def _bad_options(request: Request, error: Exception) -> Response:
    """Tell which option of the URL cannot be meant."""
    del request
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    text = f"{first['loc'][-1]}: {first['msg']}, got {first['input']!r}"
    return JSONResponse({"detail": one_line(text)}, 422)


def _internal_error(request: Request, error: Exception) -> Response:
    """Tell nothing: the server writes the error to its log, and then closes the connection."""
    del request, error
    return JSONResponse({"detail": "internal error"}, 500, {"connection": "close"})
