"""How soon a wish is acted on, beside the least that any answer to a commit takes."""

import asyncio
import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg

from bench import table
from bench.control.stage import AT_REST, LIMITS, Stage, set_up
from codehub.database import gate
from codehub.database.engine import asyncpg_dsn
from codehub.domain.states import DesiredState
from tests.services import Services


@dataclass(frozen=True)
class Wishes:
    ours: list[float]
    notify: list[float]
    update: list[float]


async def wishes(services: Services, count: int) -> Wishes:
    """One wish after the other, each beside a NOTIFY round trip and a committed UPDATE."""
    async with set_up(services) as stage, stage.led():
        model = await stage.create(DesiredState.STANDBY)
        await stage.until(AT_REST)
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
            await gate.set_desired_state(
                conn, workspace_id, desired, actor="u1", limits=LIMITS, now=datetime.now(UTC)
            )
        committed = time.perf_counter()
        if desired is DesiredState.RUNNING:
            await stage.runtime.started.wait()
        await stage.until(AT_REST)
    return stage.runtime.started_at[workspace_id] - committed


def show(found: Wishes, noise: float) -> None:
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
