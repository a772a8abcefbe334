"""Many concurrent starts, beside the statements that they sent."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
from sqlalchemy import text

from bench import table
from bench.control.environment import SETTLED, Environment, Statement, StatementRecorder, bench_environment
from codehub.coordinator.postgres_backend import CONNECTIONS
from codehub.coordinator.work_queue import WORKERS
from codehub.database import leader_database
from codehub.database.engine import open_pool
from codehub.database.leadership import LOCK_TIMEOUT, campaign
from codehub.domain.states import DesiredState
from tests.services import Services

CONTROLLER_STATEMENTS = (
    leader_database.VERSIONS,
    leader_database.LOAD,
    leader_database.CONFIRM,
    leader_database.SAVE,
)


@dataclass(frozen=True)
class ConcurrentStarts:
    """Seconds for starts by a leader, and for their statements alone."""

    count: int
    seconds: float
    statements: int
    replay_seconds: float


async def measure(services: Services, count: int) -> ConcurrentStarts:
    """Let a leader start all workspaces. Then replay the statements that it sent."""
    recorder = StatementRecorder()
    async with bench_environment(services) as environment:
        await _insert_pending(environment, count)
        with recorder.recording():
            began = time.perf_counter()
            async with environment.running_leader():
                await environment.wait_until_all(SETTLED)
                seconds = time.perf_counter() - began
    sent = [(sql, values) for sql, values in recorder.statements if sql in CONTROLLER_STATEMENTS]
    async with bench_environment(services) as environment:
        await _insert_pending(environment, count)
        term = await campaign(environment.url, "bench")
        assert term is not None
        replay_seconds = await _replay(environment.url, sent)
        await environment.wait_until_all(SETTLED, seconds=1)
        await term.resign()
    return ConcurrentStarts(count, seconds, len(sent), replay_seconds)


async def _insert_pending(environment: Environment, count: int) -> None:
    model = await environment.create(DesiredState.RUNNING)
    await environment.insert_copies(model, [f"{number:026}" for number in range(count)])
    async with environment.engine.begin() as conn:
        await conn.execute(text("DELETE FROM timeline"))
        await conn.execute(text("DELETE FROM workspaces WHERE id = :id"), {"id": model.id})


async def _replay(url: str, sent: list[Statement]) -> float:
    """Send the statements of each workspace in their order, with the same concurrency.

    Return the seconds.
    """
    by_workspace: dict[str, list[Statement]] = {}
    for sql, values in sent:
        by_workspace.setdefault(_workspace_of(values), []).append((sql, values))
    workers = asyncio.Semaphore(WORKERS)

    async def replay(pool: asyncpg.Pool, statements: list[Statement]) -> None:
        async with workers:
            for sql, values in statements:
                await pool.fetch(sql, *values)

    began = time.perf_counter()
    async with open_pool(url, CONNECTIONS, LOCK_TIMEOUT) as pool:
        await asyncio.gather(*(replay(pool, statements) for statements in by_workspace.values()))
        return time.perf_counter() - began


def _workspace_of(values: tuple[Any, ...]) -> str:
    """Return the id of a statement's workspace, or an empty string if it concerns several."""
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    ids = {item for item in flat if isinstance(item, str) and len(item) == 26 and item.isdigit()}
    return ids.pop() if len(ids) == 1 else ""


def show(samples: Sequence[tuple[ConcurrentStarts, float]]) -> None:
    rows = [
        [
            f"{result.count:,}", f"{result.seconds:.2f}", f"{result.statements:,}",
            f"{result.replay_seconds:.2f}", table.ratio(result.seconds, result.replay_seconds),
            f"{noise:.0f}",
        ]
        for result, noise in samples
    ]  # fmt: skip
    header = [
        "from PENDING to RUNNING",
        "seconds",
        "statements",
        "statements alone, seconds",
        "ratio",
        "noise %",
    ]
    table.print_table("Many concurrent starts", header, rows)
