"""Bounds on what one user makes the access part hold."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import select
from starlette.types import Message

from codehub.access.app import ANSWERS_AT_ONCE, STARTS_AT_ONCE
from codehub.database.tables import timeline
from codehub.domain.states import Role
from codehub.runtimes.command_runtime import CommandRefused, ExecRequest
from codehub.runtimes.files.client import FilesUnavailable
from tests.integration.access.test_authorization import EXECS, FILES, Fixture, fixture
from tests.waiting import until

__all__ = ["fixture"]


class SlowReaders:
    """Clients that do not read their answers until `read` is set."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture
        self.answered: list[int] = []
        self.read = asyncio.Event()

    async def get(self, path: str) -> None:
        async def receive() -> Message:
            await self.read.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answered.append(message["status"])
            await self.read.wait()

        headers = [(b"cookie", self._fixture.cookie("owner")["Cookie"].encode())]
        scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b"",
        }  # fmt: skip
        await self._fixture.app(scope, receive, send)


async def test_few_whole_answers_of_a_user_are_in_memory_at_a_time(fixture: Fixture) -> None:
    readers, path = SlowReaders(fixture), EXECS.format(workspace_id=fixture.workspace_id)
    calls = [asyncio.create_task(readers.get(path)) for _ in range(ANSWERS_AT_ONCE + 1)]
    await until(lambda: len(readers.answered) >= ANSWERS_AT_ONCE, "the first answers")
    for _ in range(3):
        status = await fixture.status("POST " + EXECS, **fixture.cookie("owner"))
        assert status == 409, "what has no long answer goes on"
    assert len(readers.answered) == ANSWERS_AT_ONCE
    readers.read.set()
    await asyncio.gather(*calls)
    assert readers.answered == [200] * (ANSWERS_AT_ONCE + 1)


class SlowStarts:
    """A runtime whose starts take a thread each, and fail once `end` is set."""

    def __init__(self) -> None:
        self.under_way: list[str] = []
        self.end = asyncio.Event()

    async def start_command(self, workspace_id: str, _request: ExecRequest) -> None:
        self.under_way.append(workspace_id)
        await self.end.wait()
        raise CommandRefused("the container is slow")

    async def find_command(self, _workspace_id: str, _exec_id: str) -> None:
        return None


async def test_few_commands_of_a_user_start_at_a_time_and_those_of_others_go_on(fixture: Fixture) -> None:
    """A start on Docker takes a thread, and a slow container keeps it."""
    starts = SlowStarts()
    fixture.app.state.services = replace(fixture.app.state.services, commands=starts)
    other = await fixture.api.quick_client("neighbour", Role.USER)
    fixture.cookies["neighbour"] = other.cookies["session"]
    theirs = replace(fixture, workspace_id=(await fixture.api.workspace(other))["id"])
    for each in (fixture, theirs):
        await fixture.api.set(each.workspace_id, phase="RUNNING", desired_state="RUNNING")
    post = "POST " + EXECS
    mine = [asyncio.create_task(fixture.status(post, **fixture.cookie("owner"))) for _ in range(20)]
    await until(lambda: len(starts.under_way) >= STARTS_AT_ONCE, "the first starts")
    their_call = asyncio.create_task(theirs.status(post, **fixture.cookie("neighbour")))
    await until(lambda: theirs.workspace_id in starts.under_way, "the start of another user")
    assert starts.under_way.count(fixture.workspace_id) == STARTS_AT_ONCE
    starts.end.set()
    assert set(await asyncio.gather(*mine, their_call)) == {409}
    assert len(starts.under_way) == 21, "the others waited"


class NoFiles:
    @asynccontextmanager
    async def open_files(self, _workspace_id: str) -> AsyncIterator[None]:
        raise FilesUnavailable("the workspace has no files")
        yield


async def test_the_timeline_tells_once_an_hour_that_a_token_changes_files(fixture: Fixture) -> None:
    fixture.app.state.services = replace(fixture.app.state.services, files=NoFiles())
    await fixture.api.set(fixture.workspace_id, phase="RUNNING", desired_state="RUNNING")
    token = await fixture.bearer("owner", "use")
    for headers in (fixture.cookie("owner"), *[token] * 3):
        for call in (f"PUT {FILES}/content", f"DELETE {FILES}/content", f"GET {FILES}/content"):
            await fixture.status(call, **headers)
    c = timeline.c
    query = select(c.actor).where(c.workspace_id == fixture.workspace_id, c.event == "files-changed")
    async with fixture.api.engine.connect() as conn:
        assert list(await conn.scalars(query)) == ["owner (token ci)"]
