"""Fifty opens at once: never more than the limit allows, and one wish however many tabs."""

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from html import unescape

import pytest
import pytest_asyncio
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.clock import utc_now
from codehub.database import accounts, gate, installation, sessions
from codehub.database.engine import create_engine
from codehub.database.tables import timeline, workspaces
from codehub.domain.audit import CLI
from codehub.domain.limits import Limits
from codehub.domain.states import DesiredState
from tests.integration.gateway.harness import NAVIGATE, Client, status
from tests.services import Services, free_port
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


class FrontDoor:
    """A user before a gateway of `codehub serve`, and the database behind it."""

    def __init__(self, engine: AsyncEngine, user_id: str, session: str, port: int) -> None:
        self.engine = engine
        self._user_id = user_id
        self._session = session
        self._port = port

    async def asleep(self, name: str) -> str:
        """A new workspace in STANDBY."""
        async with self.engine.begin() as conn:
            made = await gate.create(
                conn, owner_id=self._user_id, name=name, description="", image_ref="code-server",
                standby_ttl=None, archive_ttl=None, desired=DesiredState.STANDBY, actor="alice",
                limits=Limits(2, 100), backends=gate.Backends("process", "local-dir"), now=utc_now(),
            )  # fmt: skip
            await conn.execute(update(workspaces).where(workspaces.c.id == made.id).values(phase="STANDBY"))
        return made.id

    async def open(self, workspace_id: str) -> tuple[int, str]:
        """A navigation: its status, and its page."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        client.send(
            f"GET /w/{workspace_id}/ HTTP/1.1\r\nHost: localhost:{self._port}\r\n"
            f"Cookie: session={self._session}\r\n{NAVIGATE}\r\n"
        )
        head, body = await client.response()
        client.close()
        return status(head), body.decode()

    async def press(self, action: str) -> int:
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        client.send(
            f"POST {action} HTTP/1.1\r\nHost: localhost:{self._port}\r\nOrigin: http://localhost:{self._port}\r\n"
            f"Cookie: session={self._session}\r\nContent-Length: 0\r\n\r\n"
        )
        head, _ = await client.response()
        client.close()
        return status(head)


@dataclass(frozen=True)
class Served:
    """`codehub serve gateway` with two workers, on a real PostgreSQL."""

    engine: AsyncEngine
    port: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(services: Services, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    url, port = await services.migrated_database(), free_port()
    engine = create_engine(url)
    await installation.ensure(engine, "01installation000000000000", 2_000_000)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "codehub.cli.serve", "gateway",
        env={
            "PATH": os.environ["PATH"], "DATABASE_URL": url, "REDIS_URL": services.redis.url,
            "CODEHUB_DATA_DIR": str(tmp_path_factory.mktemp("data")), "PORT": str(port),
            "GATEWAY_WORKERS": "2", "LOG_LEVEL": "error",
        },
    )  # fmt: skip
    try:
        await until(lambda: process.returncode is not None or _listens(port), "the gateway to listen")
        assert process.returncode is None
        yield Served(engine, port)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)
        await engine.dispose()
        await services.drop_database(url)


@pytest_asyncio.fixture(loop_scope="module")
async def front_door(served: Served, request: pytest.FixtureRequest) -> FrontDoor:
    """A user of each test's own."""
    name = request.node.name[5:25].replace("_", "-")
    account = await accounts.create_account(served.engine, name, "password!", actor=CLI, now=utc_now())
    async with served.engine.begin() as conn:
        session = await sessions.open_session(conn, account.id, utc_now())
    return FrontDoor(served.engine, account.id, session, served.port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_fifty_opens_at_once_wake_no_more_than_the_limit_allows(front_door: FrontDoor) -> None:
    asleep = [await front_door.asleep(f"number {n}") for n in range(50)]
    strangers = await asyncio.gather(*(front_door.open("0" * 26) for _ in range(40)))
    assert {code for code, _ in strangers} == {404}  # every connection to the database is open by now
    pages = await asyncio.gather(*(front_door.open(workspace_id) for workspace_id in asleep))
    loading = [body for code, body in pages if code == 200]
    refused = [body for code, body in pages if code == 502]
    assert (len(loading), len(refused)) == (2, 48)
    assert all("<progress" in body for body in loading)
    assert all("Too many workspaces are running" in body for body in refused)
    running = select(workspaces.c.id).where(
        workspaces.c.desired_state == "RUNNING", workspaces.c.id.in_(asleep)
    )
    async with front_door.engine.connect() as conn:
        wished = (await conn.scalars(running)).all()
    assert len(wished) == 2
    _, again = await front_door.open(next(each for each in asleep if each not in wished))
    assert all(f"/api/v1/workspaces/{each}" in again for each in wished)  # each with its stop button

    stop = re.findall(r'action="([^"]+)"', again)[0]
    assert await front_door.press(unescape(stop)) == 303
    async with front_door.engine.connect() as conn:
        assert len((await conn.scalars(running)).all()) == 1


async def test_fifty_tabs_of_one_workspace_make_one_wish(front_door: FrontDoor) -> None:
    workspace_id = await front_door.asleep("only one")
    pages = await asyncio.gather(*(front_door.open(workspace_id) for _ in range(50)))
    assert {code for code, _ in pages} == {200}
    async with front_door.engine.connect() as conn:
        wishes = select(timeline.c.event).where(
            timeline.c.workspace_id == workspace_id, timeline.c.event != "created"
        )
        told = (await conn.scalars(wishes)).all()
    assert len(told) == 1
