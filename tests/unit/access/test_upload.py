"""Work for a call that sends a body ends with what the call depends on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.requests import ClientDisconnect, Request

from codehub.access.open_readers import OpenReaders
from codehub.access.services import AccessServices
from codehub.access.upload import unless_ended
from codehub.asgi.uvicorn_protocol import _EXTENSION
from codehub.database.credentials import Credential

CALLER = cast(Credential, SimpleNamespace(user_id="u1"))


class Revocations:
    """Keeps what to call when the credential ends."""

    def __init__(self) -> None:
        self.ends: list[Callable[[], None]] = []

    @contextmanager
    def watch(self, _credential: Credential, ended: Callable[[], None]) -> Iterator[None]:
        self.ends.append(ended)
        yield


async def test_stalled_work_ends_with_its_credential() -> None:
    revocations = Revocations()
    services = cast(
        AccessServices, SimpleNamespace(readers=OpenReaders(), credential_revocations=revocations)
    )
    stalled = asyncio.Event()
    request = Request({"type": "http", "extensions": {}})

    async def revoke() -> None:
        while not revocations.ends:
            await asyncio.sleep(0)
        revocations.ends[0]()

    with pytest.raises(ClientDisconnect):
        await asyncio.gather(unless_ended(request, services, CALLER, stall(stalled)), revoke())
    assert stalled.is_set(), "the work was cancelled"


async def test_stalled_work_ends_with_a_client_from_which_nothing_is_read() -> None:
    services = cast(
        AccessServices, SimpleNamespace(readers=OpenReaders(), credential_revocations=Revocations())
    )
    stalled = asyncio.Event()
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=theirs)
    transport = cast(asyncio.ReadTransport, writer.transport)
    transport.pause_reading()
    ours.sendall(b"more of the body")
    ours.close()
    request = Request({"type": "http", "extensions": {_EXTENSION: {"transport": transport}}})
    with pytest.raises(ClientDisconnect):
        await unless_ended(request, services, CALLER, stall(stalled))
    assert stalled.is_set(), "the work was cancelled"
    writer.transport.abort()


async def stall(cancelled: asyncio.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()
