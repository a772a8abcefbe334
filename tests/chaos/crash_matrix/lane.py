"""A lane: one installation in which one cell of the matrix is played after the other."""

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
from tests.chaos.crash_matrix.forks import Process, Zygote
from tests.chaos.crash_matrix.proxy import Fallen, Proxy
from tests.chaos.crash_matrix.steps import COORDINATOR, FALLEN, JOB, REQUEST, Moment, Orders, Steps, kill
from tests.chaos.crash_matrix.stores import Store
from tests.services import TOOLS_DIR
from tests.waiting import PATIENCE

OWNER = "u1"

RHYTHM = {
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
GC = {"coordinator_gc_interval": 0.2, "gc_orphan_grace_seconds": 0}
TABLES = ("workspaces", "archives")
CLEARED = ("timeline", "archives", "gc_orphans", "home_sizes", "workspaces")

RESTS = "SELECT phase = $2 AND operation = $3 AND request IS NULL FROM workspaces WHERE id = $1"
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
MUTE = "mute"
"""The image of an IDE that never answers: a start of it goes on until it is cancelled."""


@dataclass
class Lane:
    root: Path
    database_url: str
    redis_url: str
    zygote: Zygote
    store: Store
    stages: Path
    """Where the files of every stage are kept."""
    proxy: Proxy | None = None
    """On S3, what the requests of a job go through."""
    forks_jobs: bool = True
    """Otherwise they are started as they are in production, which takes longer."""
    plant: str = ""
    """The bug that its coordinators and jobs have."""
    coordinator: Process | None = None
    workspace_id: str = ""
    ends_in_error: bool = False
    """Whether an ERROR is what is waited for."""
    _engine: AsyncEngine | None = field(default=None, init=False)
    _connection: "asyncpg.Connection[asyncpg.Record] | None" = field(default=None, init=False)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["Lane"]:
        """With connections that belong to the event loop of this test."""
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
    def away(self) -> Path:
        """Where a home goes that vanishes."""
        return self.root / "away"

    @property
    def runtime(self) -> ProcessRuntime:
        return ProcessRuntime(self.root / "runtime", TOOLS_DIR)

    @property
    def diary(self) -> Path:
        return self.root / "diary"

    def prepare(self) -> None:
        """What every coordinator of this lane finds."""
        command = ["/usr/bin/python3", "-S", "-E", "-c", IDE, "{socket}"]
        (self.root / "images.toml").write_text(
            f'[[image]]\nname = "tiny"\ndefault = true\nready_path = "/"\nprocess = {json.dumps(command)}\n'
            f'[[image]]\nname = "{MUTE}"\nprocess = ["/usr/bin/sleep", "infinity"]\n'
        )

    def orders(
        self, death: Moment | None = None, victims: tuple[str, ...] = (), begin: str = ""
    ) -> dict[str, Orders]:
        """Who tells what it does, and who dies, and where; the coordinator tells it from a step on."""
        orders = {who: Orders(who, str(self.root), str(self.diary)) for who in (JOB, REQUEST)}
        orders[COORDINATOR] = Orders(COORDINATOR, str(self.root), str(self.diary), begin)
        if death is not None:
            told = replace(orders[death.of], step=death.step, side=death.side, victims=victims)
            orders[death.of] = told
        return orders

    def start(self, orders: Mapping[str, Orders] | None = None, **settings: object) -> Process:
        """A coordinator; without orders it is one that nobody has touched."""
        told = orders or {}
        self._order_jobs(told.get(JOB), told.get(REQUEST))
        order = {
            "orders": asdict(told[COORDINATOR]) if told else None,
            "zygote": self.zygote.path if self.forks_jobs else "",
            "plant": self.plant,
            "environment": self.store.environment,
            "settings": self._settings() | settings,
        }
        self.coordinator = self.zygote.fork(order, self.root / "log")
        return self.coordinator

    def _order_jobs(self, orders: Orders | None, requests: Orders | None) -> None:
        file = self.root / crashing_job.ORDERS
        file.unlink(missing_ok=True)
        if orders is None or requests is None:
            return
        if self.proxy is not None:
            self.proxy.steps = Steps(requests, lambda: self._cut_off(requests.victims))
            orders = replace(orders, endpoint=self.proxy.endpoint)
        file.write_text(json.dumps(asdict(orders)))

    def _cut_off(self, victims: Iterable[str]) -> None:
        (self.root / crashing_job.ORDERS).unlink()
        kill(self.root, victims)
        raise Fallen

    def _settings(self) -> dict[str, Any]:
        return RHYTHM | {
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

    async def break_off(self, moment: Moment) -> None:
        """Have a coordinator begin and die at this moment. The job, if it is the job's, stays there."""
        orders = self.orders(moment, (COORDINATOR,))
        coordinator = self.start(orders | {JOB: replace(orders[JOB], holds=True)})
        assert await coordinator.ends() and self.has_fallen, f"{moment.step} has not come"
        await self.stop()
        self.diary.unlink()

    def begun_twice(self) -> set[str]:
        """Jobs that were started again. GC's have a name for good, and more than one life."""
        begun = (self.root / crashing_job.BEGUN).read_text().splitlines()
        return {name for name in begun if begun.count(name) > 1 and not name.endswith(("-clear", "-purge"))}

    def told(self) -> list[Moment]:
        """Who has reached what, in the order of the diary."""
        try:
            lines = self.diary.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [Moment(*line[:-1].split("\t")) for line in lines if line.endswith("\n")]

    @property
    def has_fallen(self) -> bool:
        return any(moment.of == FALLEN for moment in self.told())

    async def clear(self) -> None:
        """As if there had never been a workspace."""
        await self.stop()
        for name in await self.runtime.observe():
            await self.runtime.delete(name)
        await asyncio.to_thread(self._clear_files)
        async with self.transaction() as conn:
            # What a killed coordinator had begun to save may be under way still.
            await conn.execute(text(f"LOCK TABLE {', '.join(reversed(CLEARED))}"))
            for table in CLEARED:
                await conn.execute(text(f"DELETE FROM {table}"))
        self.workspace_id = ""

    def _clear_files(self) -> None:
        places = (self.directories, self.root / "jobs", self.root / "runtime")
        for place in places:
            make_directory(place, 0o711)
        for name in ("diary", "log", crashing_job.BEGUN):
            (self.root / name).unlink(missing_ok=True)
        remains = [path for place in places for path in place.iterdir()]
        subprocess.run(["rm", "-rf", self.away, *remains], check=True)
        self.store.clear()

    async def keep_as(self, stage: str) -> None:
        """Remember the workspace, at rest, as a stage to begin from."""
        await self.stop()
        async with self.transaction() as conn:
            for table in TABLES:
                await conn.execute(text(f"CREATE TABLE {stage}_{table} AS SELECT * FROM {table}"))
        place = self.stages / stage
        place.mkdir()
        (place / "id").write_text(self.workspace_id)
        if self.home.exists():
            (self.directory / ".fence").unlink(missing_ok=True)
            subprocess.run(["cp", "-a", self.directory, place / "volume"], check=True)
        if (archives := self.root / "archives" / self.workspace_id).exists():
            subprocess.run(["cp", "-a", archives, place / "archives"], check=True)

    async def set(self, stage: str) -> None:
        """Begin from a stage."""
        place = self.stages / stage
        self.workspace_id = (place / "id").read_text()
        if (place / "volume").exists():
            command = ["cp", "-a", place / "volume", self.directory]
            await asyncio.to_thread(subprocess.run, command, check=True)
        if (place / "archives").exists():
            await asyncio.to_thread(self.store.fill, self.workspace_id, place / "archives")
        async with self.transaction() as conn:
            for table in TABLES:
                await conn.execute(
                    text(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {stage}_{table}")
                )

    async def get(self) -> Workspace:
        async with self.transaction() as conn:
            row = await conn.execute(select(workspaces).where(workspaces.c.id == self.workspace_id))
            return to_workspace(row.mappings().one())

    async def story(self) -> str:
        """The timeline, and what the coordinators said last."""
        async with self.transaction() as conn:
            told = await conn.execute(
                select(timeline.c.actor, timeline.c.event, timeline.c.message).order_by(timeline.c.id)
            )
            lines = [f"{row.actor}: {row.event}: {row.message}" for row in told]
        log = self.root / "log"
        said = log.read_text(errors="replace").splitlines()[-30:] if log.exists() else []
        return "\n".join([*lines, "--", *said])

    async def until(self, condition: Callable[["Lane"], Awaitable[bool]], what: str) -> None:
        """Wait for the condition. An ERROR that the scenario does not end in fails at once."""
        deadline = time.monotonic() + PATIENCE
        while not await condition(self):
            late = time.monotonic() > deadline
            if late or (not self.ends_in_error and await self.ask(ENDED_IN_ERROR, self.workspace_id, what)):
                raise Stuck(f"waited for {what}, in vain; it is {_described(await self.get())}")
            await asyncio.sleep(0.03)

    async def rests_at(self, phase: Phase) -> bool:
        return await self.ask(RESTS, self.workspace_id, phase.value, Operation.NONE.value)

    async def has_home(self) -> bool:
        """As far as the coordinator knows."""
        return await self.ask(HAS_HOME, self.workspace_id)

    async def ask(self, question: str, *values: object) -> bool:
        """Cheap, since it is asked all the time."""
        assert self._connection is not None
        return bool(await self._connection.fetchval(question, *values))

    async def reach(self, phase: Phase) -> None:
        await self.until(lambda lane: lane.rests_at(phase), f"{phase}")


class Stuck(AssertionError):  # noqa: N818 - a fact, not a fault
    """Something has not converged."""


def _described(workspace: Workspace) -> str:
    facts = ("phase", "operation", "desired_state", "error_reason", "error_count", "error_message")
    return ", ".join(f"{name} {getattr(workspace, name)}" for name in facts)
