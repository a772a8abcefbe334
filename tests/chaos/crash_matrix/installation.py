"""CodeHub installation that runs one cell of the crash matrix after the other."""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.database.engine import asyncpg_dsn, create_engine
from codehub.database.row_mapping import to_workspace
from codehub.database.tables import timeline, workspaces
from codehub.domain.states import Operation, Phase
from codehub.domain.workspace import Workspace
from codehub.host.durable_files import make_directory
from codehub.runtimes.process.runtime import ProcessRuntime
from tests.chaos.crash_matrix import crashing_job
from tests.chaos.crash_matrix.fork_server_client import ForkedProcess, ForkServer
from tests.chaos.crash_matrix.s3_proxy import ClientKilled, Proxy
from tests.chaos.crash_matrix.steps import (
    COORDINATOR,
    CRASHED,
    JOB,
    REQUEST,
    CrashPoint,
    Instructions,
    Steps,
    kill,
)
from tests.chaos.crash_matrix.stores import Store
from tests.services import TOOLS_DIR
from tests.waiting import PATIENCE

OWNER = "u1"

COORDINATOR_SETTINGS = {
    "coordinator_idle_interval": 1,
    "coordinator_active_interval": 0.1,
    "coordinator_active_duration": 0.5,
    "coordinator_leader_retry_interval": 0.05,
    "coordinator_ttl_interval": 3600,
    "coordinator_gc_interval": 3600,
    "reconciler_retry_backoff": 0.1,
    "ttl_standby_seconds": 0,
    "ttl_archive_seconds": 0,
    "disk_reserve_bytes": 0,
}
GC_SETTINGS = {"coordinator_gc_interval": 0.2, "gc_orphan_grace_seconds": 0, "archives_kept": 0}
SAVED_TABLES = ("workspaces", "archives")
CLEARED_TABLES = ("timeline", "archives", "gc_orphans", "home_sizes", "workspaces")

AT_REST = "SELECT phase = $2 AND operation = $3 AND request IS NULL FROM workspaces WHERE id = $1"
ENDED_IN_ERROR = (
    "SELECT phase = 'ERROR' AND request IS NULL AND deleted_at IS NULL AND $2 <> 'ERROR' "
    "FROM workspaces WHERE id = $1"
)
PURGED = "SELECT purged_at IS NOT NULL FROM workspaces WHERE id = $1"
HAS_HOME = "SELECT conditions->'storage.volume_ready'->>'status' = 'True' FROM workspaces WHERE id = $1"
SEEN_BY_GC = "SELECT count(*) > 0 FROM gc_orphans WHERE key LIKE $1"

IDE = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
while True:
    connection, _ = server.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
    connection.close()
