"""Calls that wait while their credential is revoked: they do nothing more."""

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractContextManager, AsyncExitStack

import httpx
from sqlalchemy import select, text

from codehub.access.app import AGENTS_PER_USER
from codehub.access.services import AccessServices
from codehub.clock import utc_now
from codehub.database import gate, tokens
from codehub.database.tables import execs, workspaces
from tests.integration.access.test_authorization import EXECS, FILES, Fixture, fixture
from tests.integration.api.conftest import BASE
from tests.waiting import PATIENCE, eventually, until

__all__ = ["fixture"]
WAITING = """
    SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


class Program:
    """A program of the owner, with a token of its own."""

    def __init__(self, fixture: Fixture, token_id: str, secret: str) -> None:
        self._fixture = fixture
        self._token_id = token_id
        self._headers = {"Authorization": f"Bearer {secret}"}
        self.services: AccessServices = fixture.app.state.services

    @classmethod
    async def of(cls, fixture: Fixture, phase: str) -> "Program":
        """Return a program whose workspace is in this phase."""
        await fixture.api.set(fixture.workspace_id, phase=phase, desired_state=phase)
        return cls(fixture, *await fixture.api.token("owner", "use"))

    async def post(self, url: str, **body: object) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._fixture.app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=self._headers) as client:
            path = url.format(workspace_id=self._fixture.workspace_id)
            return await asyncio.wait_for(client.post(path, json=body), PATIENCE)

    async def revoke(self) -> None:
        async with self.services.engine.begin() as conn:
            assert await tokens.revoke_token(conn, self._fixture.api.ids["owner"], self._token_id)


async def unauthorized(call: Awaitable[httpx.Response]) -> None:
    answer = await call
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "UNAUTHORIZED"), answer.text


async def test_a_call_that_waits_for_its_workspace_ends(fixture: Fixture) -> None:
    program = await Program.of(fixture, "STANDBY")
    call = asyncio.create_task(program.post(EXECS, command="true", wake=True, wake_timeout_seconds=20))

    async def desired_state() -> str:
        async with program.services.engine.connect() as conn:
            return str(await conn.scalar(select(workspaces.c.desired_state)))

    await eventually(desired_state, "the start to be requested", lambda state: state == "RUNNING")
    await program.revoke()
    await fixture.api.set(fixture.workspace_id, phase="RUNNING")
    await unauthorized(call)


async def test_a_command_whose_row_waits_for_a_lock_does_not_start(fixture: Fixture) -> None:
    program = await Program.of(fixture, "RUNNING")
    engine = program.services.engine

    async def waiting_for_locks() -> int:
        async with engine.connect() as conn:
            return int(await conn.scalar(text(WAITING)) or 0)

    async with engine.begin() as conn:
        await gate.lock_workspace(conn, fixture.workspace_id)
        call = asyncio.create_task(program.post(EXECS, command="true"))
        await eventually(waiting_for_locks, "the call to wait", lambda waiting: waiting == 1)
        await program.revoke()
    await unauthorized(call)
    async with engine.connect() as conn:
        assert (await conn.execute(select(execs.c.id))).all() == []


async def test_a_file_that_waits_behind_others_is_not_moved(fixture: Fixture) -> None:
    program = await Program.of(fixture, "RUNNING")
    limit, owner = program.services.agents_per_user, fixture.api.ids["owner"]
    async with AsyncExitStack() as stack:
        for _ in range(AGENTS_PER_USER):
            await stack.enter_async_context(limit.slot(owner))
        call = asyncio.create_task(program.post(f"{FILES}/move", path="a", to="b"))
        await until(lambda: limit._keys[owner].admitted > AGENTS_PER_USER, "the call to wait")
        await program.revoke()
    await unauthorized(call)


async def test_a_stream_ends_with_its_workspace_and_not_with_another_or_a_new_phase(fixture: Fixture) -> None:
    watchers = fixture.app.state.services.workspace_watchers
    owner, workspace_id = fixture.api.ids["owner"], fixture.workspace_id
    ended: set[str] = set()
    elsewhere = (await fixture.api.workspace(await fixture.api.token_client("owner", "manage")))["id"]

    def watch(name: str, workspace: str) -> AbstractContextManager[None]:
        watching: AbstractContextManager[None] = watchers.watch(
            workspace, lambda changed: changed.owner_id != owner, lambda: ended.add(name)
        )
        return watching

    with watch("first", workspace_id), watch("elsewhere", elsewhere):
        await fixture.api.set(workspace_id, phase="RUNNING")
        await fixture.api.set(workspace_id, owner_id=fixture.api.ids["other"])
        await until(lambda: ended == {"first"}, "the stream to end with the change of the owner")
        await fixture.api.set(elsewhere, deleted_at=utc_now(), desired_state="DELETED")
        await until(lambda: ended == {"first", "elsewhere"}, "the stream to end with the workspace")
    assert watchers._watchers == {}
