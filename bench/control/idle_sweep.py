"""Cost of a sweep over many workspaces that need nothing."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
from sqlalchemy import text

from bench import machine, table
from bench.control.environment import SETTLED, Environment, StatementRecorder, bench_environment
from codehub.coordinator.clock_and_ids import REAL
from codehub.coordinator.controller import Controller, Intervals
from codehub.coordinator.effect_executor import EffectExecutor, ExecutorRules
from codehub.coordinator.leadership_loop import rules_of
from codehub.coordinator.metrics import CoordinatorMetrics
from codehub.coordinator.observer import LeaderState
from codehub.coordinator.postgres_backend import CONNECTIONS
from codehub.database.engine import asyncpg_dsn, open_pool
from codehub.database.leader_database import PostgresLeaderDatabase
from codehub.database.leadership import LOCK_TIMEOUT, campaign
from codehub.database.row_mapping import to_workspace
from codehub.database.tables import workspaces
from codehub.domain.observation import ArchiveFact, ContainerFact, VolumeFact
from codehub.domain.states import DesiredState, Phase
from codehub.domain.workspace import Workspace
from tests.services import Services

SWEEPS = 20
SWEEP_INTERVAL = 15.0
MIX = {DesiredState.ARCHIVED: 80, DesiredState.STANDBY: 19, DesiredState.RUNNING: 1}
"""Percentage of the rows for each desired state."""


@dataclass(frozen=True)
class IdleSweep:
    """Costs of one sweep. CPU times are in seconds."""

    size: int
    queries: int
    rows_written: int
    cpu: float
    postgres_cpu: float


async def measure(services: Services, size: int) -> IdleSweep:
    """Measure the sweeps of a leader that has already observed everything once."""
    async with bench_environment(services) as environment:
        await _populate(environment, size)
        async with _controller(environment) as controller:
            await controller.sweep()
            assert len(controller.queue) == 0, "the rows are not settled"
            before, postgres, recorder = await _writes(environment), _postgres(services), StatementRecorder()
            with recorder.recording():
                await controller.sweep()
            cpu, postgres_cpu = time.process_time(), machine.cpu_seconds(postgres)
            for _ in range(SWEEPS):
                await controller.sweep()
            cpu, postgres_cpu = time.process_time() - cpu, machine.cpu_seconds(postgres) - postgres_cpu
            rows_written = await _writes(environment) - before
        return IdleSweep(size, len(recorder.statements), rows_written, cpu / SWEEPS, postgres_cpu / SWEEPS)


def _postgres(services: Services) -> list[int]:
    assert services.postgres.process is not None
    return [services.postgres.process.pid]


async def _writes(environment: Environment) -> int:
    """Return a number that grows with every written row: an update increments a version."""
    counts = [
        f"(SELECT count(*) FROM {name})" for name in ("workspaces", "timeline", "archives", "gc_orphans")
    ]
    async with environment.engine.connect() as conn:
        rows = await conn.scalar(text(f"SELECT sum(version) + {' + '.join(counts)} FROM workspaces"))
    return int(rows or 0)


@asynccontextmanager
async def _controller(environment: Environment) -> AsyncIterator[Controller]:
    term = await campaign(environment.url, "bench")
    assert term is not None
    state = LeaderState()
    executor = EffectExecutor(environment.providers, state, ExecutorRules(0, 0), term.epoch)
    async with open_pool(environment.url, CONNECTIONS, LOCK_TIMEOUT) as pool:
        database = PostgresLeaderDatabase(
            pool, environment.engine, term.epoch, timedelta(days=7), environment.settings.backends
        )
        yield Controller(
            database, environment.providers, executor, state,
            rules=rules_of(environment.settings), intervals=Intervals(1, 30), clock_and_ids=REAL,
            metrics=CoordinatorMetrics(),
        )  # fmt: skip
    await term.resign()


async def _populate(environment: Environment, size: int) -> None:
    """Let a real leader bring one workspace to each state, and copy its row."""
    async with environment.running_leader():
        models = [await environment.create(desired) for desired in MIX]
        await environment.wait_until_all(SETTLED)
    for group, (model, share) in enumerate(zip(models, MIX.values(), strict=True)):
        await environment.insert_copies(
            model, [f"{group}{number:025}" for number in range(1, size * share // 100)]
        )
    connection = await asyncpg.connect(asyncpg_dsn(environment.url))
    await connection.execute("VACUUM ANALYZE")
    await connection.close()
    async with environment.engine.connect() as conn:
        for row in (await conn.execute(workspaces.select())).mappings():
            _add_to_providers(environment, to_workspace(row))


def _add_to_providers(environment: Environment, workspace: Workspace) -> None:
    if workspace.home_ctx is not None:
        environment.volumes.homes[workspace.id] = VolumeFact(workspace.home_ctx)
    if workspace.phase is Phase.RUNNING:
        fact = ContainerFact(True, True, True, workspace.upstream, "bench")
        environment.runtime.containers[workspace.id] = fact
    if workspace.archive_key is not None:
        op_id = workspace.archive_key.split("/")[1]
        archive = ArchiveFact(workspace.id, op_id, workspace.archive_key, "0" * 64, 1, 1, 1)
        environment.volumes.archives[workspace.archive_key] = archive


def show(samples: Sequence[tuple[IdleSweep, float]]) -> None:
    rows = [
        [
            f"{sweep.size:,}", str(sweep.queries), str(sweep.rows_written), f"{sweep.cpu * 1000:,.0f}",
            f"{sweep.cpu / sweep.size * 1e6:.1f}", f"{sweep.postgres_cpu * 1000:,.0f}",
            f"{(sweep.cpu + sweep.postgres_cpu) / SWEEP_INTERVAL * 100:.2f}", f"{noise:.0f}",
        ]
        for sweep, noise in samples
    ]  # fmt: skip
    table.print_table(
        "An idle sweep",
        ["workspaces", "queries", "rows written", "CPU ms", "µs each", "PostgreSQL's CPU ms",
         "% of a core at 15 s", "noise %"],
        rows,
    )  # fmt: skip
