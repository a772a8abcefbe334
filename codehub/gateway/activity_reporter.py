"""Reports of activity: a worker flushes what it saw to Redis, and reports that to PostgreSQL (ADR 0018)."""

import asyncio
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple, Protocol

import structlog
from redis.exceptions import RedisError

from codehub.database.engine import CONNECTION_ERRORS
from codehub.gateway.activity import ActivityRecorder
from codehub.host.cancellation import raise_if_cancelled
from codehub.ulids import new_id

logger = structlog.get_logger(__name__)


class ActivitySink(Protocol):
    async def flush(self, uses: Mapping[str, float], gateway_id: str, number: int) -> None: ...


class WorkerRegistry(Protocol):
    async def register(self, gateway_id: str) -> None: ...
    async def report(self, gateway_id: str, flushes: int, ago: timedelta, *, ended: bool) -> int: ...


class Use(NamedTuple):
    """The last use of a workspace that is not known to be in the database."""

    at: float
    flush: int
    """The first flush that contains it. Later ones repeat it until the coordinator has carried one."""


class ActivityReporter:
    """Periodic reporter of one worker.

    Each flush contains every use that is not known to be in the database, because Redis may lose data.
    A worker is registered before its port answers, and deregisters after its last flush. The
    coordinator waits for a worker that was killed.
    """

    def __init__(
        self,
        recorder: ActivityRecorder,
        activity: ActivitySink,
        registry: WorkerRegistry,
        gateway_id: str = "",
    ) -> None:
        self._recorder = recorder
        self._activity = activity
        self._registry = registry
        self._id = gateway_id or new_id()
        self._flushes = 0
        self._uncarried: dict[str, Use] = {}

    async def begin(self) -> None:
        await self._registry.register(self._id)

    async def run(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self._report()
            raise_if_cancelled()

    async def end(self) -> None:
        """Report the rest, and deregister. If that fails, the coordinator counts the worker as silent."""
        await self._report(ended=True)

    async def _report(self, *, ended: bool = False) -> None:
        began = time.monotonic()
        uses = self._collect()
        try:
            await self._activity.flush(uses, self._id, self._flushes)
        except (RedisError, OSError) as error:
            logger.warning("activity could not be flushed", error=str(error), workspaces=len(uses))
            return
        try:
            ago = timedelta(seconds=time.monotonic() - began)
            carried = await self._registry.report(self._id, self._flushes, ago, ended=ended)
        except CONNECTION_ERRORS as error:
            logger.warning("activity could not be reported to the database", error=str(error))
            return
        self._forget(carried)

    def _collect(self) -> dict[str, float]:
        """Return everything that the next flush must contain."""
        self._flushes += 1
        for workspace_id, at in self._recorder.collect().items():
            before = self._uncarried.get(workspace_id)
            self._uncarried[workspace_id] = Use(at if before is None else max(at, before.at), self._flushes)
        return {workspace_id: use.at for workspace_id, use in self._uncarried.items()}

    def _forget(self, carried: int) -> None:
        self._uncarried = {
            workspace_id: use for workspace_id, use in self._uncarried.items() if use.flush > carried
        }
