"""A file agent in a thread, on a directory of the test, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from codehub.runtimes.files import agent
from codehub.runtimes.files.client import FileSession
from codehub.runtimes.files.connection import READ_LIMIT, AgentConnection


@contextlib.asynccontextmanager
async def file_session(home: Path) -> AsyncIterator[FileSession]:
    """Serve a directory as its home, for as long as the context lasts."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_serve, args=(theirs, home), daemon=True)
    thread.start()
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=READ_LIMIT)
    connection = AgentConnection(reader, writer)
    assert (await connection.receive_message())["greeting"]
    try:
        yield FileSession(connection)
    finally:
        connection.close()
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive(), "the agent ends with its client"


def _serve(connection: socket.socket, home: Path) -> None:
    with connection:
        agent.serve(connection, bytes(home))


async def chunks(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


async def content(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])
