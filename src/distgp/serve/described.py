"""The OpenAPI page: what FastAPI finds in the routes, and what it cannot see, bodies and answers."""

from __future__ import annotations

from typing import Any

from distgp.serve.answers import ARROW, JSON

Described = dict[str, Any]
BYTES = {"type": "string", "format": "binary", "description": "an Arrow IPC stream, uncompressed"}


def _object(**properties: Described) -> Described:
    return {"type": "object", "properties": properties}


def _list_of(kind: str, said: str = "") -> Described:
    return {"type": "array", "items": {"type": kind} if kind else {}, "description": said}


def _answer(said: str, schema: Described) -> Described:
    return {"description": said, "content": {JSON: {"schema": schema}}}


ROWS = _object(
    rows=_list_of(
        "", "objects with the columns of /info by name, or lists of their values in order"
    )
)
ROWS["required"] = ["rows"]
ROWS_IN: Described = {
    "requestBody": {
        "required": True,
        "content": {JSON: {"schema": ROWS}, ARROW: {"schema": BYTES}},
    }
}
"""The body of a request with rows."""
REFUSED = _answer("refused: one line says what was expected", _object(detail={"type": "string"}))
NUMBERS = _list_of("", "a number per row, or a list of one per target")
PREDICTED = _object(
    mean=NUMBERS,
    std=NUMBERS,
    lower=NUMBERS,
    upper=NUMBERS,
    warnings=_list_of("string", "what the model says of these rows"),
)
PREDICTED["additionalProperties"] = NUMBERS | {"description": "quantiles, called q0.1 and so on"}
PREDICTIONS = _answer("predictions", PREDICTED)
PREDICTIONS["content"][ARROW] = {"schema": BYTES}
ANSWERS: dict[str, dict[int | str, Described]] = {
    "predict": {200: PREDICTIONS, "default": REFUSED},
    "observe": {
        200: _answer(
            "the rows were learnt from",
            _object(
                observed={"type": "integer"},
                rows={"type": "integer"},
                warnings=_list_of("string"),
            ),
        ),
        "default": REFUSED,
    },
    "reload": {
        200: _answer("the file is served", _object(rows={"type": "integer"})),
        "default": REFUSED,
    },
    "info": {200: _answer("the model, its columns, and limits", {"type": "object"})},
    "health": {200: _answer("the server answers", _object(status={"type": "string"}))},
}
"""The answers of each route, by its name."""