"""
UNRESPONSIVE = "unresponsive"
"""Name of the image whose IDE never answers: its start continues until it is cancelled."""


@dataclass
class Installation:
    """Database, disks and archive store, with at most one coordinator."""

    root: Path
    database_url: str
    redis_url: str
    fork_server: ForkServer
    store: Store
    saved_states: Path
    """Directory with the files of every initial state."""
    proxy: Proxy | None = None
    """Relays a job's requests if the store is S3."""
    forks_jobs: bool = True
    """If false, jobs start as they do in production, which takes longer."""
    planted_bug: str = ""
    """Name of the bug that the coordinators and jobs have."""
    coordinator: ForkedProcess | None = None
    workspace_id: str = ""
    ends_in_error: bool = False
    """Whether the scenario is expected to end in ERROR."""
    _engine: AsyncEngine | None = field(default=None, init=False)
    _connection: "asyncpg.Connection[asyncpg.Record] | None" = field(default=None, init=False)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["Installation"]:
        """Open connections that belong to the event loop of this test."""
        self._engine = create_engine(self.database_url, pool_size=1)
        self._connection = await asyncpg.connect(asyncpg_dsn(self.database_url))
        try:
            async with self._proxied():
                yield self
        finally:
            await self.stop()
            await self._connection.close()
            await self._engine.dispose()

    @asynccontextmanager
    async def _proxied(self) -> AsyncIterator[None]:
        if not (endpoint := self.store.environment.get("AWS_ENDPOINT_URL")):
            yield
            return
        async with Proxy.running(endpoint) as self.proxy:
            yield

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        assert self._engine is not None
        async with self._engine.begin() as conn:
            yield conn

    @property
    def directories(self) -> Path:
        return self.root / "volumes" / "users" / OWNER / "workspaces"

    @property
    def directory(self) -> Path:
        return self.directories / self.workspace_id

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def hidden_home(self) -> Path:
        """Return the path to which a home moves while it has to be missing."""
        return self.root / "hidden-home"

    @property
    def runtime(self) -> ProcessRuntime:
        return ProcessRuntime(self.root / "runtime", TOOLS_DIR)

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    def write_images_file(self) -> None:
        """Write the images that every coordinator of this installation offers."""
        command = ["/usr/bin/python3", "-S", "-E", "-c", IDE, "{socket}"]
        (self.root / "images.toml").write_text(
            f'[[image]]\nname = "tiny"\ndefault = true\nready_path = "/"\nprocess = {json.dumps(command)}\n'
            f'[[image]]\nname = "{UNRESPONSIVE}"\nprocess = ["/usr/bin/sleep", "infinity"]\n'
        )

    def instructions(
        self, point: CrashPoint | None = None, victims: tuple[str, ...] = (), first_step: str = ""
    ) -> dict[str, Instructions]:
        """Return each process's instructions; the coordinator records from `first_step` on."""
        paths = str(self.root), str(self.journal)
        instructions = {process: Instructions(process, *paths) for process in (JOB, REQUEST)}
        instructions[COORDINATOR] = Instructions(COORDINATOR, *paths, first_step)
        if point is not None:
            crashing = instructions[point.process]
            instructions[point.process] = replace(crashing, step=point.step, side=point.side, victims=victims)
        return instructions

    def start(
        self, instructions: Mapping[str, Instructions] | None = None, **settings: object
    ) -> ForkedProcess:
        """Start a coordinator; without instructions its code is not instrumented."""
        given = instructions or {}
        self._instruct_jobs(given.get(JOB), given.get(REQUEST))
        request = {
            "instructions": asdict(given[COORDINATOR]) if given else None,
            "fork_server": self.fork_server.path if self.forks_jobs else "",
            "planted_bug": self.planted_bug,
            "environment": self.store.environment,
            "settings": self._settings() | settings,
        }
        self.coordinator = self.fork_server.fork(request, self.root / "log")
        return self.coordinator

    def _instruct_jobs(self, instructions: Instructions | None, requests: Instructions | None) -> None:
        file = self.root / crashing_job.INSTRUCTIONS
        file.unlink(missing_ok=True)
        if instructions is None or requests is None:
            return
        if self.proxy is not None:
            self.proxy.steps = Steps(requests, lambda: self._kill_client(requests.victims))
            instructions = replace(instructions, endpoint=self.proxy.endpoint)
        file.write_text(json.dumps(asdict(instructions)))

    def _kill_client(self, victims: Iterable[str]) -> None:
        (self.root / crashing_job.INSTRUCTIONS).unlink()
        kill(self.root, victims)
        raise ClientKilled

    def _settings(self) -> dict[str, Any]:
        return COORDINATOR_SETTINGS | {
            "database_url": self.database_url,
            "redis_url": self.redis_url,
            "archive_url": self.store.url,
            "images_file": str(self.root / "images.toml"),
            "CODEHUB_DATA_DIR": str(self.root),
            "CODEHUB_TOOLS_DIR": str(TOOLS_DIR),
        }

    async def stop(self) -> None:
        if self.coordinator is not None:
            await self.coordinator.kill()
            self.coordinator = None

    async def crash_at(self, point: CrashPoint) -> None:
        """Start a coordinator and wait until it is killed at this point; a job pauses there."""
        instructions = self.instructions(point, (COORDINATOR,))
        coordinator = self.start(instructions | {JOB: replace(instructions[JOB], stays_paused=True)})
        assert await coordinator.ends() and self.has_crashed, f"{point.step} was not reached"
        await self.stop()
        self.journal.unlink()

    def restarted_jobs(self) -> set[str]:
        """Return the jobs that started more than once, except GC's, which reuse their names."""
        started = (self.root / crashing_job.STARTED_JOBS).read_text().splitlines()
        return {
            name for name in started if started.count(name) > 1 and not name.endswith(("-clear", "-purge"))
        }

    def recorded_points(self) -> list[CrashPoint]:
        """Return the points in the order in which the processes reached them."""
        try:
            lines = self.journal.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [CrashPoint(*line[:-1].split("\t")) for line in lines if line.endswith("\n")]

    @property
    def has_crashed(self) -> bool:
        return any(point.process == CRASHED for point in self.recorded_points())

    async def clear(self) -> None:
        """Remove the workspace and everything that belongs to it."""
        await self.stop()
        for name in await self.runtime.observe():
            await self.runtime.delete(name)
        await asyncio.to_thread(self._clear_files)
        async with self.transaction() as conn:
            # A transaction of a killed coordinator may still be under way.
            await conn.execute(text(f"LOCK TABLE {', '.join(reversed(CLEARED_TABLES))}"))
            for table in CLEARED_TABLES:
                await conn.execute(text(f"DELETE FROM {table}"))
        self.workspace_id = ""

    def _clear_files(self) -> None:
        directories = (self.directories, self.root / "jobs", self.root / "runtime")
        for directory in directories:
            make_directory(directory, 0o711)
        for name in ("journal", "log", crashing_job.STARTED_JOBS):
            (self.root / name).unlink(missing_ok=True)
        remains = [path for directory in directories for path in directory.iterdir()]
        subprocess.run(["rm", "-rf", self.hidden_home, *remains], check=True)
        self.store.clear()

    async def save_state(self, name: str) -> None:
        """Save the workspace, which is at rest, as an initial state of scenarios."""
        await self.stop()
        async with self.transaction() as conn:
            for table in SAVED_TABLES:
                await conn.execute(text(f"CREATE TABLE {name}_{table} AS SELECT * FROM {table}"))
        state = self.saved_states / name
        state.mkdir()
        (state / "id").write_text(self.workspace_id)
        if self.home.exists():
            (self.directory / ".fence").unlink(missing_ok=True)
            subprocess.run(["cp", "-a", self.directory, state / "volume"], check=True)
        if (archives := self.root / "archives" / self.workspace_id).exists():
            subprocess.run(["cp", "-a", archives, state / "archives"], check=True)

    async def load_state(self, name: str) -> None:
        """Restore a saved initial state."""
        state = self.saved_states / name
        self.workspace_id = (state / "id").read_text()
        if (state / "volume").exists():
            command = ["cp", "-a", state / "volume", self.directory]
            await asyncio.to_thread(subprocess.run, command, check=True)
        if (state / "archives").exists():
            await asyncio.to_thread(self.store.fill, self.workspace_id, state / "archives")
        async with self.transaction() as conn:
            for table in SAVED_TABLES:
                await conn.execute(
                    text(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {name}_{table}")
                )

    async def get(self) -> Workspace:
        async with self.transaction() as conn:
            row = await conn.execute(select(workspaces).where(workspaces.c.id == self.workspace_id))
            return to_workspace(row.mappings().one())

    async def diagnostics(self) -> str:
        """Return the timeline and the last log lines of the coordinators."""
        async with self.transaction() as conn:
            rows = await conn.execute(
                select(timeline.c.actor, timeline.c.event, timeline.c.message).order_by(timeline.c.id)
            )
            lines = [f"{row.actor}: {row.event}: {row.message}" for row in rows]
        log = self.root / "log"
        log_lines = log.read_text(errors="replace").splitlines()[-30:] if log.exists() else []
        return "\n".join([*lines, "--", *log_lines])

    async def wait_until(self, condition: Callable[["Installation"], Awaitable[bool]], what: str) -> None:
        """Wait for the condition; fail at once on an ERROR that the scenario does not expect."""
        deadline = time.monotonic() + PATIENCE
        while not await condition(self):
            late = time.monotonic() > deadline
            if late or (
                not self.ends_in_error and await self.query_bool(ENDED_IN_ERROR, self.workspace_id, what)
            ):
                raise NotConverged(f"waited in vain for {what}; it is {_described(await self.get())}")
            await asyncio.sleep(0.03)

    async def is_at_rest_in(self, phase: Phase) -> bool:
        return await self.query_bool(AT_REST, self.workspace_id, phase.value, Operation.NONE.value)

    async def has_home(self) -> bool:
        """Return whether the coordinator has observed a home."""
        return await self.query_bool(HAS_HOME, self.workspace_id)

    async def query_bool(self, question: str, *values: object) -> bool:
        """Run a query that returns a boolean; without SQLAlchemy, because `wait_until` polls it."""
        assert self._connection is not None
        return bool(await self._connection.fetchval(question, *values))

    async def wait_for_phase(self, phase: Phase) -> None:
        await self.wait_until(lambda installation: installation.is_at_rest_in(phase), f"{phase}")


class NotConverged(AssertionError):  # noqa: N818 - names a fact, not a fault
    """A condition that did not become true in time."""


def _described(workspace: Workspace) -> str:
    facts = ("phase", "operation", "desired_state", "error_reason", "error_count", "error_message")
    return ", ".join(f"{name} {getattr(workspace, name)}" for name in facts)
