"""The TTL runner: activity into last_access_at, then the wishes of deadlines that have passed."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from redis.exceptions import RedisError

from codehub.coordinator.providers import Archives
from codehub.coordinator.records import Activity, Records
from codehub.domain.backends import Backends, why_left_alone
from codehub.domain.states import DesiredState
from codehub.domain.ttl import Expiry, TtlDefaults, expired, known_until
from codehub.domain.workspace import Workspace
from codehub.storage.errors import StorageProblem

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TtlRules:
    defaults: TtlDefaults
    backends: Backends
    silence: timedelta
    """For which a gateway may be unheard before nothing stands by any more."""
    gateway_lost_after: timedelta


class TtlRunner:
    def __init__(
        self,
        records: Records,
        activity: Activity,
        archives: Archives,
        rules: TtlRules,
        clock: Callable[[], datetime],
    ) -> None:
        self._records = records
        self._activity = activity
        self._archives = archives
        self._rules = rules
        self._clock = clock

    async def tick(self) -> list[Expiry]:
        """One cycle; returns what has expired. Activity that cannot be read is unknown: then nothing does."""
        try:
            uses_known_until = await self._uses_known_until()
            now = await self._carry_activity()
        except (RedisError, OSError) as error:
            log.warning("activity cannot be read: no TTL fires in this cycle", error=str(error))
            return []
        defaults = self._rules.defaults
        due = [
            (workspace, expiry)
            for workspace in await self._records.expirable(defaults, now)
            if why_left_alone(workspace, self._rules.backends) is None
            and (expiry := expired(workspace, defaults, now, uses_known_until)) is not None
        ]
        archives_wait = await self._archives_wait(due)
        fired = []
        for workspace, expiry in due:
            if archives_wait and expiry.desired is DesiredState.ARCHIVED:
                continue
            if await self._records.expire(workspace, expiry, now):
                log.info(expiry.sentence, workspace_id=workspace.id)
                fired.append(expiry)
        return fired

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

    async def _uses_known_until(self) -> datetime | None:
        """Asked before the activity is read: all that was seen until then must be among it."""
        now = self._clock()
        silences = await self._records.gateway_silences()
        lost = [name for name, silence in silences.items() if silence > self._rules.gateway_lost_after]
        if lost:
            log.warning("gateways are lost: the clocks of all running workspaces restart", gateways=lost)
            await self._records.forget_gateways(lost, now)
        heard = {name: silence for name, silence in silences.items() if name not in lost}
        until = known_until(heard.values(), now, self._rules.silence)
        if until is None:
            log.warning(
                "gateways do not hand over what they see: no workspace stands by until they do",
                silent={name: silence.total_seconds() for name, silence in heard.items()},
            )
        return until

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
