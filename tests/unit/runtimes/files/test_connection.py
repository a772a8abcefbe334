"""The platform's side of a file agent that lies, stalls or ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codehub.runtimes.files.client import FileSession
from codehub.runtimes.files.connection import AgentFailed
from codehub.runtimes.files.protocol import (
    ALIVE,
    DATA,
    END,
    ERROR,
    GREETING,
    HEADER,
    MESSAGE,
    FileRefused,
    ListRequest,
    SearchRequest,
    WriteRequest,
)
from tests.file_agents import chunks, content

IDLE = 0.3
FACTS = {"path": "", "kind": "file", "size": 4, "mode": 420, "mtime_ns": 0, "etag": "1-2", "target": ""}


def frame(kind: bytes, payload: bytes | dict[str, Any] = b"") -> bytes:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return HEADER.pack(kind, len(data)) + data


@contextlib.asynccontextmanager
async def lying_agent(tmp_path: Path, *answers: bytes, then_end: bool = False) -> AsyncIterator[FileSession]:
    """Greet, and answer whatever comes with these bytes."""
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readline()
        writer.write(frame(MESSAGE, {"greeting": GREETING}))
        await reader.read(5)
        for answer in answers:
            writer.write(answer)
        if then_end:
            writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "socket")
    try:
        async with FileSession.connect(str(tmp_path / "socket"), IDLE) as session:
            yield session
    finally:
        server.close()
        for each in connections:
            each.close()


async def fails(tmp_path: Path, *answers: bytes, message: str = "does not understand") -> None:
    async with lying_agent(tmp_path, *answers) as session:
        with pytest.raises(AgentFailed, match=message):
            facts = await session.open(b"x")
            await content(session.read(0, facts.size))


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1}, {"size": "4"}, {"size": True}, {"size": 1 << 64}, {"mode": 0o10000}, {"kind": "door"},
        {"etag": 'x"\r\nSet-Cookie: a=b'}, {"etag": ""}, {"etag": "1" * 101}, {"path": "%zz"}, {"path": 5},
        {"path": "a" * 20_000}, {"target": None}, {"mtime_ns": 1.5},
    ],
)  # fmt: skip
async def test_facts_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    await fails(tmp_path, frame(MESSAGE, {"facts": {**FACTS, **change}}))


@pytest.mark.parametrize(
    "answer",
    [
        HEADER.pack(MESSAGE, 1 << 30),
        HEADER.pack(DATA, (256 << 10) + 1),
        HEADER.pack(ALIVE, 1),
        HEADER.pack(b"?", 0),
        frame(DATA, b"x"),
        frame(MESSAGE, b"[]"),
        frame(MESSAGE, b"[" * 60_000),
        frame(MESSAGE, b"{not json"),
        frame(MESSAGE, {"facts": []}),
        frame(ERROR, {"code": "unheard", "message": "x"}),
        frame(ERROR, {"code": "failed", "message": 5}),
    ],
)
async def test_frames_that_break_the_protocol_are_refused(tmp_path: Path, answer: bytes) -> None:
    await fails(tmp_path, answer)


@pytest.mark.parametrize(
    "data",
    [
        [frame(DATA, b"12345"), frame(END, {})],
        [frame(DATA, b"123"), frame(END, {})],
        [frame(DATA, b""), frame(END, {})],
        [frame(DATA, b"12"), frame(MESSAGE, {})],
    ],
)
async def test_content_of_another_length_than_announced_is_an_error(
    tmp_path: Path, data: list[bytes]
) -> None:
    await fails(tmp_path, frame(MESSAGE, {"facts": FACTS}), *data)


async def test_an_agent_that_stalls_or_ends_is_an_error_in_bounded_time(tmp_path: Path) -> None:
    await fails(tmp_path, message="did not work on the file")
    (tmp_path / "socket").unlink(missing_ok=True)
    await fails(tmp_path, HEADER.pack(MESSAGE, 10)[:3], message="did not work on the file")
    (tmp_path / "socket").unlink(missing_ok=True)
    async with lying_agent(tmp_path, then_end=True) as session:
        with pytest.raises(AgentFailed, match="ended the operation"):
            await session.open(b"x")


async def test_an_agent_that_takes_no_data_is_an_error_in_bounded_time(tmp_path: Path) -> None:
    async with lying_agent(tmp_path, frame(MESSAGE, {"ready": True})) as session:
        with pytest.raises(AgentFailed, match="did not work on the file"):
            await session.write(WriteRequest(b"x"), chunks(*[bytes(1 << 20)] * 100))


async def test_lists_are_bounded_whatever_the_agent_sends(tmp_path: Path) -> None:
    many = frame(MESSAGE, {"entries": [FACTS] * 300, "matches": [{}] * 300})
    async with lying_agent(tmp_path, *[many] * 40) as session:
        with pytest.raises(AgentFailed, match="does not understand"):
            await session.list(ListRequest(b""))
    (tmp_path / "socket").unlink(missing_ok=True)
    async with lying_agent(tmp_path, *[many] * 4) as session:
        with pytest.raises(AgentFailed, match="does not understand"):
            await session.search(SearchRequest(b"", b"x", contents=False))


@pytest.mark.parametrize("answer", [{"entries": [5]}, {"entries": {}}, {"entries": [{"path": ""}]}])
async def test_entries_that_are_none_are_refused(tmp_path: Path, answer: dict[str, Any]) -> None:
    async with lying_agent(tmp_path, frame(MESSAGE, answer), frame(END, {"truncated": False})) as session:
        with pytest.raises(AgentFailed, match="does not understand"):
            await session.list(ListRequest(b""))


async def test_the_text_of_an_error_is_fit_to_be_shown(tmp_path: Path) -> None:
    error = frame(ERROR, {"code": "failed", "message": "a\0b\x1b[31m" + "x" * 5000})
    async with lying_agent(tmp_path, error) as session:
        with pytest.raises(FileRefused) as refusal:
            await session.open(b"x")
    assert len(refusal.value.message) <= 2000
    assert "\0" not in refusal.value.message and "\x1b" not in refusal.value.message
