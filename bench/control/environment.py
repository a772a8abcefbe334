"""Environment of the control plane benchmarks: a database, and providers that return at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from bench.control.instant_providers import InstantRuntime, InstantVolumes, instant_providers
from codehub.coordinator.leadership_loop import run_elections
from codehub.coordinator.postgres_backend import PostgresBackend
from codehub.coordinator.provider_interfaces import Providers
from codehub.database import gate
from codehub.database.engine import create_engine
from codehub.database.tables import users, workspaces
from codehub.domain.other_backends import Backends
from codehub.domain.states import DesiredState
from codehub.domain.user_limits import Limits
from codehub.domain.workspace import Workspace
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.settings import Settings, load
from tests.services import TOOLS_DIR, Services

LIMITS = Limits(10**6, 10**6, 10**6)
SETTLED = "phase = desired_state AND operation = 'NONE'"
Statement = tuple[str, tuple[Any, ...]]
"""SQL and its parameters."""


class DurableServices(Services):
    """Services whose PostgreSQL writes through to the disk, as in production."""

    def __init__(self) -> None:
        super().__init__()
        self.postgres = EmbeddedPostgres(self.data_dir, TOOLS_DIR)


@dataclass
class Environment:
    """Database of one measurement, and providers that return at once."""

    url: str
    settings: Settings
    engine: AsyncEngine
    providers: Providers
    runtime: InstantRuntime
    volumes: InstantVolumes

    @asynccontextmanager
    async def running_leader(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(
            run_elections(self.settings, self.providers, PostgresBackend(self.settings), stop=stop)
        )
        try:
            yield
        finally:
            stop.set()
            await task

    async def wait_until_all(self, condition: str, seconds: float = 120) -> None:
        """Wait until all rows meet an SQL condition."""
        query = text(f"SELECT count(*) FROM workspaces WHERE NOT ({condition})")
        async with asyncio.timeout(seconds), self.engine.connect() as conn:
            await conn.execution_options(isolation_level="AUTOCOMMIT")
            while await conn.scalar(query):
                await asyncio.sleep(0.01)

    async def create(self, desired: DesiredState) -> Workspace:
        async with self.engine.begin() as conn:
            return await gate.create(
                conn, owner_id="u1", name="one", description="", image_ref="code-server", standby_ttl=0,
                archive_ttl=0, desired=desired, actor="u1", limits=LIMITS,
                backends=Backends("process", "local-dir"), now=datetime.now(UTC),
            )  # fmt: skip

    async def insert_copies(self, model: Workspace, ids: Sequence[str]) -> None:
        """Insert one copy of the model's row for each id."""
        columns = [column.name for column in workspaces.columns if column.name not in ("number", "version")]
        replaced = {
            "id": "target.id",
            "home_store_key": "'users/u1/workspaces/' || target.id || '/home'",
            "archive_key": "replace(archive_key, model.id, target.id)",
        }
        values = ", ".join(replaced.get(name, f"model.{name}") for name in columns)
        statement = text(
            f"INSERT INTO workspaces ({', '.join(columns)}) SELECT {values} "
            "FROM workspaces model, unnest(CAST(:ids AS text[])) AS target (id) WHERE model.id = :model"
        )
        async with self.engine.begin() as conn:
            await conn.execute(statement, {"model": model.id, "ids": list(ids)})


@asynccontextmanager
async def bench_environment(services: Services) -> AsyncIterator[Environment]:
    url = await services.migrated_database()
    settings = load(
        database_url=url, redis_url=services.redis.url, disk_reserve_bytes=0, ttl_standby_seconds=0,
        ttl_archive_seconds=0, CODEHUB_DATA_DIR=services.data_dir,
    )  # fmt: skip
    engine = create_engine(url)
    async with engine.begin() as conn:
        await conn.execute(users.insert().values(id="u1", username="u1", password_hash="x", role="user"))
    try:
        yield Environment(url, settings, engine, *instant_providers())
    finally:
        await engine.dispose()
        await services.drop_database(url)


@dataclass
class StatementRecorder:
    """Recorder of the statements that asyncpg sends, in their order."""

    statements: list[Statement] = field(default_factory=list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        execute = asyncpg.Connection._execute

        async def record_and_execute(
            connection: Any, query: str, args: tuple[Any, ...], limit: int, timeout: Any, **other: Any
        ) -> Any:
            self.statements.append((query, args))
            return await execute(connection, query, args, limit, timeout, **other)

        asyncpg.Connection._execute = record_and_execute
        try:
            yield
        finally:
            asyncpg.Connection._execute = execute
