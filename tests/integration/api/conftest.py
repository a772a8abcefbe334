"""The API on real services, called in-process or over its socket. Tests run on uvloop, as it does."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from argon2 import PasswordHasher
from fastapi import FastAPI
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub import health_endpoints
from codehub.api.app import create_app
from codehub.bus import events as bus_events
from codehub.database import accounts, passwords, sessions, tokens
from codehub.database.engine import create_engine
from codehub.database.passwords import hash_password
from codehub.database.tables import archives, users, workspaces
from codehub.domain.audit import CLI
from codehub.domain.new_token import NewToken
from codehub.domain.scopes import Scope
from codehub.domain.states import Role
from codehub.settings import Settings
from codehub.ulids import new_id
from tests.waiting import PATIENCE

BASE = "http://localhost:8080"
PASSWORD = "a good password"


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def long_timeouts_and_cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts that a busy machine would reach, and lower the cost of password hashes."""
    monkeypatch.setattr(health_endpoints, "CHECK_TIMEOUT", PATIENCE)
    monkeypatch.setattr(bus_events, "SUBSCRIBE_TIMEOUT", PATIENCE)
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(passwords, "_hasher", cheap)
    monkeypatch.setattr(passwords, "DUMMY_HASH", cheap.hash("a password that nobody knows"))


@dataclass
class Api:
    """A running API with its database, and clients of its users."""

    app: FastAPI
    engine: AsyncEngine
    settings: Settings
    stack: AsyncExitStack
    ids: dict[str, str] = field(default_factory=dict)
    password_hash: str = ""

    @classmethod
    @asynccontextmanager
    async def running(cls, settings: Settings) -> AsyncIterator["Api"]:
        app = create_app(settings)
        engine = create_engine(settings.database_url)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            await stack.enter_async_context(app.router.lifespan_context(app))
            yield cls(app, engine, settings, stack)

    async def client(self, **headers: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return await self.stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers)
        )

    async def signed_in_client(self, username: str, role: Role = Role.USER) -> httpx.AsyncClient:
        """Return a client signed in as this user, who is created if missing."""
        if username not in self.ids:
            account = await accounts.create_account(
                self.engine, username, PASSWORD, role, actor=CLI, now=datetime.now(UTC)
            )
            self.ids[username] = account.id
        client = await self.client()
        answer = await client.post("/api/v1/login", json={"username": username, "password": PASSWORD})
        assert answer.status_code == 200, answer.text
        return client

    async def quick_client(self, username: str, role: Role) -> httpx.AsyncClient:
        """Return a client with a session of a new user, without hashing a password for each."""
        if not self.password_hash:
            self.password_hash = await hash_password(PASSWORD)
        self.ids[username] = new_id()
        async with self.engine.begin() as conn:
            values = {"username": username, "password_hash": self.password_hash, "role": role.value}
            await conn.execute(insert(users).values(id=self.ids[username], **values))
            session_id = await sessions.open_session(conn, self.ids[username], datetime.now(UTC))
        client = await self.client()
        client.cookies.set("session", session_id)
        return client

    async def token(
        self, username: str, *scopes: str, workspaces: list[str] | None = None, lifetime: float | None = None
    ) -> tuple[str, str]:
        """Make a token of an existing user; return its id and its secret."""
        now = datetime.now(UTC)
        expires_at = None if lifetime is None else now + timedelta(seconds=lifetime)
        named = [Scope(scope) for scope in scopes]
        wanted = NewToken.requested("ci", named, workspaces, expires_at)
        async with self.engine.begin() as conn:
            made, secret = await tokens.make_token(
                conn, self.ids[username], wanted, created_by=self.ids[username], now=now
            )
        return made.id, secret

    async def token_client(
        self, username: str, *scopes: str, workspaces: list[str] | None = None, lifetime: float | None = None
    ) -> httpx.AsyncClient:
        """Return a client that sends a token of an existing user."""
        _, secret = await self.token(username, *scopes, workspaces=workspaces, lifetime=lifetime)
        return await self.client(Authorization=f"Bearer {secret}")

    async def workspace(self, client: httpx.AsyncClient, **values: Any) -> dict[str, Any]:
        body = {"name": "one", "desired_state": "STANDBY"} | values
        answer = await client.post("/api/v1/workspaces", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def add_archive(
        self, workspace_id: str, size: int, removed_at: datetime | None = None, archive_op_id: str = ""
    ) -> str:
        """Record an archive and return its key."""
        archive_op_id = archive_op_id or new_id()
        key = f"{workspace_id}/{archive_op_id}/home.tar.zst"
        async with self.engine.begin() as conn:
            await conn.execute(
                insert(archives).values(
                    archive_op_id=archive_op_id, workspace_id=workspace_id, sha256="x", bytes=size,
                    unpacked=size, archive_key=key, entries=1, created_at=datetime.now(UTC),
                    removed_at=removed_at,
                )
            )  # fmt: skip
        return key

    async def set(self, workspace_id: str, **values: Any) -> None:
        """Set columns that only the controller writes."""
        async with self.engine.begin() as conn:
            await conn.execute(update(workspaces).where(workspaces.c.id == workspace_id).values(**values))


@pytest.fixture
def settings(database_url: str, redis_url: str, tmp_path: Path) -> Settings:
    return Settings(database_url=database_url, redis_url=redis_url, data_dir=tmp_path, port=8080)


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    async with Api.running(settings) as made:
        yield made
