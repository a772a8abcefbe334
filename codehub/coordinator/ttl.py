"""The TTL runner: activity into last_access_at, then the wishes of deadlines that have passed."""

from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from redis.exceptions import RedisError

from codehub.coordinator.providers import Archives
from codehub.coordinator.records import Activity, Records
from codehub.domain.states import DesiredState
from codehub.domain.ttl import Expiry, TtlDefaults, expired
from codehub.domain.workspace import Workspace
from codehub.storage.errors import StorageProblem

log = structlog.get_logger(__name__)


class TtlRunner:
    def __init__(
        self,
        records: Records,
        activity: Activity,
        archives: Archives,
        defaults: TtlDefaults,
        clock: Callable[[], datetime],
    ) -> None:
        self._records = records
        self._activity = activity
        self._archives = archives
        self._defaults = defaults
        self._clock = clock

    async def tick(self) -> None:
        """One cycle. Activity that cannot be read is unknown, not idle: then nothing expires."""
        try:
            now = await self._carry_activity()
        except (RedisError, OSError) as error:
            log.warning("activity cannot be read: no TTL fires in this cycle", error=str(error))
            return
        due = [
            (workspace, expiry)
            for workspace in await self._records.expirable(self._defaults, now)
            if (expiry := expired(workspace, self._defaults, now)) is not None
        ]
        archives_wait = await self._archives_wait(due)
        for workspace, expiry in due:
            if archives_wait and expiry.desired is DesiredState.ARCHIVED:
                continue
            if await self._records.expire(workspace, expiry, now):
                log.info(expiry.sentence, workspace_id=workspace.id)

    async def _archives_wait(self, due: list[tuple[Workspace, Expiry]]) -> bool:
        """With the store down nothing is sent into an archive operation that can only fail."""
        if all(expiry.desired is not DesiredState.ARCHIVED for _, expiry in due):
            return False
        try:
            await self._archives.check()
        except StorageProblem as error:
            log.warning("the archive store does not answer: the archive TTL waits", error=str(error))
            return True
        return False

    async def _carry_activity(self) -> datetime:
        """Removed from Redis only after the commit, and only what was committed. Returns when it was read.

        The time is taken after the reading: no activity can be later, unless a clock is ahead.
        """
        seen = await self._activity.read()
        now = self._clock()
        if seen:
            latest = now.timestamp()
            await self._records.touch(
                {
                    workspace_id: datetime.fromtimestamp(min(at, latest), UTC)
                    for workspace_id, at in seen.items()
                    if at > 0
                }
            )
            await self._activity.remove(seen)
        return now
