"""Fixture: a coordinator on real PostgreSQL, Redis, files and processes, with a tiny IDE."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.coordinator.leadership_loop import run_elections
from codehub.coordinator.main import make_providers
from codehub.coordinator.metrics import CoordinatorMetrics
from codehub.coordinator.postgres_backend import PostgresBackend
from codehub.database import gate, installation
from codehub.database.engine import create_engine, open_pool
from codehub.database.leader_database import PostgresLeaderDatabase
from codehub.database.leadership import LOCK_TIMEOUT, campaign
from codehub.database.row_mapping import to_workspace
from codehub.database.tables import leadership, timeline, users, workspaces
from codehub.domain.observation import JobState
from codehub.domain.other_backends import Backends
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.storage_root import StorageRoot
from codehub.domain.user_limits import Limits
from codehub.domain.workspace import Workspace
from codehub.runtimes.base import RuntimeFailure
from codehub.settings import Settings, load
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.volumes.local_volumes import LocalVolumes
from tests.services import short_temp_dir
from tests.waiting import eventually

LIMITS = Limits(10, 100)
UID_BASE = 2_000_000 + 10_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""A workspace owns all processes of its user, so parallel test processes must not share users."""
INSTALLATION = "test-installation"
IDE = """
import http.server, socketserver, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def address_string(self):
        return "unix"
class Server(socketserver.UnixStreamServer):
    def get_request(self):
        request, _ = super().get_request()
        return request, ("unix", 0)
Server(sys.argv[1], Handler).serve_forever()
"""
WRITER = """
import threading, time
def write():
    while True:
        with open("data", "ab") as file:
            file.write(bytes(1 << 20))
        time.sleep(0.05)
threading.Thread(target=write).start()
"""
FLOOD = """
import os, threading, time
def write():
    file = os.open("data", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    chunk = bytes(1 << 20)
    while True:
        try:
            os.write(file, chunk)
        except OSError:
            time.sleep(0.001)
threading.Thread(target=write).start()
"""
BURNER = """
import os, threading
def burn():
    while not os.path.exists("done"):
        pass
threading.Thread(target=burn).start()
"""
HANGS_ONCE = """
import os, signal
if not os.path.exists("started"):
    open("started", "w").close()
    signal.pause()
"""


def images_toml() -> str:
    """Return the images.

    `tiny` runs, `writer` fills its home, `flood` does so as fast as it can, `burner` uses CPU until
    its home has the file `done`, `hangs-once` hangs once, `broken` exits.
    """
    source = _quoted(IDE)
    return (
        '[[image]]\nname = "tiny"\ndefault = true\nready_path = "/"\n'
        f'process = ["/usr/bin/python3", "-c", "{source}", "{{socket}}"]\n'
        '[[image]]\nname = "writer"\nready_path = "/"\n'
        f'process = ["/usr/bin/python3", "-c", "{_quoted(WRITER)}{source}", "{{socket}}"]\n'
        '[[image]]\nname = "flood"\nready_path = "/"\n'
        f'process = ["/usr/bin/python3", "-c", "{_quoted(FLOOD)}{source}", "{{socket}}"]\n'
        '[[image]]\nname = "burner"\nready_path = "/"\n'
        f'process = ["/usr/bin/python3", "-c", "{_quoted(BURNER)}{source}", "{{socket}}"]\n'
        '[[image]]\nname = "hangs-once"\nready_path = "/"\n'
        f'process = ["/usr/bin/python3", "-c", "{_quoted(HANGS_ONCE)}{source}", "{{socket}}"]\n'
        '[[image]]\nname = "broken"\nready_path = "/"\n'
        'process = ["/bin/sh", "-c", "echo no such luck; exit 3"]\n'
    )


