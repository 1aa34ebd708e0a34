"""A fitted model over HTTP: rows come in as JSON or Arrow, means and standard deviations go out."""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
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

from distgp import DistributedGPRegressor, __version__, load
from distgp._util.checks import silenced
from distgp.diagnostics.calibration import NegativeBoundWarning
from distgp.regressor import unnamed
from distgp.serve.answers import JSON, TOLD, forms, warnings_kept
from distgp.serve.changes import Model, Served, refuse_pages
from distgp.serve.connections import Connection, logged, room
from distgp.serve.described import ANSWERS, ROWS_IN
from distgp.serve.options import bad_options, known_options, levels_of, no_such_route
from distgp.serve.rows import Held, finite_inputs, refused, whole_body

MOST_ROWS, MOST_BYTES = 100_000, 2**26
MOST_JSON = 2**23
"""Bytes of JSON at most: while Python reads it, nothing else may run, `/health` included."""
CORES = os.cpu_count() or 1
PATIENCE = 30
"""Seconds that running requests have to finish once the server is told to end."""
OUTPUTS = ("mean", "std", "lower", "upper")
Log: TypeAlias = Callable[[str], object]


def app(
    model: Model,
    max_rows: int = MOST_ROWS,
    max_bytes: int = MOST_BYTES,
    at_once: int | None = None,
    hosts: Collection[str] | None = None,
    observe: bool = False,
    reload: Callable[[], Model] | None = None,
) -> FastAPI:
    """Build the ASGI application that answers `POST /predict`, `GET /info`, `GET /health` and more.

    `GET /openapi.json` describes all of its routes to programs.

    Parameters
    ----------
    model : DistributedGPRegressor or SparseGridGP
        A fitted model.
    max_rows : int
        The largest number of rows of one request; larger ones are refused.
    max_bytes : int
        The same of bytes; JSON is refused beyond 8 MiB. Unfinished requests together may have sent
        four times as many.
    at_once : int, optional
        The number of requests at most that are predicted at the same time, the others wait; by
        default the root of the number of cores.
    hosts : collection of str, optional
        Names by which clients may call the server, beside "localhost" and any IP address; others are
        refused. By default all names are taken: a server of your own knows its names.
    observe : bool, default=False
        Whether `POST /observe` adds rows with their targets to the model, by `partial_fit`. Whoever can
        reach the server can then change its predictions.
    reload : callable, optional
        Returns the model that `POST /reload` serves from then on; by default there is no such route.
    """
    checks = [] if hosts is None else [Depends(_named({name.lower() for name in hosts}))]
    api = FastAPI(
        title="distgp",
        version=__version__,
        lifespan=warnings_kept,
        openapi_url=None,
        dependencies=[*checks, Depends(known_options)],
    )
    for status in (404, 405):
        api.add_exception_handler(status, no_such_route)
    api.add_exception_handler(RequestValidationError, bad_options)
    api.add_exception_handler(Exception, _internal_error)
    limits = {"max_rows": max_rows, "max_bytes": max_bytes}
    served = Served(model, limits | {"max_json_bytes": min(max_bytes, MOST_JSON)})
    slots, held = asyncio.Semaphore(at_once or _predictions_at_once()), Held(4 * max_bytes)
    _add_descriptions(api, served)
    _add_predictions(api, served, slots, held)
    if observe:
        served.check_observes()
        _add_observations(api, served, slots, held)
    if reload is not None:
        _add_reloads(api, served, reload)
    return api


def _add_descriptions(api: FastAPI, served: Served) -> None:
    """Add the routes that tell what the server is."""

    @api.get("/health", responses=ANSWERS["health"])
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @api.get("/info", responses=ANSWERS["info"])
    async def info() -> dict[str, Any]:
        return served.now.about

    @api.get("/openapi.json")
    async def openapi() -> dict[str, Any]:
        return api.openapi()


def _add_predictions(api: FastAPI, served: Served, slots: asyncio.Semaphore, held: Held) -> None:
    """Add the route that predicts."""

    @api.post("/predict", responses=ANSWERS["predict"], openapi_extra=ROWS_IN)
    async def predict(
        request: Request,
        latent: bool = False,
        interval: Annotated[float | None, Query(gt=0, lt=1)] = None,
        quantiles: Annotated[str | None, Query(description="such as 0.1,0.9")] = None,
        unknown: Literal["refuse", "new"] | None = None,
    ) -> Response:
        levels = levels_of(quantiles)
        model, columns, _ = served.now
        read, write = forms(request)

        def work(body: bytearray) -> Response:
            told: list[str] = []
            TOLD.set(told)
            rows = read(body, columns, served.limits["max_rows"])
            X = finite_inputs(rows, columns, unknown or getattr(model, "unknown", "refuse"))
            found = _predicted(model, X, latent, interval, levels)
            return write(found, list(dict.fromkeys(told)))

        return await _worked(request, served, slots, held, work)


