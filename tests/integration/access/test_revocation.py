"""Calls that wait while their credential is revoked: they do nothing more."""

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractContextManager, AsyncExitStack
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text

from codehub.access import terminals
from codehub.access.app import AGENTS_PER_USER
from codehub.access.services import AccessServices
from codehub.clock import utc_now
from codehub.database import gate, tokens
from codehub.database.tables import execs, workspaces
from codehub.domain.states import Phase
from codehub.runtimes.process.commands import ProcessCommands
from codehub.runtimes.process.state_directory import LOG
from codehub.ulids import new_id
from tests.integration.access.test_authorization import (
    EXEC,
    EXECS,
    FILES,
    LOGS,
    Fixture,
    fixture,
    websocket_status,
)
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
        self.headers = {"Authorization": f"Bearer {secret}"}
        self.services: AccessServices = fixture.app.state.services
        self.workspace_id = fixture.workspace_id

    @classmethod
    async def of(cls, fixture: Fixture, phase: str) -> "Program":
        """Return a program whose workspace is in this phase."""
        await fixture.api.set(fixture.workspace_id, phase=phase, desired_state=phase)
        return cls(fixture, *await fixture.api.token("owner", "use"))

    async def post(self, url: str, **body: object) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._fixture.app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=self.headers) as client:
            path = url.format(workspace_id=self._fixture.workspace_id)
            return await asyncio.wait_for(client.post(path, json=body), PATIENCE)

    async def get(self, url: str, **query: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._fixture.app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=self.headers) as client:
            path = url.format(workspace_id=self._fixture.workspace_id)
            return await asyncio.wait_for(client.get(path, params=query), PATIENCE)

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


async def test_logs_are_not_followed_if_their_credential_ends_before_it_is_watched(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = await Program.of(fixture, "RUNNING")
    has_logs = program.services.commands.has_logs

    async def revoke_first(workspace_id: str) -> bool:
        await program.revoke()
        return await has_logs(workspace_id)

    _begin_log(program)
    monkeypatch.setattr(program.services.commands, "has_logs", revoke_first)
    await unauthorized(program.get(LOGS, follow=True))


async def test_a_terminal_does_not_open_if_its_credential_ends_before_it_is_watched(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = await Program.of(fixture, "RUNNING")

    async def revoke_first(*_arguments: object) -> tuple[object, object]:
        await program.revoke()
        running = SimpleNamespace(phase=Phase.RUNNING)
        return running, SimpleNamespace(id=new_id(), tty=True, output_removed=False)

    monkeypatch.setattr(terminals, "find_own_exec", revoke_first)
    url = f"{EXEC}/attach".format(workspace_id=fixture.workspace_id, exec_id=new_id())
    assert await websocket_status(fixture.app, url, program.headers) == 401


def _begin_log(program: Program) -> None:
    commands = program.services.commands
    assert isinstance(commands, ProcessCommands)
    directory = commands.workspace_directory(program.workspace_id)
    directory.mkdir(parents=True)
    (directory / LOG).write_text("line\n")


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
