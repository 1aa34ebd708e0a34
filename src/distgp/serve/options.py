"""Addresses and their options: those that the server has, and what it says of others."""

from __future__ import annotations

import math
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from distgp.kernels.layout import near
from distgp.serve.rows import one_line, refused

MOST_QUANTILES = 99


async def known_options(request: Request) -> None:
    """Refuse options that a route does not have, and those given twice: neither would change its answer."""
    known = [option.alias for option in request.scope["route"].dependant.query_params]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            takes = near(name, known) if known else ", which has none"
            raise refused(422, f"there is no option {name!r} of {request.url.path}{takes}")
        if given.count(name) > 1:
            raise refused(422, f"{name}: expected once, got it {given.count(name)} times")


def no_such_route(request: Request, error: Exception) -> Response:
    """Tell which routes there are."""
    routes = [route for route in cast(FastAPI, request.app).routes if isinstance(route, APIRoute)]
    there = ", ".join(
        f"{method} {route.path}" for route in routes for method in route.methods or ()
    )
    asked = f"{request.method} {request.url.path}"
    text = one_line(f"there is no {asked}; there are {there}")
    status, headers = cast(Any, error).status_code, cast(Any, error).headers
    return JSONResponse({"detail": text}, status, headers)


def levels_of(text: str | None) -> list[float]:
    """Read the probabilities of quantiles, such as "0.1,0.9"."""
    given = [] if text is None else text.split(",")
    try:
        levels = [float(one) for one in given]
    except ValueError:
        levels = [math.nan]
    if not all(0 < level < 1 for level in levels) or len(set(levels)) < len(given):
        raise refused(
            422,
            f"quantiles: expected different probabilities between 0 and 1 such as 0.1,0.9, got {text!r}",
        )
    if len(levels) > MOST_QUANTILES:
        raise refused(422, f"quantiles: expected {MOST_QUANTILES} at most, got {len(levels)}")
    return levels


def bad_options(request: Request, error: Exception) -> Response:
    """Tell which option of the URL cannot be meant."""
    del request
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    text = f"{first['loc'][-1]}: {first['msg']}, got {first['input']!r}"
    return JSONResponse({"detail": one_line(text)}, 422)
