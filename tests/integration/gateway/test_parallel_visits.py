"""Fifty visits at once never exceed the limit, and tabs of one workspace cause one start."""

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
from codehub.domain.states import DesiredState
from codehub.domain.user_limits import Limits
from tests.integration.gateway.harness import NAVIGATE, Client, status
from tests.services import Services, free_port
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Visitor:
    """User of a gateway of `codehub serve`, with access to its database."""

    def __init__(self, engine: AsyncEngine, user_id: str, session: str, port: int) -> None:
        self.engine = engine
        self._user_id = user_id
        self._session = session
        self._port = port

    async def create_standby(self, name: str) -> str:
        """Create a workspace in STANDBY, and return its id."""
        async with self.engine.begin() as conn:
            made = await gate.create(
                conn, owner_id=self._user_id, name=name, description="", image_ref="code-server",
                standby_ttl=None, archive_ttl=None, desired=DesiredState.STANDBY, actor="alice",
                limits=Limits(2, 100), backends=gate.Backends("process", "local-dir"), now=utc_now(),
            )  # fmt: skip
            await conn.execute(update(workspaces).where(workspaces.c.id == made.id).values(phase="STANDBY"))
        return made.id

    async def open(self, workspace_id: str) -> tuple[int, str]:
        """Navigate to a workspace. Return the status and the page."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        client.send(
            f"GET /w/{workspace_id}/ HTTP/1.1\r\nHost: localhost:{self._port}\r\n"
            f"Cookie: session={self._session}\r\n{NAVIGATE}\r\n"
        )
        head, body = await client.response()
        client.close()
        return status(head), body.decode()

    async def press(self, action: str) -> int:
        """Submit a form without fields. Return the status."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        client.send(
            f"POST {action} HTTP/1.1\r\nHost: localhost:{self._port}\r\nOrigin: http://localhost:{self._port}\r\n"
            f"Cookie: session={self._session}\r\nContent-Length: 0\r\n\r\n"
        )
        head, _ = await client.response()
        client.close()
        return status(head)


@dataclass(frozen=True)
class ServedGateway:
    """`codehub serve gateway` with two workers, on a real PostgreSQL."""

    engine: AsyncEngine
    port: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    services: Services, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServedGateway]:
    url, port = await services.migrated_database(), free_port()
    engine = create_engine(url)
    await installation.load_or_create_installation(engine, "01installation000000000000", 2_000_000)
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
        yield ServedGateway(engine, port)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)
        await engine.dispose()
        await services.drop_database(url)


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(served: ServedGateway, request: pytest.FixtureRequest) -> Visitor:
    """A new user for each test."""
    name = request.node.name[5:25].replace("_", "-")
    account = await accounts.create_account(served.engine, name, "password!", actor=CLI, now=utc_now())
    async with served.engine.begin() as conn:
        session = await sessions.open_session(conn, account.id, utc_now())
    return Visitor(served.engine, account.id, session, served.port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_fifty_visits_at_once_wake_no_more_workspaces_than_the_limit(visitor: Visitor) -> None:
    standby = [await visitor.create_standby(f"number {n}") for n in range(50)]
    unknown = await asyncio.gather(*(visitor.open("0" * 26) for _ in range(40)))
    assert {code for code, _ in unknown} == {404}  # opens every connection to the database
    pages = await asyncio.gather(*(visitor.open(workspace_id) for workspace_id in standby))
    loading = [body for code, body in pages if code == 200]
    refused = [body for code, body in pages if code == 502]
    assert (len(loading), len(refused)) == (2, 48)
    assert all("<progress" in body for body in loading)
    assert all("Too many workspaces are running" in body for body in refused)
    running = select(workspaces.c.id).where(
        workspaces.c.desired_state == "RUNNING", workspaces.c.id.in_(standby)
    )
    async with visitor.engine.connect() as conn:
        started = (await conn.scalars(running)).all()
    assert len(started) == 2
    _, page = await visitor.open(next(each for each in standby if each not in started))
    assert all(f"/api/v1/workspaces/{each}" in page for each in started)  # each with its stop button

    stop = re.findall(r'action="([^"]+)"', page)[0]
    assert await visitor.press(unescape(stop)) == 303
    async with visitor.engine.connect() as conn:
        assert len((await conn.scalars(running)).all()) == 1


async def test_fifty_tabs_of_one_workspace_cause_one_start(visitor: Visitor) -> None:
    workspace_id = await visitor.create_standby("only one")
    pages = await asyncio.gather(*(visitor.open(workspace_id) for _ in range(50)))
    assert {code for code, _ in pages} == {200}
    async with visitor.engine.connect() as conn:
        query = select(timeline.c.event).where(
            timeline.c.workspace_id == workspace_id, timeline.c.event != "created"
        )
        events = (await conn.scalars(query)).all()
    assert len(events) == 1
