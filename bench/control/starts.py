"""Many starts at once, beside the statements that they sent."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
from sqlalchemy import text

from bench import table
from bench.control.stage import AT_REST, Sent, Stage, Statements, set_up
from codehub.coordinator.postgres_backend import CONNECTIONS
from codehub.coordinator.work_queue import WORKERS
from codehub.database import controller_writes
from codehub.database.engine import open_pool
from codehub.database.leadership import LOCK_TIMEOUT, campaign
from codehub.domain.states import DesiredState
from tests.services import Services

OWN = (controller_writes.VERSIONS, controller_writes.LOAD, controller_writes.CONFIRM, controller_writes.SAVE)
"""The controller's statements."""


@dataclass(frozen=True)
class Starts:
    count: int
    ours: float
    statements: int
    alone: float


async def starts(services: Services, count: int) -> Starts:
    """All at once, by a leader; then the statements that it sent, by themselves."""
    statements = Statements()
    async with set_up(services) as stage:
        await _insert_pending(stage, count)
        with statements.recorded():
            began = time.perf_counter()
            async with stage.led():
                await stage.until(AT_REST)
                ours = time.perf_counter() - began
    sent = [(sql, values) for sql, values in statements.sent if sql in OWN]
    async with set_up(services) as stage:
        await _insert_pending(stage, count)
        term = await campaign(stage.url, "bench")
        assert term is not None
        alone = await _replay(stage.url, sent)
        await stage.until(AT_REST, seconds=1)
        await term.resign()
    return Starts(count, ours, len(sent), alone)


async def _insert_pending(stage: Stage, count: int) -> None:
    model = await stage.create(DesiredState.RUNNING)
    await stage.copy(model, [f"{number:026}" for number in range(count)])
    async with stage.engine.begin() as conn:
        await conn.execute(text("DELETE FROM timeline"))
        await conn.execute(text("DELETE FROM workspaces WHERE id = :id"), {"id": model.id})


async def _replay(url: str, sent: list[Sent]) -> float:
    """Seconds for the same statements in the same order for each workspace, on as many connections."""
    of: dict[str, list[Sent]] = {}
    for sql, values in sent:
        of.setdefault(_about(values), []).append((sql, values))
    places = asyncio.Semaphore(WORKERS)

    async def play(pool: asyncpg.Pool, statements: list[Sent]) -> None:
        async with places:
            for sql, values in statements:
                await pool.fetch(sql, *values)

    began = time.perf_counter()
    async with open_pool(url, CONNECTIONS, LOCK_TIMEOUT) as pool:
        await asyncio.gather(*(play(pool, statements) for statements in of.values()))
        return time.perf_counter() - began


def _about(values: tuple[Any, ...]) -> str:
    """Which workspace a statement is about; nothing for those about many."""
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    names = {item for item in flat if isinstance(item, str) and len(item) == 26 and item.isdigit()}
    return names.pop() if len(names) == 1 else ""


def show(samples: Sequence[tuple[Starts, float]]) -> None:
    rows = [
        [
            f"{found.count:,}", f"{found.ours:.2f}", f"{found.statements:,}", f"{found.alone:.2f}",
            table.ratio(found.ours, found.alone), f"{noise:.0f}",
        ]
        for found, noise in samples
    ]  # fmt: skip
    header = ["from PENDING to RUNNING", "seconds", "statements", "they alone, seconds", "ratio", "noise %"]
    table.show("Many starts at once", header, rows)
