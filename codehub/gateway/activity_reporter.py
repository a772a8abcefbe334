"""Hands over what a worker has seen of the workspaces' use, and reports until when it has."""

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


class Flushing(Protocol):
    async def flush(self, uses: Mapping[str, float], gateway_id: str, number: int) -> None: ...


class Reporting(Protocol):
    async def register(self, gateway_id: str) -> None: ...
    async def report(self, gateway_id: str, flushes: int, ago: timedelta, *, ended: bool) -> int: ...


class Use(NamedTuple):
    at: float
    flush: int
    """The first flush that has it. So has every later one, until the coordinator has carried one of them."""


class ActivityReporter:
    """The worker's side of ADR 0018.

    Each flush has every use that is not known to be in the database, because Redis may lose what it took.
    A worker is registered from before its port answers until it has flushed everything at its end. The
    coordinator waits for a worker that was killed.
    """

    def __init__(
        self, recorder: ActivityRecorder, activity: Flushing, registry: Reporting, gateway_id: str = ""
    ) -> None:
        self._recorder = recorder
        self._activity = activity
        self._registry = registry
        self._id = gateway_id or new_id()
        self._flushes = 0
        self._uncarried: dict[str, Use] = {}

    async def begin(self) -> None:
        await self._registry.begin(self._id)

    async def run(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self._hand_over()
            raise_if_cancelled()

    async def end(self) -> None:
        """Hand over the rest, and deregister. If that fails, the coordinator counts the worker as silent."""
        await self._hand_over(ended=True)

    async def _hand_over(self, *, ended: bool = False) -> None:
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
            logger.warning("the database did not take the report", error=str(error))
            return
        self._forget(carried)

    def _collect(self) -> dict[str, float]:
        """Return everything that the next flush has to have."""
        self._flushes += 1
        for workspace_id, at in self._recorder.collect().items():
            before = self._uncarried.get(workspace_id)
            self._uncarried[workspace_id] = Use(at if before is None else max(at, before.at), self._flushes)
        return {workspace_id: use.at for workspace_id, use in self._uncarried.items()}

    def _forget(self, carried: int) -> None:
        self._uncarried = {
            workspace_id: use for workspace_id, use in self._uncarried.items() if use.flush > carried
        }
