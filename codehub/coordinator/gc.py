"""The GC runner: purges the trash, then removes what nothing protects. When in doubt, it keeps."""

from datetime import datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.coordinator.providers import Providers
from codehub.domain.gc import GcRules, Stored, Sweep, protection, sweep
from codehub.domain.observation import JobState
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.base import Unobservable as RuntimeUnobservable
from codehub.storage.errors import StorageProblem
from codehub.storage.jobspec import DeleteJob
from codehub.store import gate, timeline
from codehub.store import gc as records
from codehub.store.leader import fence

log = structlog.get_logger(__name__)

CONTAINER = "container:"


class GcRunner:
    def __init__(self, engine: AsyncEngine, providers: Providers, rules: GcRules, epoch: int) -> None:
        self._engine = engine
        self._providers = providers
        self._rules = rules
        self._epoch = epoch

    async def tick(self, now: datetime) -> int:
        """One cycle; returns the bytes freed. What cannot be listed is left alone."""
        await self._purge(now)
        await self._remove_purged_homes()
        await self._forget_dead_jobs()
        try:
            listed = [
                Stored(item.key, item.workspace_id, item.archive_op_id, item.bytes)
                for item in await self._providers.archives.list()
            ]
            containers = list(await self._providers.runtime.observe())
        except (StorageProblem, RuntimeUnobservable) as error:
            log.warning("this GC cycle is skipped: something could not be listed", error=str(error))
            return 0
        found, orphaned = await self._select(listed, containers, now)
        if found.alarm is not None:
            log.error("GC alarm", reason=found.alarm)
        for workspace_id in orphaned:
            await self._remove_container(workspace_id)
        return await self._remove(found, now)

    async def _select(
        self, listed: list[Stored], containers: list[str], now: datetime
    ) -> tuple[Sweep, list[str]]:
        """The store was listed first; the database is read after, so that nothing new looks orphaned."""
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            seen = await records.first_seen(conn)
            found = sweep(listed, await records.holders(conn, now), seen, self._rules, now)
            unknown = set(containers) - await records.known_ids(conn, containers)
            strays = {CONTAINER + name: seen.get(CONTAINER + name, now) for name in unknown}
            await records.remember(conn, {**found.first_seen, **strays})
        grace = self._rules.orphan_grace
        return found, [name.removeprefix(CONTAINER) for name, at in strays.items() if now - at >= grace]

    async def _remove(self, found: Sweep, now: datetime) -> int:
        freed = 0
        for item in found.remove:
            try:
                freed += await self._remove_one(item, found.present, now)
            except StorageProblem as error:
                log.warning("an orphaned archive could not be removed", key=item.key, error=str(error))
        if freed:
            log.info("GC freed space", bytes=freed, archives=len(found.remove))
        return freed

    async def _remove_one(self, item: Stored, present: frozenset[str], now: datetime) -> int:
        """Asked once more with its workspace's row locked, so that nothing can begin to need it meanwhile."""
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            holder = (await records.holders(conn, now, item.workspace_id)).get(item.workspace_id)
            if reason := protection(item, holder, present):
                log.info("an archive is needed after all", key=item.key, reason=reason)
                return 0
            await self._providers.archives.remove(item.key)
            await records.mark_removed(conn, item.key, now)
        log.info("an orphaned archive was removed", key=item.key, bytes=item.bytes)
        return item.bytes

    async def _purge(self, now: datetime) -> None:
        """purged_at is committed first: from then on nothing of the workspace is promised any more."""
        cutoff = now - self._rules.retention
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            for workspace_id in await records.purge_candidates(conn, cutoff):
                if await gate.purge(conn, workspace_id, cutoff):
                    await self._tell(conn, workspace_id, now)

    async def _tell(self, conn: AsyncConnection, workspace_id: str, now: datetime) -> None:
        words = "The grace period is over: purged."
        await timeline.record(conn, workspace_id, now, actor="gc", event="purged", message=words)
        log.info(words, workspace_id=workspace_id)

    async def _remove_purged_homes(self) -> None:
        """A workspace deleted in ERROR kept its volume until now."""
        async with self._engine.connect() as conn:
            purged = await records.purged_with_home(conn)
        for workspace in purged:
            try:
                volume = await self._providers.volumes.status(workspace.home_store_key)
                if volume is None or workspace.home_ctx is None or volume.generation != workspace.home_ctx:
                    continue
                spec = DeleteJob(
                    self._providers.place,
                    workspace.id,
                    workspace.home_store_key,
                    workspace.home_ctx,
                    self._epoch,
                )
                await self._providers.jobs.start(f"{workspace.id}-purge", spec)
            except StorageProblem as error:
                log.warning("a purged home could not be removed", workspace_id=workspace.id, error=str(error))

    async def _remove_container(self, workspace_id: str) -> None:
        try:
            await self._providers.runtime.delete(workspace_id)
            log.info("a container without a workspace was removed", workspace_id=workspace_id)
        except RuntimeFailure as error:
            log.warning("a stray container stays", workspace_id=workspace_id, error=error.message)

    async def _forget_dead_jobs(self) -> None:
        """Reports of jobs whose operation is over. Listed before the database is read, as archives are."""
        names = await self._providers.jobs.list()
        async with self._engine.connect() as conn:
            current = await records.current_op_ids(conn)
        for name in names:
            if name.split("-")[0] in current:
                continue
            status = await self._providers.jobs.status(name)
            if status is not None and status.state is not JobState.RUNNING:
                await self._providers.jobs.forget(name)
