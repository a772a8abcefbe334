"""What a pass over many workspaces costs when nothing is to be done."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
from sqlalchemy import text

from bench import machine, table
from bench.control.stage import AT_REST, Stage, Statements, set_up
from codehub.coordinator.clock_and_ids import REAL
from codehub.coordinator.controller import Controller, Intervals
from codehub.coordinator.effect_executor import EffectExecutor, ExecutorRules
from codehub.coordinator.leadership_loop import rules_of
from codehub.coordinator.metrics import Metrics
from codehub.coordinator.observer import LeaderState
from codehub.coordinator.postgres_backend import CONNECTIONS
from codehub.database.controller_writes import PostgresLeaderDatabase
from codehub.database.engine import asyncpg_dsn, open_pool
from codehub.database.leadership import LOCK_TIMEOUT, campaign
from codehub.database.row_mapping import to_workspace
from codehub.database.tables import workspaces
from codehub.domain.observation import ArchiveFact, ContainerFact, VolumeFact
from codehub.domain.states import DesiredState, Phase
from codehub.domain.workspace import Workspace
from tests.services import Services

PASSES = 20
RHYTHM = 15.0
MIX = {DesiredState.ARCHIVED: 80, DesiredState.STANDBY: 19, DesiredState.RUNNING: 1}
"""Per cent of the rows."""


@dataclass(frozen=True)
class Idle:
    size: int
    queries: int
    written: int
    cpu: float
    postgres_cpu: float


async def idle(services: Services, size: int) -> Idle:
    """A leader that has seen everything once passes over it again."""
    async with set_up(services) as stage:
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
    state = LeaderState()
    executor = EffectExecutor(stage.providers, state, ExecutorRules(0, 0), term.epoch)
    async with open_pool(stage.url, CONNECTIONS, LOCK_TIMEOUT) as pool:
        made = PostgresLeaderDatabase(
            pool, stage.engine, term.epoch, timedelta(days=7), stage.settings.backends
        )
        yield Controller(
            made, stage.providers, executor, state,
            rules=rules_of(stage.settings), intervals=Intervals(1, 30), clock_and_ids=REAL, metrics=Metrics(),
        )  # fmt: skip
    await term.resign()


async def _populate(stage: Stage, size: int) -> None:
    """One workspace of each kind is brought there by a real leader, and copied."""
    async with stage.led():
        models = [await stage.create(desired) for desired in MIX]
        await stage.until(AT_REST)
    for kind, (model, share) in enumerate(zip(models, MIX.values(), strict=True)):
        await stage.copy(model, [f"{kind}{number:025}" for number in range(1, size * share // 100)])
    connection = await asyncpg.connect(asyncpg_dsn(stage.url))
    await connection.execute("VACUUM ANALYZE")
    await connection.close()
    async with stage.engine.connect() as conn:
        for row in (await conn.execute(workspaces.select())).mappings():
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


def show(samples: Sequence[tuple[Idle, float]]) -> None:
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