def _quoted(source: str) -> str:
    return source.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class CoordinatorStack:
    """One installation with any number of coordinators."""

    def __init__(self, settings: Settings, engine: AsyncEngine, pool: asyncpg.Pool) -> None:
        self.settings = settings
        self.engine = engine
        self.pool = pool
        self.providers = make_providers(settings, INSTALLATION)
        self._stops: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    async def start(self, settings: Settings | None = None) -> CoordinatorMetrics:
        stop, metrics = asyncio.Event(), CoordinatorMetrics()
        chosen = settings or self.settings
        providers, backend = make_providers(chosen, INSTALLATION), PostgresBackend(chosen)
        task = asyncio.create_task(run_elections(chosen, providers, backend, stop=stop, metrics=metrics))
        self._stops.append((stop, task))
        return metrics

    async def stop(self) -> None:
        while self._stops:
            await self.stop_oldest()

    async def stop_oldest(self) -> None:
        stop, task = self._stops.pop(0)
        stop.set()
        await task

    async def epoch(self) -> int:
        async with self.engine.connect() as conn:
            return int(await conn.scalar(select(leadership.c.epoch)) or 0)

    def leader_database(self, epoch: int, retention: timedelta) -> PostgresLeaderDatabase:
        return PostgresLeaderDatabase(self.pool, self.engine, epoch, retention, self.settings.backends)

    def with_settings(self, **changes: object) -> Settings:
        return self.settings.model_copy(update=changes)

    async def create(
        self, desired: DesiredState = DesiredState.RUNNING, image: str = "tiny", limits: Limits = LIMITS
    ) -> str:
        async with self.engine.begin() as conn:
            made = await gate.create(
                conn,
                owner_id="u1",
                name="one",
                description="",
                image_ref=image,
                standby_ttl=None,
                archive_ttl=None,
                desired=desired,
                actor="u1",
                limits=limits,
                backends=Backends("process", "local-dir"),
                now=datetime.now(UTC),
            )
        return made.id

    async def set_desired_state(self, workspace_id: str, desired: DesiredState) -> None:
        async with self.engine.begin() as conn:
            await gate.set_desired_state(
                conn, workspace_id, desired, actor="u1", limits=LIMITS, now=datetime.now(UTC)
            )

    async def hint(self, workspace_id: str) -> None:
        """Send the hint that a new desired state sends."""
        async with self.engine.begin() as conn:
            payload = json.dumps({"id": workspace_id, "user_id": "u1"})
            await conn.execute(text("SELECT pg_notify('ws_wake', :payload)"), {"payload": payload})

    async def get(self, workspace_id: str) -> Workspace:
        async with self.engine.connect() as conn:
            row = await conn.execute(select(workspaces).where(workspaces.c.id == workspace_id))
            return to_workspace(row.mappings().one())

    async def until(self, workspace_id: str, condition: Callable[[Workspace], bool]) -> Workspace:
        try:
            return await eventually(lambda: self.get(workspace_id), "the workspace to get there", condition)
        except AssertionError as error:
            error.add_note("\n".join(await self.timeline(workspace_id)))
            raise

    async def until_phase(self, workspace_id: str, phase: Phase) -> Workspace:
        return await self.until(workspace_id, lambda w: w.phase is phase and w.operation is Operation.NONE)

    async def reach(self, workspace_id: str, desired: DesiredState) -> Workspace:
        await self.set_desired_state(workspace_id, desired)
        return await self.until_phase(workspace_id, Phase(desired.value))

    async def wait_for_jobs(self) -> None:
        jobs = self.providers.jobs
        for job_id in await jobs.list():
            await eventually(
                lambda: jobs.status(job_id),  # noqa: B023 - awaited before the next one
                f"the job {job_id} to end",
                lambda fact: fact is None or fact.state is not JobState.RUNNING,
            )

    async def take_leadership(self) -> int:
        """Stop all coordinators, and return the epoch of a term of the test itself."""
        await self.stop()
        url = self.settings.database_url
        term = await eventually(lambda: campaign(url, "test"), "no other coordinator to lead")
        assert term is not None
        await term.resign()
        return term.epoch

    async def timeline(self, workspace_id: str) -> list[str]:
        """Return the timeline, oldest entry first."""
        async with self.engine.connect() as conn:
            rows = await conn.execute(
                select(timeline.c.event, timeline.c.message)
                .where(timeline.c.workspace_id == workspace_id)
                .order_by(timeline.c.id)
            )
            return [f"{row.event}: {row.message}" for row in rows]

    async def home(self, workspace_id: str) -> Path:
        return self.providers.volumes.path((await self.get(workspace_id)).home_store_key)

    async def delete_container(self, workspace_id: str) -> None:
        await self.providers.runtime.delete(workspace_id)


def value(metrics: CoordinatorMetrics, name: str, **labels: str) -> float:
    """Return a sample as Prometheus reads it, or 0 if there is none."""
    samples = [
        sample
        for family in text_string_to_metric_families(metrics.exposition()[0].decode())
        for sample in family.samples
    ]
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


@pytest.fixture
async def stack(database_url: str, redis_url: str) -> AsyncIterator[CoordinatorStack]:
    async with new_stack(database_url, redis_url) as stack:
        yield stack


@asynccontextmanager
async def new_stack(
    database_url: str, redis_url: str, within: Path = Path("/tmp")
) -> AsyncIterator[CoordinatorStack]:
    data_dir = short_temp_dir(within)
    (data_dir / "images.toml").write_text(images_toml())
    settings = load(
        database_url=database_url,
        redis_url=redis_url,
        CODEHUB_DATA_DIR=data_dir,
        images_file=data_dir / "images.toml",
        disk_reserve_bytes=0,
        activity_flush_interval=0.5,
        coordinator_ttl_interval=0.5,
        coordinator_gc_interval=3600,
        coordinator_idle_interval=1,
        coordinator_active_interval=0.2,
        coordinator_leader_retry_interval=0.3,
        reconciler_retry_backoff=0.2,
        ttl_standby_seconds=0,
        ttl_archive_seconds=0,
        workspace_uid_base=UID_BASE,
    )
    LocalVolumes(data_dir / "volumes", INSTALLATION).initialise()
    await ArchiveStore(f"file://{data_dir}/archives", INSTALLATION).initialise()
    engine = create_engine(database_url)
    await installation.load_or_create_installation(engine, INSTALLATION, UID_BASE)
    for root in StorageRoot:
        await installation.PostgresClaims(engine).record(root)
    async with engine.begin() as conn:
        await conn.execute(users.insert().values(id="u1", username="one", password_hash="x", role="user"))
    async with open_pool(database_url, 3, LOCK_TIMEOUT) as pool:
        stack = CoordinatorStack(settings, engine, pool)
        yield stack
        await stack.stop()
    for workspace_id in await stack.providers.runtime.observe():
        try:
            await stack.delete_container(workspace_id)
        except RuntimeFailure as error:
            pytest.fail(f"a container was left: {error}")
    for job_id in await stack.providers.jobs.list():
        await stack.providers.jobs.cancel(job_id)
    await engine.dispose()
    await asyncio.get_running_loop().shutdown_default_executor()  # its work is not cancelled
    shutil.rmtree(data_dir)
