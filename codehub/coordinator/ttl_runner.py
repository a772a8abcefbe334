"""TTL runner: writes activity to last_access_at, and stops or archives workspaces that are due.

A workspace is stopped only if it is known to be idle. If a gateway has not reported, no TTL stops a
workspace (ADR 0018). Commands and leases keep one awake (ADR 0037).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from redis.exceptions import RedisError

from codehub.coordinator.leader_interfaces import Activity, LeaderDatabase
from codehub.coordinator.provider_interfaces import ArchiveProvider
from codehub.domain.awake import NO_HOLDS, awake_at
from codehub.domain.gateway_reports import (
    ActivityCompleteness,
    ActivitySnapshot,
    GatewayReport,
    GatewayRules,
    check_activity_complete,
    silence_of_awaited,
)
from codehub.domain.other_backends import Backends, why_left_alone
from codehub.domain.states import DesiredState, Phase
from codehub.domain.ttl import Expiry, TtlDefaults, expired
from codehub.domain.workspace import Workspace
from codehub.storage.errors import StorageProblem

logger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TtlRules:
    defaults: TtlDefaults
    backends: Backends
    gateways: GatewayRules


class TtlRunner:
    def __init__(
        self,
        database: LeaderDatabase,
        activity: Activity,
        archives: ArchiveProvider,
        rules: TtlRules,
        clock: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._activity = activity
        self._archives = archives
        self._rules = rules
        self._clock = clock

    async def tick(self) -> list[Expiry]:
        """Run one cycle; return what has expired. While activity cannot be read, nothing expires."""
        try:
            now, uses_known_until = await self._write_activity()
        except (RedisError, OSError) as error:
            logger.warning("activity cannot be read: no TTL fires in this cycle", error=str(error))
            return []
        due = await self._expired(now, uses_known_until)
        is_archive_store_down = await self._is_archive_store_down(due)
        fired = []
        for workspace, expiry in due:
            if is_archive_store_down and expiry.desired is DesiredState.ARCHIVED:
                continue
            if await self._database.apply_expiry(workspace, expiry, now):
                logger.info(expiry.sentence, workspace_id=workspace.id)
                fired.append(expiry)
        await self._database.remove_expired_leases(now)
        return fired

    async def _expired(
        self, now: datetime, uses_known_until: datetime | None
    ) -> list[tuple[Workspace, Expiry]]:
        """Return what has expired.

        Holds are read after the rows. If one has begun or ended in between, the row has changed, and
        its expiry is not applied.
        """
        defaults = self._rules.defaults
        candidates = await self._database.ttl_candidates(defaults, now)
        running = [workspace.id for workspace in candidates if workspace.phase is Phase.RUNNING]
        holds = await self._database.holds(running)
        found = []
        for workspace in candidates:
            awake = awake_at(holds.get(workspace.id, NO_HOLDS), now)
            expiry = expired(workspace, defaults, now, uses_known_until, awake)
            if expiry is not None and why_left_alone(workspace, self._rules.backends) is None:
                found.append((workspace, expiry))
        return found

    async def _is_archive_store_down(self, due: list[tuple[Workspace, Expiry]]) -> bool:
        """Return whether a due workspace cannot be archived, because the store does not answer."""
        if all(expiry.desired is not DesiredState.ARCHIVED for _, expiry in due):
            return False
        try:
            await self._archives.check()
        except StorageProblem as error:
            logger.warning("the archive store does not answer: the archive TTL waits", error=str(error))
            return True
        return False

    async def _write_activity(self) -> tuple[datetime, datetime | None]:
        """Write the activity to the database. Return when it was read, and until when it is complete.

        The reports are read before the activity, so that the activity contains every flush that they
        name. The time is taken after the activity: no use can be later, unless a clock is ahead.
        """
        requested_at = self._clock()
        reports = await self._database.gateway_reports()
        seen = await self._activity.read()
        now = self._clock()
        found = check_activity_complete(reports, seen.flushes, requested_at, self._rules.gateways)
        if seen.uses:
            latest = now.timestamp()
            await self._database.advance_last_access(
                {
                    workspace_id: datetime.fromtimestamp(min(at, latest), UTC)
                    for workspace_id, at in seen.uses.items()
                    if at > 0
                }
            )
        await self._finish_cycle(reports, seen, found, now)
        return now, found.uses_known_until

    async def _finish_cycle(
        self,
        reports: Mapping[str, GatewayReport],
        seen: ActivitySnapshot,
        found: ActivityCompleteness,
        now: datetime,
    ) -> None:
        """Reset idle times, remove lost workers, then remove committed activity from Redis.

        The order makes it safe to stop anywhere: the next leader repeats what is missing.
        """
        if found.lost:
            logger.warning(
                "gateways are lost: idle times of all running workspaces are reset",
                gateways=sorted(found.lost),
            )
            await self._database.reset_idle_time(now)
        if found.unknown_because:
            logger.warning(
                f"no workspace is stopped for inactivity: {found.unknown_because}",
                silent=silence_of_awaited(reports, found.gone),
            )
        carried = {name: number for name, number in seen.flushes.items() if name in reports}
        if reports:
            await self._database.update_gateway_reports(carried, found.gone)
        stale = {
            name: number for name, number in seen.flushes.items() if name not in reports or name in found.gone
        }
        await self._activity.remove(ActivitySnapshot(seen.uses, stale))
