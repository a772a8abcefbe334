"""GC runner: purges the trash, then removes unprotected archives and leftovers (ADR 0007).

If the state is uncertain, it removes nothing.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from codehub.coordinator.leader_interfaces import LeaderDatabase
from codehub.coordinator.provider_interfaces import Providers
from codehub.database.leader_database import RowLocked
from codehub.domain.gc import ArchiveRemovals, GcRules, StoredArchive, select_archives_to_remove
from codehub.domain.observation import JobState
from codehub.domain.volume_leftovers import Leftover, LeftoverRemovals, select_leftovers_to_remove
from codehub.runtimes.base import RuntimeFailure, RuntimeUnobservable
from codehub.storage.errors import StorageProblem
from codehub.storage.jobs.spec import ClearJob, DeleteJob

logger = structlog.get_logger(__name__)

CONTAINER = "container:"


@dataclass(frozen=True)
class Listing:
    """Everything that exists, listed before the database is read, so that nothing new looks orphaned."""

    archives: list[StoredArchive]
    containers: list[str]
    leftovers: list[Leftover]


@dataclass(frozen=True)
class Selection:
    """Everything that is due for removal in one cycle."""

    archives: ArchiveRemovals
    containers: list[str]
    leftovers: LeftoverRemovals
    is_urgent: bool

    @property
    def alarms(self) -> list[str]:
        return [alarm for alarm in (self.archives.alarm, self.leftovers.alarm) if alarm is not None]


class GcRunner:
    def __init__(self, database: LeaderDatabase, providers: Providers, rules: GcRules, epoch: int) -> None:
        self._database = database
        self._providers = providers
        self._rules = rules
        self._epoch = epoch
        self.alarms: list[str] | None = None
        """Why the last cycle deleted nothing: empty if it raised no alarm, None before the first cycle."""
        self._is_urgent = False
        """Whether something of a workspace without a grace period may still exist."""

    async def purge_waived(self, now: datetime) -> int:
        """Remove at once what was deleted without a grace period (ADR 0025), if anything was."""
        if await self._purge(None, now):
            self._is_urgent = True
        return await self.tick(now) if self._is_urgent else 0

    async def tick(self, now: datetime) -> int:
        """Run one cycle, and return the bytes freed in the store. If a listing fails, remove nothing."""
        began = asyncio.get_running_loop().time()
        await self._purge(now - self._rules.retention, now)
        await self._trim_audit_log(now)
        await self._trim_timelines()
        await self._remove_dead_jobs()
        try:
            listing = await self._list()
        except (StorageProblem, RuntimeUnobservable) as error:
            logger.warning("this GC cycle is skipped: something could not be listed", error=str(error))
            return 0
        found = await self._select(listing, now, began)
        self._is_urgent = found.is_urgent and not found.alarms
        self.alarms = found.alarms
        if found.alarms:
            for alarm in found.alarms:
                logger.error("GC alarm", reason=alarm)
            return 0
        for workspace_id in found.containers:
            await self._remove_container(workspace_id)
        await self._clear_leftovers(found.leftovers.remove, set(listing.containers))
        return await self._remove_archives(found.archives, now)

    async def _list(self) -> Listing:
        archives = await self._providers.archives.list()
        return Listing(
            [
                StoredArchive(item.key, item.workspace_id, item.archive_op_id, item.bytes, item.complete)
                for item in archives
            ],
            list(await self._providers.runtime.observe()),
            await self._providers.volumes.leftovers(),
        )

    async def _select(self, listing: Listing, now: datetime, began: float) -> Selection:
        """Select what is due.

        The grace period of an orphan starts when the database confirms it, not at the listing.
        """
        seen = await self._database.read_orphans()
        holders = await self._database.archive_holders(now)
        now += timedelta(seconds=asyncio.get_running_loop().time() - began)
        found = select_archives_to_remove(listing.archives, holders, seen, self._rules, now)
        cleared = select_leftovers_to_remove(listing.leftovers, holders, seen, self._rules, now)
        living = {
            name for name, holder in holders.items() if holder.purged_at is None or holder.of_other_backend
        }
        strays = {name: seen.get(CONTAINER + name, now) for name in listing.containers if name not in living}
        due = [name for name, at in strays.items() if now - at >= self._rules.orphan_grace]
        at_once = {name for name, holder in holders.items() if holder.skips_grace}
        due_now = {item.workspace_id for item in listing.archives}
        due_now |= {item.workspace_id for item in listing.leftovers}
        selection = Selection(found, due, cleared, not at_once.isdisjoint(due_now))
        first_seen = {CONTAINER + name: at for name, at in strays.items()}
        orphans = {**found.first_seen, **cleared.first_seen, **first_seen}
        # An alarm restarts every grace period, because the sightings may be wrong.
        await self._database.replace_orphans({} if selection.alarms else orphans)
        return selection

    async def _remove_archives(self, found: ArchiveRemovals, now: datetime) -> int:
        freed = 0
        for item in found.remove:
            try:
                freed += await self._remove_archive(item, found.present, now)
            except (StorageProblem, RowLocked) as error:
                logger.warning("an orphaned archive could not be removed", key=item.key, error=str(error))
        if freed:
            logger.info("GC freed space", bytes=freed, archives=len(found.remove))
        return freed

    async def _remove_archive(self, item: StoredArchive, present: frozenset[str], now: datetime) -> int:
        """Check once more, commit the removal, and then remove the archive from the store.

        After the commit nothing can choose the archive. The store is called outside the transaction:
        a slow store would otherwise delay the leader's heartbeat.
        """
        reason = await self._database.mark_archive_removed(item, present, self._rules.archives_kept, now)
        if reason is not None:
            logger.info("kept an archive: a workspace references it again", key=item.key, reason=reason)
            return 0
        await self._providers.archives.remove(item.key)
        logger.info("an orphaned archive was removed", key=item.key, bytes=item.bytes)
        return item.bytes

    async def _purge(self, deleted_before: datetime | None, now: datetime) -> bool:
        """Commit purged_at. From then on, nothing protects what the workspace has left."""
        found = False
        while purged := await self._database.purge(deleted_before, now):
            found = True
            for workspace_id in purged:
                logger.info("purged: the grace period is over or was waived", workspace_id=workspace_id)
        return found

    async def _trim_audit_log(self, now: datetime) -> None:
        if self._rules.audit_retention is None:
            return
        removed = 0
        while some := await self._database.trim_audit_log(now - self._rules.audit_retention):
            removed += some
        if removed:
            logger.info("entries of the audit log were removed after their retention", entries=removed)

    async def _trim_timelines(self) -> None:
        if removed := await self._database.trim_timelines():
            logger.info("entries of long timelines and of purged workspaces were removed", entries=removed)

    async def _clear_leftovers(self, due: tuple[Leftover, ...], containers: set[str]) -> None:
        """Start one job per workspace and cycle, because jobs of one workspace wait for each other."""
        for workspace_id in sorted({item.workspace_id for item in due}):
            items = [item for item in due if item.workspace_id == workspace_id]
            home = next((item for item in items if item.is_home), None)
            if home is not None and workspace_id in containers:
                logger.warning("a home without a workspace stays while it has a container", key=home.key)
                continue
            try:
                await self._start_clear_job(home, items)
            except (StorageProblem, OSError) as error:
                logger.warning("leftovers could not be removed", workspace_id=workspace_id, error=str(error))

    async def _start_clear_job(self, home: Leftover | None, items: list[Leftover]) -> None:
        location, first = self._providers.storage_location, items[0]
        key, workspace_id = first.home_store_key, first.workspace_id
        if home is not None:
            logger.info("a home that belongs to no workspace is removed", key=home.key)
            deletion = DeleteJob(location, workspace_id, key, home.generation, self._epoch)
            await self._providers.jobs.start(f"{workspace_id}-purge", deletion)
            return
        names = [item.name for item in items]
        logger.info("leftovers of a home are removed", workspace_id=workspace_id, names=names)
        clear = ClearJob(location, workspace_id, key, names, self._epoch)
        await self._providers.jobs.start(f"{workspace_id}-clear", clear)

    async def _remove_container(self, workspace_id: str) -> None:
        try:
            await self._providers.runtime.delete(workspace_id)
            logger.info("a container without a workspace was removed", workspace_id=workspace_id)
        except RuntimeFailure as error:
            logger.warning(
                "a container without a workspace could not be removed",
                workspace_id=workspace_id,
                error=error.message,
            )

    async def _remove_dead_jobs(self) -> None:
        """Remove the reports of dead jobs whose operation is over.

        Like archives, jobs are listed before the database is read.
        """
        names = await self._providers.jobs.list()
        current = await self._database.op_ids()
        for name in names:
            if name.split("-")[0] in current:
                continue
            try:
                await self._remove_if_dead(name)
            except (StorageProblem, OSError, ValueError) as error:
                logger.warning("the report of a job could not be removed", job_id=name, error=str(error))

    async def _remove_if_dead(self, name: str) -> None:
        status = await self._providers.jobs.status(name)
        if status is not None:  # otherwise the job has never written more than its directory
            if status.state is JobState.RUNNING:
                return
            if status.state is not JobState.SUCCEEDED:
                logger.warning("a storage job had failed", job_id=name, error=status.message)
        await self._providers.jobs.forget(name)
