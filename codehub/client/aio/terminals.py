"""Terminals of commands, over a WebSocket that is opened again when it breaks."""

import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from codehub.client.aio.calls import AsyncCalls
from codehub.client.aio.io import AsyncEvent, sleep
from codehub.client.errors import CodehubError, ConnectionFailed, UnexpectedAnswer
from codehub.client.models import (
    TerminalEnded,
    TerminalEvent,
    TerminalOutput,
    TerminalSkipped,
    TerminalWriter,
)
from codehub.client.requests import CONNECT_SECONDS, Request, query_of
from codehub.client.retries import is_passing

if TYPE_CHECKING:
    from codehub.client.aio.websocket import AsyncWebSocket

INPUT_BYTES = 32 << 10
"""In one message. The server takes 64 KiB."""


class AsyncTerminal:
    """A command's terminal. Iterate over it to get its output and what happens to it.

    If the connection breaks, it is opened again, and the output goes on with the last screenful:
    TerminalOutput says so with `is_repeated`. Input that was under way may be lost then.
    """

    def __init__(self, calls: AsyncCalls, path: str, *, readonly: bool) -> None:
        self._calls = calls
        self._request = Request(
            "GET", path, query_of(readonly=readonly or None), seconds=CONNECT_SECONDS, is_repeatable=True
        )
        self._socket: AsyncWebSocket | None = None
        self._is_open = AsyncEvent()
        self._is_over = False
        self._size: tuple[int, int] | None = None

    async def __aenter__(self) -> "AsyncTerminal":
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Detach. The command goes on."""
        self._is_over = True
        self._is_open.set()
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def send(self, data: bytes) -> None:
        """Send input. While the connection is broken, it waits for the next one."""
        for start in range(0, len(data), INPUT_BYTES):
            await self._send(data[start : start + INPUT_BYTES])

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal, also of later connections."""
        self._size = rows, cols
        await self._send(_size_message(rows, cols))

    async def _send(self, message: str | bytes) -> None:
        while not self._is_over:
            await self._is_open.wait()
            socket = self._socket
            if socket is None:
                break
            with suppress(ConnectionFailed):
                await socket.send(message)
                return
            await self._lose(socket)
        raise ConnectionFailed("The terminal is closed.")

    async def __aiter__(self) -> AsyncGenerator[TerminalEvent, None]:
        """Yield output and changes until the command ends."""
        is_repeated = False
        backoff = self._calls.reconnects()
        while not self._is_over:
            socket = self._socket
            if socket is None:
                await self._connect()
                is_repeated = True
                continue
            try:
                event = _event(await socket.receive(), is_repeated)
            except ConnectionFailed as problem:
                if self._is_over:
                    return
                await self._lose(socket)
                await sleep(backoff.delay(problem))
                continue
            if event is None:
                continue
            if isinstance(event, TerminalOutput):
                is_repeated = False
                backoff.restart()
            self._is_over = isinstance(event, TerminalEnded)
            yield event

    async def _connect(self) -> None:
        backoff = self._calls.reconnects()
        while self._socket is None:
            try:
                self._socket = await self._calls.transport.open_websocket(self._request)
                break
            except CodehubError as problem:
                if not is_passing(problem):
                    await self._fail()
                    raise
                await self._delay(backoff.delay, problem)
        self._is_open.set()
        if self._size is not None:
            with suppress(ConnectionFailed):  # the next look at it finds that it is closed
                await self._socket.send(_size_message(*self._size))

    async def _delay(self, delay: Any, problem: CodehubError) -> None:
        try:
            seconds = delay(problem)
        except CodehubError:
            await self._fail()
            raise
        await sleep(seconds)

    async def _fail(self) -> None:
        """End what waits for a connection that will not come."""
        self._is_over = True
        self._is_open.set()

    async def _lose(self, socket: "AsyncWebSocket") -> None:
        if self._socket is socket:
            self._is_open.clear()
            self._socket = None
            await socket.close()


def _size_message(rows: int, cols: int) -> str:
    return json.dumps({"rows": rows, "cols": cols})


def _event(message: str | bytes, is_repeated: bool) -> TerminalEvent | None:
    """Return what a message says. Unknown texts are ignored: a newer server may send more."""
    if isinstance(message, bytes):
        return TerminalOutput(message, is_repeated)
    try:
        facts = json.loads(message)
    except ValueError as error:
        raise UnexpectedAnswer("The terminal sent a text that is not JSON.") from error
    if not isinstance(facts, dict):
        return None
    if isinstance(facts.get("writer"), bool):
        return TerminalWriter(facts["writer"])
    if isinstance(facts.get("offset"), int):
        return TerminalSkipped(facts["offset"])
    if isinstance(facts.get("state"), str):
        code = facts.get("exit_code")
        return TerminalEnded(facts["state"], code if isinstance(code, int) else None)
    return None
