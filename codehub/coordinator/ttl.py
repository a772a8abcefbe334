"""The TTL runner: activity into last_access_at, then the wishes of deadlines that have passed."""

from datetime import UTC, datetime

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.bus import activity
from codehub.coordinator.providers import Archives
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.ttl import Expiry, TtlDefaults, expired
from codehub.domain.workspace import Workspace
from codehub.storage.errors import StorageProblem
from codehub.store import gate
from codehub.store.leader import fence
from codehub.store.rows import to_workspaces
from codehub.store.tables import workspaces

log = structlog.get_logger(__name__)


class TtlRunner:
    def __init__(
        self, engine: AsyncEngine, redis: Redis, archives: Archives, defaults: TtlDefaults, epoch: int
    ) -> None:
        self._engine = engine
        self._redis = redis
        self._archives = archives
        self._defaults = defaults
        self._epoch = epoch

    async def tick(self, now: datetime) -> None:
        """One cycle. Activity that cannot be read is unknown, not idle: then nothing expires."""
        try:
            await self._carry_activity(now)
        except (RedisError, OSError) as error:
            log.warning("activity cannot be read: no TTL fires in this cycle", error=str(error))
            return
        due = [
            (workspace, expiry)
            for workspace in await self._candidates()
            if (expiry := expired(workspace, self._defaults, now)) is not None
        ]
        archives_wait = await self._archives_wait(due)
        for workspace, expiry in due:
            if archives_wait and expiry.desired is DesiredState.ARCHIVED:
                continue
            async with self._engine.begin() as conn:
                await fence(conn, self._epoch)
                done = await gate.expire(conn, workspace, expiry.desired, expiry.sentence, now=now)
            if done is not None:
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

    async def _carry_activity(self, now: datetime) -> None:
        """Removed from Redis only after the commit, and only what was committed."""
        seen = await activity.read(self._redis)
        if not seen:
            return
        latest = now.timestamp()
        moments = {
            workspace_id: datetime.fromtimestamp(min(at, latest), UTC)
            for workspace_id, at in seen.items()
            if at > 0
        }
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            await gate.touch(conn, moments)
        await activity.remove(self._redis, seen)

    async def _candidates(self) -> list[Workspace]:
        """Workspaces at rest where they are wanted: only those can expire."""
        c = workspaces.c
        query = select(workspaces).where(
            c.operation == Operation.NONE.value,
            c.deleted_at.is_(None),
            c.desired_state == c.phase,
            c.phase.in_([Phase.RUNNING.value, Phase.STANDBY.value]),
            c.desired_state.in_([DesiredState.RUNNING.value, DesiredState.STANDBY.value]),
        )
        async with self._engine.connect() as conn:
            return to_workspaces((await conn.execute(query)).mappings())
