"""The rows of a request: whatever a client sends becomes a table of numbers, or a clear refusal."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from fastapi import HTTPException, Request

from distgp.data.encoding import Columns
from distgp.data.table import TableError

Value = TypeVar("Value")

PATIENCE, SLOWEST = 10.0, 2**14
"""Seconds for the rows of a request, and so many bytes more for each second more."""
LONGEST_DETAIL = 1_000
"""Characters of an error at most: it may quote names that the client made up."""


def refused(status: int, text: str) -> HTTPException:
    """Return the answer to a request that cannot be served: what was expected, what came, the remedy."""
    return HTTPException(status, one_line(text))


def one_line(text: str) -> str:
    """Return a text without line breaks, cut where it is very long."""
    return " ".join(text[:LONGEST_DETAIL].split()) + ("…" if len(text) > LONGEST_DETAIL else "")


@dataclass
class Held:
    """The bytes that all unfinished requests together may have sent, and those that they have."""

    most: int
    now: int = 0


@asynccontextmanager
async def whole_body(request: Request, max_bytes: int, held: Held) -> AsyncIterator[bytearray]:
    """Read the bytes of a request, refused as soon as they are too many or too slow.

    They count as held until the block ends.
    """
    body = bytearray()
    try:
        await _read(request, body, max_bytes, held)
        yield body
    finally:
        held.now -= len(body)


async def _read(request: Request, body: bytearray, max_bytes: int, held: Held) -> None:
    too_long = refused(
        413,
        f"expected at most {max_bytes:,} bytes, got more: send the rows in several requests, or as Arrow",
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:18]) > max_bytes:
        raise too_long
    try:
        async with asyncio.timeout(PATIENCE) as limit:
            async for chunk in request.stream():
                body += chunk
                held.now += len(chunk)
                if len(body) > max_bytes:
                    raise too_long
                if held.now > held.most:
                    raise refused(503, "the server reads other large requests: try again later")
                limit.reschedule((limit.when() or 0.0) + len(chunk) / SLOWEST)
    except TimeoutError:
        text = f"the rows came more slowly than {SLOWEST:,} bytes a second: send fewer at once"
        raise HTTPException(408, text, {"connection": "close"}) from None


def _itself(value: Value) -> Value:
    """Return a value as it is. Python's reader of JSON lets other threads go on where it calls this."""
    return value


def json_rows(body: bytearray, columns: Columns, max_rows: int) -> pa.Table:
    """Read the rows of a JSON request."""
    try:
        given = json.loads(
            body,
            object_hook=_itself,
            parse_float=lambda text: float(text),
            parse_int=lambda text: int(text),
        )
    except (ValueError, RecursionError) as error:
        place = f": {error}" if isinstance(error, json.JSONDecodeError) else ""
        text = f"expected JSON in UTF-8, got what cannot be read as such{place}"
        raise refused(400, text) from None
    rows = given.get("rows") if isinstance(given, dict) else None
    names = [column.name for column in columns.inputs]
    if not isinstance(rows, list):
        raise refused(
            422,
            'expected {"rows": [...]} with a list of rows: objects with the columns '
            f"{_listed(names)}, or lists of their values in this order",
        )
    _check_count(len(rows), max_rows)
    for number, row in enumerate(rows, start=1):
        _check_row(row, f"row {number} of {len(rows)}", names)
    by_name = isinstance(rows[0], dict)
    if any(isinstance(row, dict) != by_name for row in rows):
        raise refused(422, "expected rows of one form, got some objects and some lists")
    keys = zip(names, names if by_name else range(len(names)), strict=True)
    return pa.table({name: _array(name, [row[key] for row in rows]) for name, key in keys})


def _check_row(row: object, which: str, names: Sequence[str]) -> None:
    """Refuse a row that lacks columns."""
    if isinstance(row, dict):
        if lacking := [name for name in names if name not in row]:
            raise refused(
                422, f"{which} lacks {_listed(lacking)}; the model needs {_listed(names)}"
            )
    elif not isinstance(row, list):
        raise refused(422, f"{which} is neither an object nor a list of values")
    elif len(row) != len(names):
        raise refused(
            422, f"{which} has {len(row)} values, expected the {len(names)} of {_listed(names)}"
        )


