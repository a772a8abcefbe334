"""The WorkspaceController: observe, decide, save, act; one workspace at a time, never blocked by a job."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.coordinator.actor import Actor, EffectFailed, NotNow
from codehub.coordinator.observer import Memory, Observer
from codehub.coordinator.providers import Providers
from codehub.coordinator.queue import WorkQueue
from codehub.domain.decision import Context, Decision, Rules, failed, settle
from codehub.domain.effects import Effect, RestoreHome, deletion_job_id, job_id
from codehub.domain.plan import looks_at_archive, plan
from codehub.domain.states import Operation
from codehub.domain.workspace import Workspace
from codehub.storage.errors import StorageProblem
from codehub.store import control
from codehub.store.gate import new_id

log = structlog.get_logger(__name__)

FIRST_LOOK_AGAIN = 0.05
"""Seconds until an operation is looked at again for the first time; each further look waits longer."""


@dataclass(frozen=True)
class Rhythm:
    active_interval: float
    active_duration: float
    audit_interval: timedelta = timedelta(hours=1)


class Controller:
    def __init__(
        self,
        engine: AsyncEngine,
        providers: Providers,
        actor: Actor,
        memory: Memory,
        *,
        rules: Rules,
        rhythm: Rhythm,
        retention: timedelta,
        epoch: int,
        clock: Callable[[], datetime],
    ) -> None:
        self._engine = engine
        self._providers = providers
        self._actor = actor
        self._memory = memory
        self._observer = Observer(providers, memory)
        self._rules = rules
        self._rhythm = rhythm
        self._retention = retention
        self._epoch = epoch
        self._clock = clock
        self._active_until: dict[str, datetime] = {}
        self._looks: dict[str, int] = {}
        self._audited_at: datetime | None = None
        self.queue = WorkQueue(self.reconcile)

    def hint(self, workspace_id: str) -> None:
        """Something may have happened to this workspace."""
        self._active_until[workspace_id] = self._clock() + timedelta(seconds=self._rhythm.active_duration)
        self._looks.pop(workspace_id, None)
        self.queue.add(workspace_id)

    async def sweep(self) -> None:
        """Look at everything in a constant number of calls, and queue what needs attention."""
        now = self._clock()
        workspaces = await control.load_all(self._engine)
        await self._audit(workspaces, now)
        looks = await self._observer.look_at_all(workspaces, now)
        for workspace in workspaces:
            if self._needs_attention(workspace, plan(workspace, looks[workspace.id], self._context(now))):
                self.queue.add(workspace.id)
            else:
                self._memory.seen.add(workspace.id)

    async def reconcile(self, workspace_id: str) -> float | None:
        """One look, one decision, one effect; returns when to look again."""
        workspace = await control.load(self._engine, workspace_id)
        if workspace is None:
            return None
        look = await self._observer.look(workspace, self._clock())
        context = self._context(self._clock())
        decision = plan(workspace, look, context)
        self._memory.seen.add(workspace_id)
        try:
            saved = await self._save(workspace, decision, context.now)
            if decision.effect is not None:
                saved = await self._act(saved, decision.effect)
        except control.Outdated:
            return 0.0
        if saved.operation is Operation.NONE and workspace.operation is not Operation.NONE:
            await self._forget_jobs(workspace)
        return self._again(workspace, saved)

    async def _save(self, before: Workspace, decision: Decision, now: datetime) -> Workspace:
        """What changes and does nothing is not saved; before an effect the epoch is compared in any case."""
        if decision.event is not None:
            log.info(decision.sentence, workspace_id=before.id, workspace_event=decision.event.value)
        unchanged = not control.changes(before, decision.after) and decision.effect is None
        if unchanged and not decision.consume and decision.desired is None and decision.event is None:
            return before
        return await control.save(
            self._engine, before, decision, epoch=self._epoch, now=now, retention=self._retention
        )

    async def _act(self, workspace: Workspace, effect: Effect) -> Workspace:
        sha256 = None
        if isinstance(effect, RestoreHome):
            sha256 = await control.archive_checksum(self._engine, effect.archive_key)
        try:
            await self._actor.perform(workspace, effect, sha256)
        except NotNow as reason:
            log.debug("an effect waits", workspace_id=workspace.id, reason=str(reason))
        except EffectFailed as error:
            now = self._clock()
            decision = settle(failed(workspace, error.failure, self._context(now)), now)
            return await self._save(workspace, decision, now)
        return workspace

    def _again(self, before: Workspace, saved: Workspace) -> float | None:
        """In how many seconds to look at this workspace again; None leaves it to the sweep."""
        if (saved.operation, saved.op_id, saved.phase) != (before.operation, before.op_id, before.phase):
            self._looks.pop(saved.id, None)
            return 0.0
        now = self._clock()
        waiting = saved.operation is not Operation.NONE or saved.request is not None
        if saved.next_retry_at is not None and saved.next_retry_at > now:
            return (saved.next_retry_at - now).total_seconds()
        if waiting:
            looks = self._looks[saved.id] = self._looks.get(saved.id, 0) + 1
            return min(FIRST_LOOK_AGAIN * 1.3**looks, self._rhythm.active_interval)
        if self._active_until.get(saved.id, now) > now:
            return self._rhythm.active_interval
        self._active_until.pop(saved.id, None)
        return None

    def _needs_attention(self, workspace: Workspace, decision: Decision) -> bool:
        audit = workspace.id in self._memory.to_audit or looks_at_archive(workspace)
        unfinished = workspace.operation is not Operation.NONE or workspace.request is not None
        changed = bool(control.changes(workspace, decision.after)) or decision.effect is not None
        return audit or unfinished or changed

    async def _audit(self, workspaces: list[Workspace], now: datetime) -> None:
        """Once an hour, compare the archives that rows name with what the store lists."""
        if self._audited_at is not None and now - self._audited_at < self._rhythm.audit_interval:
            self._memory.to_audit &= {item.id for item in workspaces if _archive_unsettled(item)}
            return
        try:
            listed = {stored.key for stored in await self._providers.archives.list() if stored.complete}
        except StorageProblem as error:
            log.warning("the archives could not be audited", error=str(error))
            return
        self._audited_at = now
        self._memory.to_audit = {
            workspace.id
            for workspace in workspaces
            if workspace.archive_key is not None and workspace.archive_key not in listed
        }

    async def _forget_jobs(self, workspace: Workspace) -> None:
        """The operation is over, and its jobs were seen dead: their reports are no longer needed."""
        if workspace.op_id is None:
            return
        for attempt in range(workspace.error_count + 1):
            for name in (job_id(workspace.op_id, attempt), deletion_job_id(workspace.op_id, attempt)):
                await self._providers.jobs.forget(name)
                self._memory.started_jobs.discard(name)

    def _context(self, now: datetime) -> Context:
        jitter = random.random()  # noqa: S311 - not a secret
        return Context(now=now, rules=self._rules, op_id=new_id(), archive_op_id=new_id(), jitter=jitter)


def _archive_unsettled(workspace: Workspace) -> bool:
    return workspace.archive_key is not None and looks_at_archive(workspace)
