"""Clients that do not read their answers, and slow bodies, use bounded memory of the API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import cast

import pytest
from starlette.types import Message

from codehub.api.app import CALLS_AT_ONCE
from codehub.api.services import Services
from codehub.asgi import uvicorn_protocol
from codehub.asgi.uvicorn_protocol import ApiProtocol
from codehub.domain.states import Role
from tests.integration.api.conftest import Api
from tests.integration.api.test_event_memory import another_session, insert_many_workspaces
from tests.integration.api.test_events import ServedApi, served
from tests.waiting import PATIENCE, until

__all__ = ["served"]

LARGE = "/api/v1/workspaces?limit=200"
"""An answer of about 1 MB."""
CALLS = 3 * CALLS_AT_ONCE


class UnreadCalls:
    """Calls of alice for a large answer, of which her clients read nothing."""

    def __init__(self, served: ServedApi, session_id: str, stack: AsyncExitStack) -> None:
        self.served = served
        self.session_id = session_id
        self.stack = stack
        self.readers: list[asyncio.StreamReader] = []

    async def call(self) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_unix_connection(str(self.served.socket), limit=1024)
        self.stack.callback(writer.close)
        head = f"GET {LARGE} HTTP/1.1\r\nHost: x\r\nCookie: session={self.session_id}\r\n\r\n"
        writer.write(head.encode())
        self.readers.append(reader)
        return reader

    @property
    def services(self) -> Services:
        return cast(Services, self.served.server.config.app.state.services)  # type: ignore[union-attr]

    @property
    def blocked(self) -> list[ApiProtocol]:
        """The connections with an answer in the memory of the API."""
        found = self.served.server.server_state.connections
        return [
            item for item in found if isinstance(item, ApiProtocol) and item.transport.get_write_buffer_size()
        ]

    @property
    def admitted(self) -> int:
        """Calls that run or wait."""
        state = self.services.calls_per_user._keys.get(self.served.api.ids["alice"])
        return state.admitted if state else 0


@pytest.fixture
async def unread(served: ServedApi) -> AsyncIterator[UnreadCalls]:
    await served.api.quick_client("alice", Role.USER)
    await insert_many_workspaces(served.api, "alice", 200)
    async with AsyncExitStack() as stack:
        yield UnreadCalls(served, await another_session(served.api, "alice"), stack)


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return await reader.readexactly(length)


async def test_a_call_keeps_its_slot_until_its_answer_is_read(unread: UnreadCalls) -> None:
    for _ in range(CALLS):
        await unread.call()
    await until(
        lambda: (
            len(unread.blocked) == CALLS
            or (unread.admitted == CALLS and len(unread.blocked) == CALLS_AT_ONCE)
        ),
        "the answers to block",
    )
    assert len(unread.blocked) == CALLS_AT_ONCE
    assert unread.services.engine.pool.checkedout() == 0, "no connection is held while an answer is sent"  # type: ignore[attr-defined]
    bob = await unread.served.api.quick_client("bob", Role.USER)
    assert (await bob.get("/api/v1/session")).status_code == 200

    answers = await asyncio.gather(*map(read_answer, unread.readers))
    assert {answer.count(b'"description"') for answer in answers} == {200}
    await until(lambda: not unread.admitted, "the slots to be free")


async def test_a_client_that_reads_nothing_loses_its_connection_and_its_slot(
    unread: UnreadCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "STALL_SECONDS", 0.2)
    for _ in range(CALLS):
        await unread.call()
    await until(lambda: unread.admitted, "the calls to begin")
    await until(lambda: not unread.admitted, "the slots to be free")
    assert not unread.blocked
    await until(lambda: not unread.served.server.server_state.tasks, "no call to be left")


async def test_a_client_that_reads_slowly_gets_its_whole_answer(unread: UnreadCalls) -> None:
    reader = await unread.call()
    await until(lambda: unread.blocked, "the answer to block")
    (connection,) = unread.blocked
    unsent = connection.transport.get_write_buffer_size()
    while connection.transport.get_write_buffer_size() == unsent:
        await asyncio.wait_for(reader.read(512), PATIENCE)
    assert unread.blocked, "the answer is larger than what a socket holds"
    connection._check_progress()  # as the timer does
    assert not connection.transport.is_closing()
    while await asyncio.wait_for(reader.read(65536), PATIENCE) and unread.admitted:
        pass
    await until(lambda: not unread.admitted, "the answer to be sent")
    assert not connection.transport.is_closing() and connection._progress_check is None


async def test_a_client_that_stops_in_the_middle_is_disconnected(unread: UnreadCalls) -> None:
    await unread.call()
    await until(lambda: unread.blocked, "the answer to block")
    (connection,) = unread.blocked

    def is_closed() -> bool:
        connection._check_progress()  # as the timer does
        return connection.transport.is_closing()

    await until(is_closed, "a check without progress")
    await until(lambda: not unread.admitted, "the slot to be free")
    metrics = unread.served.server.config.app.state.metrics  # type: ignore[union-attr]
    assert metrics.limited.labels("slow_reader")._value.get() == 1


async def test_unfinished_bodies_of_a_user_occupy_slots(api: Api) -> None:
    """A body was read before, and its parsed form kept, while the call waited for its slot."""
    alice = await api.quick_client("alice", Role.USER)
    read, end = set[int](), asyncio.Event()
    statuses: list[int] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/workspaces",
        "query_string": b"",
        "headers": [(b"cookie", f"session={alice.cookies['session']}".encode())],
    }

    async def call(number: int) -> None:
        async def receive() -> Message:
            read.add(number)
            await end.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await api.app(dict(scope), receive, send)

    calls = [asyncio.create_task(call(number)) for number in range(CALLS)]
    slots = api.app.state.services.calls_per_user
    await until(lambda: any(state.admitted == CALLS for state in slots._keys.values()), "all to be admitted")
    await until(lambda: len(read) >= CALLS_AT_ONCE, "the first bodies to be read")
    assert len(read) == CALLS_AT_ONCE
    end.set()
    await asyncio.gather(*calls)
    assert statuses == [422] * CALLS and not slots._keys


async def test_a_call_without_a_session_is_answered_before_its_body_arrives(served: ServedApi) -> None:
    reader, writer = await asyncio.open_unix_connection(str(served.socket))
    head = b"POST /api/v1/workspaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head + b"8000\r\n" + b"x" * 0x8000)
    async with asyncio.timeout(PATIENCE):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    writer.close()