def _array(name: str, values: list[object]) -> pa.Array:
    """Return the values of one column, of the type that fits them all."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise refused(
            422,
            f"column {name!r} holds values of different kinds, or too large: send numbers alone, or "
            "texts alone",
        ) from None


def arrow_rows(body: bytearray, columns: Columns, max_rows: int) -> pa.Table:
    """Read the rows of an Arrow IPC stream, checked: offsets that point elsewhere would be followed."""
    try:
        buffer = pa.py_buffer(body)
        for message in pa.ipc.MessageReader.open_stream(buffer):
            if message.type in ("record batch", "dictionary") and _is_compressed(message):
                raise refused(
                    400, "expected Arrow without compression: write the stream without it"
                )
        batches, count = [], 0
        with pa.ipc.open_stream(buffer) as reader:
            for batch in reader:
                count += batch.num_rows
                _check_count(count, max_rows, least=0)
                batches += [batch] if batch.num_rows else []
            table = pa.Table.from_batches(batches, reader.schema)
        columns.check(table.schema.names)
        rows = table.select([column.name for column in columns.inputs])
        rows.validate(full=True)
    except TableError as error:
        raise refused(422, str(error)) from None
    except (pa.ArrowException, OSError, ValueError, KeyError, struct.error) as error:
        raise refused(
            400, f"expected an Arrow IPC stream, got what cannot be read as such: {error}"
        ) from None
    _check_count(count, max_rows)
    return rows


def finite_inputs(rows: pa.Table, columns: Columns, unknown: str) -> np.ndarray:
    """Return the numbers that the model's own encoder makes of rows, all of them finite."""
    try:
        X = columns.matrix(rows, unknown)
    except TableError as error:
        raise refused(422, str(error).replace("unknown='new'", "?unknown=new")) from None
    except (pa.ArrowException, KeyError) as error:  # pyarrow has types without a class in Python
        raise refused(422, f"a column does not hold what it held in fitting: {error}") from None
    bad = ~np.isfinite(X)
    if bad.any():
        counts = {name: int(bad[:, at].any(1).sum()) for name, at in columns.places.items()}
        listed = ", ".join(f"{count} in {name!r}" for name, count in counts.items() if count)
        raise refused(
            422,
            f"{int(bad.any(1).sum())} of {len(X)} rows have missing or infinite values ({listed}): fill "
            "them, or leave those rows out",
        )
    return X


def _is_compressed(message: pa.Message) -> bool:
    """Return whether a message's buffers are compressed, so that a few bytes may stand for very many.

    pyarrow tells only by decompressing them. In Arrow's Message.fbs the header is field 2 of a message, the
    batch field 1 of a dictionary, and the compression field 3 of a batch.
    """
    flat = message.metadata.to_pybytes()
    header = _subtable(flat, struct.unpack_from("<I", flat)[0], 2)
    batch = _subtable(flat, header, 1) if message.type == "dictionary" else header
    return _subtable(flat, batch, 3) != 0


def _subtable(flat: bytes, table: int, field: int) -> int:
    """Return the place in a flatbuffer of the table in a field of another table; 0 where there is none."""
    vtable = table - struct.unpack_from("<i", flat, table)[0]
    slot = 4 + 2 * field
    if slot >= struct.unpack_from("<H", flat, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", flat, vtable + slot)[0]
    return table + offset + struct.unpack_from("<I", flat, table + offset)[0] if offset else 0


def _check_count(count: int, max_rows: int, least: int = 1) -> None:
    if count > max_rows:
        raise refused(
            413, f"expected at most {max_rows:,} rows, got more: send them in several requests"
        )
    if count < least:
        raise refused(422, "expected one row at least, got none")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
