"""A simulated gateway worker, with its real activity reporter."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from redis.exceptions import ConnectionError as RedisDown

from codehub.gateway.activity import ActivityRecorder
from codehub.gateway.activity_reporter import ActivityReporter
from tests.simulation.database import Database, Gate, GatewayRow, lost_connection
from tests.simulation.process import Process
from tests.simulation.redis import Redis


class SimulatedRecorder(ActivityRecorder):
    """ActivityRecorder of uses with the time of the virtual clock."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    def record_use(self, workspace_id: str) -> None:
        now = self._database.now().timestamp()
        self._seen[workspace_id] = now
        self._database.world.uses.setdefault(workspace_id, []).append(now)


class SimulatedFlush:
    def __init__(self, process: Process, redis: Redis) -> None:
        self._process = process
        self._redis = redis

    async def flush(self, uses: Mapping[str, float], gateway_id: str, number: int) -> None:
        """Flush, which may fail although Redis answers reads."""
        if self._process.world.is_down("flush"):
            raise RedisDown
        await self._process.write(
            lambda: self._redis.flush(dict(uses), gateway_id, number), RedisDown, "redis"
        )


class SimulatedGatewayRegistry:
    """The simulated counterpart of `codehub.database.gateway_reports.GatewayRegistry`."""

    def __init__(self, process: Process, database: Database) -> None:
        self._process = process
        self._db = database

    async def register(self, gateway_id: str) -> None:
        await self._process.write(lambda: self._register(gateway_id), lost_connection, "database")

    def _register(self, gateway_id: str) -> None:
        if all(row.ended for name, row in self._db.gateways.items() if name != gateway_id):
            Gate(self._db).reset_idle_time(self._db.now())
        self._db.gateways[gateway_id] = GatewayRow(self._db.now())
        self._db.world.open_gateway(gateway_id)

    async def report(self, gateway_id: str, flushes: int, ago: timedelta, *, ended: bool) -> int:
        began = self._db.now() - ago
        return await self._process.write(
            lambda: self._report(gateway_id, GatewayRow(began, flushes, ended=ended)),
            lost_connection,
            "database",
        )

    def _report(self, gateway_id: str, row: GatewayRow) -> int:
        known = self._db.gateways.get(gateway_id)
        row.carried = 0 if known is None else known.carried
        self._db.gateways[gateway_id] = row
        return row.carried


class Gateway:
    """A gateway that is open from its registration until it is stopped or killed."""

    registry = SimulatedGatewayRegistry

    def __init__(self, process: Process, database: Database, redis: Redis, interval: float) -> None:
        self.name = process.name
        self.is_open = False
        self.recorder = SimulatedRecorder(database)
        self._process = process
        self._database = database
        self._interval = interval
        registry = self.registry(process, database)
        self._reporter = ActivityReporter(self.recorder, SimulatedFlush(process, redis), registry, self.name)
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def _run(self) -> None:
        while not self.is_open:
            try:
                await self._reporter.begin()
                self.is_open = True
            except OSError:
                await asyncio.sleep(1)
        await self._reporter.run(self._interval)

    def end(self) -> None:
        """Stop in good order."""
        self._close()
        self._task.cancel()
        self._task = asyncio.create_task(self._reporter.end(), name=f"{self.name} ends")

    def kill(self) -> None:
        self._close()
        self._process.kill()

    def _close(self) -> None:
        self.is_open = False
        self._database.world.close_gateway(self.name)
