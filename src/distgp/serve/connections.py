"""Connections of clients: how many there are at most, and how long the server waits for one.

uvicorn closes connections that are silent after an answer, but waits for ever for the first request, for
the rest of one, and for a client that does not read its answer. asyncio accepts all that connect, and
where the system has no descriptor left, it says so again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
LONGEST_LINE = 200
"""Characters of a request in the log, at most."""

HEADERS = 10.0
"""Seconds that a client has to begin a request, with all of its headers, or to take some of an answer."""
MOST_CONNECTIONS, BACKLOG = 256, 64
OWN_DESCRIPTORS = 64
"""Files and sockets that the server may have open beside its connections."""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    b'{"detail": "the server has as many connections as it can take: try again later"}'
)


def room() -> tuple[int, int]:
    """Return how many connections there may be, and how many more may wait to be accepted.

    Three times as many as wait can be accepted before the first of them is refused.
    """
    with contextlib.suppress(ImportError):  # Windows has no such limit
        import resource

        spare = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN_DESCRIPTORS, 6)
        return min(MOST_CONNECTIONS, spare // 3), min(BACKLOG, spare // 6)
    return MOST_CONNECTIONS, BACKLOG


def logged(api: Application, log: Callable[[str], object]) -> Application:
    """Return the same application, with a line of the log for each request that was answered.

    It has the time, the client's address, the request, the status of the answer (0 for none), and the
    milliseconds that it took. Nothing of the rows is in it.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await api(scope, receive, send)
        status, begin, when = 0, time.perf_counter(), datetime.now(UTC)

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await api(scope, receive, seen)
        finally:
            took = 1000 * (time.perf_counter() - begin)
            client = (scope["client"] or ("unknown",))[0]
            log(f"{when:%Y-%m-%dT%H:%M:%SZ} {client} {_request(scope)} {status} {took:.1f} ms")

    return call


def _request(scope: Scope) -> str:
    """Return method, path and options of a request as they were sent, on one line, cut where it is long."""
    options = b"?" + scope["query_string"] if scope["query_string"] else b""
    sent = (scope["raw_path"] + options).decode("ascii", "backslashreplace")
    text = "".join(c if c.isprintable() else "?" for c in f"{scope['method']} {sent}")
    return text[:LONGEST_LINE] + ("…" if len(text) > LONGEST_LINE else "")


class Connection(H11Protocol):
    """A connection that is closed where its client keeps the server waiting, or is one too many."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begin to wait for a request, or refuse the connection."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > room()[0]:
            transport.write(FULL)
            transport.close()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._wait()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Begin to wait for the client to take some of an answer."""
        self._wait()
        super().pause_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop()
        self._timer = self.loop.call_later(HEADERS, self._late, self._unsent())

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _unsent(self) -> int:
        """Return the bytes of answers that the client has not taken yet."""
        return self.transport.get_write_buffer_size()

    def _late(self, before: int) -> None:
        """Close the connection, unless its client takes an answer, or waits for one."""
        answer: Any = self.cycle
        if unsent := self._unsent():
            if unsent != before:
                self._wait()
                return
        elif answer is not None and not answer.response_complete:
            return
        self.transport.abort()
