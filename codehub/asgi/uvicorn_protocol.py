"""uvicorn's HTTP protocol, which disconnects clients that do not read their answers."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION: Final = "codehub.transport"
STALL_SECONDS: Final = 60.0
"""Time in which a client must read something of its answer.

The gateway passes on up to 256 KiB at a time, so its slowest client reads 35 kbit/s.
"""


class ApiProtocol(HttpToolsProtocol):
    """HTTP protocol that aborts the connection of a client that stops reading.

    A slow client gets its whole answer, however long that takes. uvicorn has no such timeout, and ASGI
    cannot drop a connection: uvicorn closes it only after the client has read what is buffered.
    """

    def __init__(self, *args: Any, on_stall: Callable[[], object] = lambda: None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_stall = on_stall
        self._unsent = 0
        self._progress_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.transport.set_write_buffer_limits(high=0)  # `send` waits until the previous message is written

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = with_transport({}, self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._check_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_check()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_check()
        super().connection_lost(exc)

    def _check_later(self) -> None:
        self._end_check()
        self._unsent = self.transport.get_write_buffer_size()
        self._progress_check = self.loop.call_later(STALL_SECONDS, self._check_progress)

    def _check_progress(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._check_later()
        else:
            self._on_stall()
            self.transport.abort()

    def _end_check(self) -> None:
        if self._progress_check is not None:
            self._progress_check.cancel()
            self._progress_check = None


def with_transport(extensions: dict[str, Any], transport: asyncio.Transport) -> dict[str, Any]:
    """Return the extensions of a scope with the connection, for `transport_of`."""
    return {**extensions, _EXTENSION: {"transport": transport}}


def transport_of(scope: Scope) -> asyncio.Transport | None:
    """Return the connection of a request, or None where the application is called without a server."""
    transport: asyncio.Transport | None = scope.get("extensions", {}).get(_EXTENSION, {}).get("transport")
    return transport
