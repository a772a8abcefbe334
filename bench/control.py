"""The control plane: the cost of an idle pass, how soon a wish is acted on, two thousand starts at once."""

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import structlog
import uvloop
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from bench import machine, table
from bench.instant import InstantRuntime, InstantVolumes, instant_providers
from codehub.coordinator.actor import Actor, ActorRules
from codehub.coordinator.controller import Controller, Rhythm
from codehub.coordinator.house import CONNECTIONS, PostgresHouse
from codehub.coordinator.nature import REAL
from codehub.coordinator.observer import Memory
from codehub.coordinator.providers import Providers
from codehub.coordinator.queue import WORKERS
from codehub.coordinator.server import rules_of, serve
from codehub.domain.limits import Limits
from codehub.domain.observation import ArchiveFact, ContainerFact, VolumeFact
from codehub.domain.states import DesiredState, Phase
from codehub.domain.workspace import Workspace
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.settings import Settings, load
from codehub.store import gate, records
from codehub.store.engine import asyncpg_dsn, create_engine, open_pool
from codehub.store.gate import Backends
from codehub.store.leader import campaign
from codehub.store.records import PostgresRecords
from codehub.store.rows import to_workspace
from codehub.store.tables import users, workspaces
from tests.services import TOOLS_DIR, Services

LIMITS = Limits(10**6, 10**6)
SIZES = (1_000, 10_000, 100_000)
PASSES = 5
RHYTHM = 15.0
MIX = {DesiredState.ARCHIVED: 80, DesiredState.STANDBY: 19, DesiredState.RUNNING: 1}
"""Per cent of the rows."""
OWN = (records.VERSIONS, records.LOAD, records.CONFIRM, records.SAVE)
"""The controller's statements."""
T = TypeVar("T")


class DurableServices(Services):
    """PostgreSQL that writes through, as it does for people."""

    def __init__(self) -> None:
        super().__init__()
        self.postgres = EmbeddedPostgres(self.data_dir, TOOLS_DIR)


def measure(directory: Path, quiet: machine.Quiet, rounds: int, scale: float) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with DurableServices.running() as services:
        _show_idle([quiet.sample(lambda size=size: _run(_idle(services, size))) for size in _sizes(scale)])
        _show_wishes(*quiet.sample(lambda: _run(_wishes(services, max(20, int(300 * scale))))))
        starts = [
            quiet.sample(lambda: _run(_starts(services, max(50, int(2000 * scale))))) for _ in range(rounds)
        ]
        _show_starts(starts)


