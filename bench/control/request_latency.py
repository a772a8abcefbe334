"""Latency from a committed request to the runtime's start, beside the database work that it needs.

That work is a NOTIFY round trip and a committed UPDATE: any reaction to a commit takes them.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg

from bench import table
from bench.control.environment import LIMITS, SETTLED, Environment, bench_environment
from codehub.database import gate
from codehub.database.engine import asyncpg_dsn
from codehub.domain.states import DesiredState
from tests.services import Services


@dataclass(frozen=True)
class RequestLatencies:
    """Seconds of each sample."""

    start: list[float]
    notify: list[float]
    update: list[float]


async def measure(services: Services, count: int) -> RequestLatencies:
    """Measure requests in sequence, each beside a NOTIFY round trip and a committed UPDATE."""
    async with bench_environment(services) as environment, environment.running_leader():
        model = await environment.create(DesiredState.STANDBY)
        await environment.wait_until_all(SETTLED)
        connection = await asyncpg.connect(asyncpg_dsn(environment.url))
        listener = await asyncpg.connect(asyncpg_dsn(environment.url))
        notified = asyncio.Event()
        await listener.add_listener("bench", lambda *_: notified.set())
        await connection.execute("CREATE TABLE bench_row AS SELECT * FROM workspaces")
        await connection.execute("ALTER TABLE bench_row ADD PRIMARY KEY (id)")
        latencies = RequestLatencies([], [], [])
        for number in range(count):
            latencies.start.append(await _start_latency(environment, model.id))
            began = time.perf_counter()
            await connection.execute("NOTIFY bench")
            await notified.wait()
            latencies.notify.append(time.perf_counter() - began)
            notified.clear()
            began = time.perf_counter()
            await connection.execute("UPDATE bench_row SET memo = $1 WHERE id = $2", str(number), model.id)
            latencies.update.append(time.perf_counter() - began)
        await listener.close()
        await connection.close()
        return latencies


async def _start_latency(environment: Environment, workspace_id: str) -> float:
    """Return the seconds from the commit of a request until the runtime's start is called."""
    for desired in (DesiredState.STANDBY, DesiredState.RUNNING):
        environment.runtime.started.clear()
        async with environment.engine.begin() as conn:
            await gate.set_desired_state(
                conn, workspace_id, desired, actor="u1", limits=LIMITS, now=datetime.now(UTC)
            )
        committed = time.perf_counter()
        if desired is DesiredState.RUNNING:
            await environment.runtime.started.wait()
        await environment.wait_until_all(SETTLED)
    return environment.runtime.started_at[workspace_id] - committed


def show(latencies: RequestLatencies, noise: float) -> None:
    peer = [notify + update for notify, update in zip(latencies.notify, latencies.update, strict=True)]
    rows = []
    for name, values in (
        ("a committed request to `start`", latencies.start),
        ("NOTIFY round trip + committed UPDATE", peer),
    ):
        p99 = statistics.quantiles(values, n=100)[98]
        rows.append([name, f"{statistics.median(values) * 1000:.2f}", f"{p99 * 1000:.2f}", f"{noise:.0f}"])
    median = statistics.median(latencies.start) / statistics.median(peer)
    tail = statistics.quantiles(latencies.start, n=100)[98] / statistics.quantiles(peer, n=100)[98]
    rows.append(["ratio", f"{median:.2f}", f"{tail:.2f}", ""])
    table.print_table(
        f"From a committed request to the runtime's start, {len(peer)} times",
        ["", "median ms", "99 % ms", "noise %"],
        rows,
    )
