"""Connection to a file agent, from the platform's side.

Nothing that the agent sends is trusted: its process belongs to the workspace's user. Every length
and every wait is bounded, and every field is checked.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from codehub.runtimes.base import output_excerpt
from codehub.runtimes.files.names import InvalidName, percent_decode
from codehub.runtimes.files.protocol import (
    ALIVE,
    END,
    ERROR,
    HEADER,
    MAX_DATA,
    MAX_PAYLOAD,
    MESSAGE,
    FileCode,
    FileFacts,
    FileKind,
    FileRefused,
    SearchMatch,
)

IDLE_SECONDS = 60.0
"""How long an agent may send nothing while it works, or take nothing that it is sent."""
READ_LIMIT: Final = MAX_DATA
_ETAG = re.compile(r"[0-9a-f-]{1,100}", re.ASCII)
_HIGHEST = (1 << 63) - 1
_HIGHEST_MODE = 0o7777
_T = TypeVar("_T")


class AgentFailed(Exception):  # noqa: N818 - a fact, not a fault
    """The file agent ended, stalled or broke the protocol. The message is for the person who asked."""

    def __init__(self, message: str, *, stalled: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.stalled = stalled


class AgentConnection:
    """Frames of one agent. `idle_seconds` bounds each wait for it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._idle_seconds = idle_seconds

    def close(self) -> None:
        """Close the connection, which ends the agent at once."""
        self._writer.transport.abort()

    async def send_text(self, text: str) -> None:
        """Send the line that comes before all frames."""
        await self._write(text.encode())

    async def send(self, kind: bytes, payload: bytes = b"") -> None:
        await self._write(HEADER.pack(kind, len(payload)) + payload)

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            await self.within(self._writer.drain())
        except OSError as error:
            raise _ended() from error

    async def receive(self, *expected: bytes, patient: bool = False) -> tuple[bytes, bytes]:
        """Return the next frame, one of the expected kinds. An error of the agent is raised.

        `patient`: the agent itself may be waiting for us, so wait for any time.
        """
        while True:
            kind, payload = await (self._read_frame() if patient else self.within(self._read_frame()))
            if kind == ERROR:
                raise _error_of(payload)
            if kind in expected:
                return kind, payload
            if kind != ALIVE:
                raise broken_protocol()

    async def receive_message(self) -> dict[str, Any]:
        _, payload = await self.receive(MESSAGE)
        return parse_message(payload)

    async def receive_items(self, name: str, most: int) -> tuple[list[dict[str, Any]], bool]:
        """Return at most `most` items of messages up to the end, and whether there would be more."""
        items: list[dict[str, Any]] = []
        while True:
            kind, payload = await self.receive(MESSAGE, END)
            message = parse_message(payload)
            if kind == END:
                return items, field(message, "truncated", bool)
            batch = field(message, name, list)
            if len(items) + len(batch) > most or not all(isinstance(item, dict) for item in batch):
                raise broken_protocol()
            items += batch

    async def _read_frame(self) -> tuple[bytes, bytes]:
        try:
            kind, length = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            if length > MAX_PAYLOAD.get(kind, -1):
                raise broken_protocol()
            return kind, await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise _ended() from error

    async def within(self, work: Awaitable[_T]) -> _T:
        """Wait for the agent, but not for longer than it may be idle."""
        try:
            async with asyncio.timeout(self._idle_seconds):
                return await work
        except TimeoutError as error:
            raise AgentFailed(
                f"the workspace did not work on the file for {self._idle_seconds:g} s: it is overloaded, or "
                "its process was stopped. Try again",
                stalled=True,
            ) from error


def parse_message(payload: bytes) -> dict[str, Any]:
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise broken_protocol() from error
    if not isinstance(message, dict):
        raise broken_protocol()
    return message


def field(message: dict[str, Any], name: str, kind: type[_T]) -> _T:
    value = message.get(name)
    if type(value) is not kind:
        raise broken_protocol()
    return value


def facts_from(raw: dict[str, Any]) -> FileFacts:
    """Check the facts that an agent sends about a file."""
    etag = field(raw, "etag", str)
    if not _ETAG.fullmatch(etag):
        raise broken_protocol()
    return FileFacts(
        _name(raw, "path"),
        _kind(raw),
        _number(raw, "size", 0, _HIGHEST),
        _number(raw, "mode", 0, _HIGHEST_MODE),
        _number(raw, "mtime_ns", -_HIGHEST, _HIGHEST),
        etag,
        _name(raw, "target"),
    )


def match_from(raw: dict[str, Any]) -> SearchMatch:
    return SearchMatch(_name(raw, "path"), _kind(raw), _number(raw, "line", 0, _HIGHEST), _name(raw, "text"))


def count_from(raw: dict[str, Any], name: str) -> int:
    return _number(raw, name, 0, _HIGHEST)


def _name(raw: dict[str, Any], name: str) -> bytes:
    try:
        return percent_decode(field(raw, name, str))
    except InvalidName as error:
        raise broken_protocol() from error


def _kind(raw: dict[str, Any]) -> FileKind:
    try:
        return FileKind(field(raw, "kind", str))
    except ValueError as error:
        raise broken_protocol() from error


def _number(raw: dict[str, Any], name: str, lowest: int, highest: int) -> int:
    value = field(raw, name, int)
    if not lowest <= value <= highest:
        raise broken_protocol()
    return value


def _error_of(payload: bytes) -> Exception:
    raw = parse_message(payload)
    try:
        code = FileCode(field(raw, "code", str))
    except ValueError:
        return broken_protocol()
    return FileRefused(code, output_excerpt(field(raw, "message", str)))


def broken_protocol() -> AgentFailed:
    return AgentFailed("the workspace sent an answer that CodeHub does not understand: restart the workspace")


def _ended() -> AgentFailed:
    return AgentFailed("the workspace ended the operation: it has stopped, or has too little memory")