def _add_observations(api: FastAPI, served: Served, slots: asyncio.Semaphore, held: Held) -> None:
    """Add the route that learns from new rows."""

    @api.post(
        "/observe",
        responses=ANSWERS["observe"],
        openapi_extra=ROWS_IN,
        dependencies=[Depends(refuse_pages)],
    )
    async def observe(request: Request) -> Response:
        read = forms(request)[0]

        def work(body: bytearray) -> Response:
            return JSONResponse(served.observe(read, body, served.limits["max_rows"]))

        return await _worked(request, served, slots, held, work)


def _add_reloads(api: FastAPI, served: Served, read: Callable[[], Model]) -> None:
    """Add the route that serves another model."""

    @api.post("/reload", responses=ANSWERS["reload"], dependencies=[Depends(refuse_pages)])
    async def reload() -> dict[str, Any]:
        return await asyncio.to_thread(served.reload, read)


async def _worked(
    request: Request,
    served: Served,
    slots: asyncio.Semaphore,
    held: Held,
    work: Callable[[bytearray], Response],
) -> Response:
    """Read the rows of a request, wait for a slot, and work on them in a thread."""
    small = request.headers.get("content-type", "").lower().startswith(JSON)
    most = served.limits["max_json_bytes" if small else "max_bytes"]
    with suppress(ClientDisconnect):
        async with whole_body(request, most, held) as body, slots:
            if not await request.is_disconnected():
                return await asyncio.to_thread(work, body)
    return Response(status_code=400)  # nobody is there to read it


def serve(
    path: Path | str,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str | None = None,
    ready: Callable[[str], object] = print,
    names: Collection[str] = (),
    allow: Collection[str] = (),
    log: Log | None = None,
    **limits: int,
) -> None:
    """Serve a model file until the process is interrupted or told to end; running requests are answered.

    Parameters
    ----------
    path : str or Path
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
    allow : collection of {"observe", "reload"}, default=()
        Which changes clients may make: add rows to the model, which are lost when the server ends, or
        have it load the file again.
    log : callable, optional
        Called with a line for each request that was answered; by default none is written.
    **limits
        As of `app`: `max_rows`, `max_bytes` and `at_once`.
    """
    if strange := set(allow) - {"observe", "reload"}:
        raise ValueError(f"clients may be allowed to observe or reload, got {', '.join(strange)}")
    at_once = limits.pop("at_once", None) or _predictions_at_once()
    # Predictions that each had threads for all cores would spend their time waiting for each other's.
    torch.set_num_threads(max(1, min(torch.get_num_threads(), CORES // at_once)))
    api = app(
        load(path, device),
        at_once=at_once,
        hosts={host, *names},
        observe="observe" in allow,
        reload=partial(load, path, device) if "reload" in allow else None,
        **limits,
    )
    config = uvicorn.Config(
        api if log is None else logged(api, log),
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


def _predicted(
    model: Model, X: np.ndarray, latent: bool, interval: float | None, levels: Sequence[float]
) -> dict[str, np.ndarray]:
    """Return mean, std, the ends of the interval and quantiles of each row."""
    try:
        found = dict(zip(OUTPUTS, _predictions(model, X, latent, interval), strict=False))
        found |= _quantiles(model, X, latent, levels)
    except ValueError as error:  # values too large to compute with are the client's to mend
        raise refused(422, str(error)) from error
    finite = np.isfinite(np.stack([*found.values()], axis=1)).reshape(len(X), -1).all(1)
    if not finite.all():
        raise refused(
            422,
            f"no finite interval for {int((~finite).sum())} of {len(X)} rows: calibration had too few rows "
            "for so wide an interval",
        )
    return found


def _predictions(
    model: Model, X: np.ndarray, latent: bool, interval: float | None
) -> tuple[np.ndarray, ...]:
    """Return mean and std, and the ends of the interval where one is asked for."""
    if interval is not None and isinstance(model, DistributedGPRegressor):
        with silenced(NegativeBoundWarning):  # a hint for those who fit models, not for clients
            return unnamed(model.predict_with_interval, X, interval, latent=latent)
    mean, std = unnamed(model.predict, X, return_std=True, latent=latent)
    if interval is None:
        return mean, std
    half = NormalDist().inv_cdf(0.5 + interval / 2) * std
    return mean, std, mean - half, mean + half


def _quantiles(
    model: Model, X: np.ndarray, latent: bool, levels: Sequence[float]
) -> dict[str, np.ndarray]:
    """Return the quantiles that are asked for, by names such as q0.1."""
    if not levels:
        return {}
    if isinstance(model, DistributedGPRegressor):
        found = unnamed(model.predict_quantiles, X, levels, latent=latent)
    else:
        mean, std = unnamed(model.predict, X, return_std=True, latent=latent)
        found = mean[..., None] + std[..., None] * [NormalDist().inv_cdf(q) for q in levels]
    return {f"q{level:g}": found[..., place] for place, level in enumerate(levels)}


def _internal_error(request: Request, error: Exception) -> Response:
    """Tell nothing: the server writes the error to its log, and then closes the connection."""
    del request, error
    return JSONResponse({"detail": "internal error"}, 500, {"connection": "close"})