def _sizes(scale: float) -> list[int]:
    return [int(size * scale) for size in SIZES]


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@dataclass
class Stage:
    """A database of its own, and providers that answer at once."""

    url: str
    settings: Settings
    engine: AsyncEngine
    providers: Providers
    runtime: InstantRuntime
    volumes: InstantVolumes

    @asynccontextmanager
    async def led(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(
            serve(self.settings, self.providers, PostgresHouse(self.settings), stop=stop)
        )
        try:
            yield
        finally:
            stop.set()
            await task

    async def until(self, condition: str, seconds: float = 120) -> None:
        """Wait until no row is otherwise."""
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


@asynccontextmanager
async def _stage(services: Services) -> AsyncIterator[Stage]:
    url = await services.migrated_database()
    settings = load(
        database_url=url, redis_url=services.redis.url, disk_reserve_bytes=0, ttl_standby_seconds=0,
        ttl_archive_seconds=0, CODEHUB_DATA_DIR=services.data_dir,
    )  # fmt: skip
    engine = create_engine(url)
    async with engine.begin() as conn:
        await conn.execute(users.insert().values(id="u1", username="u1", password_hash="x", role="user"))
    try:
        yield Stage(url, settings, engine, *instant_providers())
    finally:
        await engine.dispose()
        await services.drop_database(url)


@dataclass
class Statements:
    """What is sent to PostgreSQL, in its order."""

    sent: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        execute = asyncpg.Connection._execute

        async def recorded(
            connection: Any, query: str, args: tuple[Any, ...], limit: int, timeout: Any, **rest: Any
        ) -> Any:
            self.sent.append((query, args))
            return await execute(connection, query, args, limit, timeout, **rest)

        asyncpg.Connection._execute = recorded
        try:
            yield
        finally:
            asyncpg.Connection._execute = execute


@dataclass(frozen=True)
class Idle:
    size: int
    queries: int
    written: int
    cpu: float
    postgres_cpu: float


async def _idle(services: Services, size: int) -> Idle:
    """A leader that has seen everything once passes over it again."""
    async with _stage(services) as stage:
        await _populate(stage, size)
        async with _leading(stage) as controller:
            await controller.sweep()
            assert len(controller.queue) == 0, "the rows are not at rest"
            before, postgres, statements = await _written(stage), _postgres(services), Statements()
            with statements.recorded():
                await controller.sweep()
            cpu, theirs = time.process_time(), machine.cpu_seconds(postgres)
            for _ in range(PASSES):
                await controller.sweep()
            cpu, theirs = time.process_time() - cpu, machine.cpu_seconds(postgres) - theirs
            written = await _written(stage) - before
        return Idle(size, len(statements.sent), written, cpu / PASSES, theirs / PASSES)


def _postgres(services: Services) -> list[int]:
    assert services.postgres.process is not None
    return [services.postgres.process.pid]


async def _written(stage: Stage) -> int:
    """Grows with every row that is written anywhere: updates count up a version."""
    counts = [
        f"(SELECT count(*) FROM {name})" for name in ("workspaces", "timeline", "archives", "gc_orphans")
    ]
    async with stage.engine.connect() as conn:
        rows = await conn.scalar(text(f"SELECT sum(version) + {' + '.join(counts)} FROM workspaces"))
    return int(rows or 0)


@asynccontextmanager
async def _leading(stage: Stage) -> AsyncIterator[Controller]:
    term = await campaign(stage.url, "bench")
    assert term is not None
    memory = Memory()
    actor = Actor(stage.providers, memory, ActorRules(0, 0), term.epoch)
    async with open_pool(stage.url, CONNECTIONS) as pool:
        made = PostgresRecords(pool, stage.engine, term.epoch, timedelta(days=7))
        yield Controller(
            made, stage.providers, actor, memory,
            rules=rules_of(stage.settings), rhythm=Rhythm(1, 30), nature=REAL,
        )  # fmt: skip
    await term.resign()


async def _populate(stage: Stage, size: int) -> None:
    """One workspace of each kind is brought there by a real leader, and copied."""
    async with stage.led():
        models = [await stage.create(desired) for desired in MIX]
        await stage.until("phase = desired_state AND operation = 'NONE'")
    columns = [column.name for column in workspaces.columns if column.name not in ("number", "version")]
    changed = {
        "id": "made.id",
        "home_store_key": "'users/u1/workspaces/' || made.id || '/home'",
        "archive_key": "replace(archive_key, model.id, made.id)",
    }
    copied = ", ".join(changed.get(name, f"model.{name}") for name in columns)
    async with stage.engine.begin() as conn:
        for model, share in zip(models, MIX.values(), strict=True):
            count = max(1, size * share // 100) - 1
            await conn.execute(
                text(
                    f"INSERT INTO workspaces ({', '.join(columns)}) SELECT {copied} FROM workspaces model, "
                    "(SELECT lpad(md5(:model || n), 26, '0') AS id FROM generate_series(1, :count) n) made "
                    "WHERE model.id = :model"
                ),
                {"model": model.id, "count": count},
            )
    connection = await asyncpg.connect(asyncpg_dsn(stage.url))
    await connection.execute("VACUUM ANALYZE")
    await connection.close()
    async with stage.engine.connect() as conn:
        rows = (await conn.execute(workspaces.select())).mappings()
        for row in rows:
            _make_real(stage, to_workspace(row))


def _make_real(stage: Stage, workspace: Workspace) -> None:
    if workspace.home_ctx is not None:
        stage.volumes.homes[workspace.id] = VolumeFact(workspace.home_ctx)
    if workspace.phase is Phase.RUNNING:
        fact = ContainerFact(True, True, True, workspace.upstream, "bench")
        stage.runtime.containers[workspace.id] = fact
    if workspace.archive_key is not None:
        op_id = workspace.archive_key.split("/")[1]
        fact_ = ArchiveFact(workspace.id, op_id, workspace.archive_key, "0" * 64, 1, 1, 1)
        stage.volumes.stored[workspace.archive_key] = fact_


@dataclass(frozen=True)
class Wishes:
    ours: list[float]
    notify: list[float]
    update: list[float]


async def _wishes(services: Services, count: int) -> Wishes:
    """One wish after the other, each beside a NOTIFY round trip and a committed UPDATE."""
    async with _stage(services) as stage, stage.led():
        model = await stage.create(DesiredState.STANDBY)
        await stage.until("phase = desired_state AND operation = 'NONE'")
        connection = await asyncpg.connect(asyncpg_dsn(stage.url))
        listening = await asyncpg.connect(asyncpg_dsn(stage.url))
        heard = asyncio.Event()
        await listening.add_listener("bench", lambda *_: heard.set())
        await connection.execute("CREATE TABLE bench_row AS SELECT * FROM workspaces")
        await connection.execute("ALTER TABLE bench_row ADD PRIMARY KEY (id)")
        found = Wishes([], [], [])
        for number in range(count):
            found.ours.append(await _wish(stage, model.id))
            began = time.perf_counter()
            await connection.execute("NOTIFY bench")
            await heard.wait()
            found.notify.append(time.perf_counter() - began)
            heard.clear()
            began = time.perf_counter()
            await connection.execute("UPDATE bench_row SET memo = $1 WHERE id = $2", str(number), model.id)
            found.update.append(time.perf_counter() - began)
        await listening.close()
        await connection.close()
        return found


async def _wish(stage: Stage, workspace_id: str) -> float:
    """Seconds from the commit of a wish to RUN until the runtime is told to start."""
    for desired in (DesiredState.STANDBY, DesiredState.RUNNING):
        stage.runtime.started.clear()
        async with stage.engine.begin() as conn:
            await gate.wish(conn, workspace_id, desired, actor="u1", limits=LIMITS, now=datetime.now(UTC))
        committed = time.perf_counter()
        if desired is DesiredState.RUNNING:
            await stage.runtime.started.wait()
        await stage.until("phase = desired_state AND operation = 'NONE'")
    return stage.runtime.started_at[workspace_id] - committed


@dataclass(frozen=True)
class Starts:
    count: int
    ours: float
    statements: int
    alone: float


async def _starts(services: Services, count: int) -> Starts:
    """All at once, by a leader; then the statements that it sent, by themselves."""
    statements = Statements()
    async with _stage(services) as stage:
        await _insert_pending(stage, count)
        with statements.recorded():
            began = time.perf_counter()
            async with stage.led():
                await stage.until("phase = 'RUNNING' AND operation = 'NONE'")
                ours = time.perf_counter() - began
    sent = [(sql, values) for sql, values in statements.sent if sql in OWN]
    async with _stage(services) as stage:
        await _insert_pending(stage, count)
        term = await campaign(stage.url, "bench")
        assert term is not None
        alone = await _replay(stage.url, sent)
        await stage.until("phase = 'RUNNING' AND operation = 'NONE'", seconds=1)
        await term.resign()
    return Starts(count, ours, len(sent), alone)


async def _insert_pending(stage: Stage, count: int) -> None:
    model = await stage.create(DesiredState.RUNNING)
    columns = [column.name for column in workspaces.columns if column.name not in ("number", "version")]
    changed = {"id": "made.id", "home_store_key": "'users/u1/workspaces/' || made.id || '/home'"}
    copied = ", ".join(changed.get(name, f"model.{name}") for name in columns)
    async with stage.engine.begin() as conn:
        await conn.execute(
            text(
                f"INSERT INTO workspaces ({', '.join(columns)}) SELECT {copied} FROM workspaces model, "
                "(SELECT lpad(n::text, 26, '0') AS id FROM generate_series(1, :count) n) made"
            ),
            {"count": count},
        )
        await conn.execute(text("DELETE FROM timeline"))
        await conn.execute(text("DELETE FROM workspaces WHERE id = :id"), {"id": model.id})


async def _replay(url: str, sent: list[tuple[str, tuple[Any, ...]]]) -> float:
    """Seconds for the same statements in the same order for each workspace, on as many connections."""
    of: dict[str, list[tuple[str, tuple[Any, ...]]]] = {}
    for sql, values in sent:
        of.setdefault(_about(values), []).append((sql, values))
    places = asyncio.Semaphore(WORKERS)

    async def play(pool: asyncpg.Pool, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        async with places:
            for sql, values in statements:
                await pool.fetch(sql, *values)

    began = time.perf_counter()
    async with open_pool(url, CONNECTIONS) as pool:
        await asyncio.gather(*(play(pool, statements) for statements in of.values()))
        return time.perf_counter() - began


def _about(values: tuple[Any, ...]) -> str:
    """Which workspace a statement is about; nothing for those about many."""
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    names = {item for item in flat if isinstance(item, str) and len(item) == 26 and item.isdigit()}
    return names.pop() if len(names) == 1 else ""


def _show_idle(samples: list[tuple[Idle, float]]) -> None:
    rows = [
        [
            f"{idle.size:,}", str(idle.queries), str(idle.written), f"{idle.cpu * 1000:,.0f}",
            f"{idle.cpu / idle.size * 1e6:.1f}", f"{idle.postgres_cpu * 1000:,.0f}",
            f"{(idle.cpu + idle.postgres_cpu) / RHYTHM * 100:.2f}", f"{noise:.0f}",
        ]
        for idle, noise in samples
    ]  # fmt: skip
    table.show(
        "An idle pass",
        ["workspaces", "queries", "rows written", "CPU ms", "µs each", "PostgreSQL's CPU ms",
         "% of a core at 15 s", "noise %"],
        rows,
    )  # fmt: skip


def _show_wishes(found: Wishes, noise: float) -> None:
    peer = [notify + update for notify, update in zip(found.notify, found.update, strict=True)]
    rows = []
    for name, values in (
        ("a committed wish to `start`", found.ours),
        ("NOTIFY round trip + committed UPDATE", peer),
    ):
        p99 = statistics.quantiles(values, n=100)[98]
        rows.append([name, f"{statistics.median(values) * 1000:.2f}", f"{p99 * 1000:.2f}", f"{noise:.0f}"])
    median = statistics.median(found.ours) / statistics.median(peer)
    tail = statistics.quantiles(found.ours, n=100)[98] / statistics.quantiles(peer, n=100)[98]
    rows.append(["ratio", f"{median:.2f}", f"{tail:.2f}", ""])
    table.show(f"A wish, {len(peer)} times", ["", "median ms", "99 % ms", "noise %"], rows)


def _show_starts(samples: list[tuple[Starts, float]]) -> None:
    rows = [
        [
            f"{starts.count:,}", f"{starts.ours:.2f}", f"{starts.statements:,}", f"{starts.alone:.2f}",
            table.ratio(starts.ours, starts.alone), f"{noise:.0f}",
        ]
        for starts, noise in samples
    ]  # fmt: skip
    header = ["from PENDING to RUNNING", "seconds", "statements", "they alone, seconds", "ratio", "noise %"]
    table.show("Many starts at once", header, rows)
