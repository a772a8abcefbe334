"""The WorkspaceController: observe, decide, save, act; one workspace at a time, never blocked by a job."""

import asyncio
from collections.abc import Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from codehub.coordinator.clock_and_ids import ClockAndIds
from codehub.coordinator.effect_executor import (
    DiskSpaceShortage,
    EffectDeferred,
    EffectExecutor,
    EffectFailed,
    EffectQueued,
)
from codehub.coordinator.idle_tracker import BulkObservation, IdleTracker, is_unfinished
from codehub.coordinator.leader_services import LeaderDatabase
from codehub.coordinator.metrics import Metrics
from codehub.coordinator.observer import LeaderState, Observer
from codehub.coordinator.providers import Providers
from codehub.coordinator.work_queue import WorkQueue
from codehub.database.controller_writes import Outdated, RowLocked
from codehub.domain.attempt_jobs import running_job_id
from codehub.domain.backends import why_left_alone
from codehub.domain.decision import (
    Context,
    Decision,
    PlanRules,
    TimelineEvent,
    changed_columns,
    record_failure,
    with_phase,
    without_waiting_message,
)
from codehub.domain.effects import Effect, RestoreHome, deletion_job_id, job_id
from codehub.domain.observation import Observation, Unknown
from codehub.domain.plan import plan
from codehub.domain.states import Operation
from codehub.domain.steps import wait_for_disk_space
from codehub.domain.workspace import Workspace
from codehub.storage.errors import StorageProblem

log = structlog.get_logger(__name__)

FIRST_LOOK_AGAIN = 0.05
"""Seconds until an operation is looked at again for the first time; each further look waits longer."""
LOOKS_GROW = 1.1
"""So that a pause is at most about a tenth of the time that has passed."""
STEPS_AT_ONCE = 8
"""A workspace that goes on step by step without waiting lets others have their turn after so many."""
LOCKED_AGAIN = 1.0
"""Seconds until a workspace is looked at again whose row another transaction keeps locked."""
ROWS_AT_ONCE = 500
FRESH = timedelta(seconds=1)
"""A save has compared the epoch: an effect that follows it within this time need not ask again."""


@dataclass(frozen=True)
class Intervals:
    active_interval: float
    active_duration: float
    audit_interval: timedelta = timedelta(hours=1)


class Controller:
    def __init__(
        self,
        records: LeaderDatabase,
        providers: Providers,
        actor: EffectExecutor,
        memory: LeaderState,
        *,
        rules: PlanRules,
        rhythm: Intervals,
        nature: ClockAndIds,
        metrics: Metrics,
    ) -> None:
        self._records = records
        self._providers = providers
        self._actor = actor
        self._memory = memory
        self._observer = Observer(providers, memory)
        self._rules = rules
        self._rhythm = rhythm
        self._nature = nature
        self._metrics = metrics
        self._resting = IdleTracker()
        self._active_until: dict[str, datetime] = {}
        self._looks: dict[str, int] = {}
        self._audited_at: datetime | None = None
        self._present: Set[str] | None = None
        """The containers of the last look at all."""
        self.has_looked = asyncio.Event()
        """Set when containers may be started: what has gone before has lost its route."""
        self.queue = WorkQueue(self.reconcile)

    def hint(self, workspace_id: str) -> None:
        """Something may have happened to this workspace."""
        until = self._nature.clock() + timedelta(seconds=self._rhythm.active_duration)
        self._active_until[workspace_id] = until
        self._looks.pop(workspace_id, None)
        self.queue.add(workspace_id)

    async def sweep(self) -> None:
        """Look at everything in a constant number of calls, and queue what needs attention."""
        now = self._nature.clock()
        versions = await self._records.versions()
        seen = await self._observer.look_at_all()
        await self._unroute(seen)
        others = self._resting.others(versions, seen)
        context = self._context(now)
        for start in range(0, len(others), ROWS_AT_ONCE):
            for workspace in await self._records.load(others[start : start + ROWS_AT_ONCE]):
                self._consider(workspace, seen, context)
            await asyncio.sleep(0)

    async def _unroute(self, seen: BulkObservation) -> None:
        """An address whose container is gone may be given to another: nobody must be led there.

        Until the containers have been seen, none is started.
        """
        if isinstance(seen.containers, Unknown):
            return
        present = set(seen.containers)
        before = await self._records.ids_with_upstream() if self._present is None else self._present
        if gone := before - present:
            await self._records.clear_upstreams(gone)
        self._present = present
        self.has_looked.set()

    def _consider(self, workspace: Workspace, seen: BulkObservation, context: Context) -> None:
        ours = why_left_alone(workspace, self._rules.backends) is None
        if ours and seen.is_outage and workspace.operation is Operation.NONE:
            return  # nothing could be decided, and every row would be rewritten to say so
        decision = plan(workspace, self._observer.single_out(workspace, seen, context.now), context)
        changed = bool(changed_columns(workspace, decision.after)) or decision.effect is not None
        unfinished = is_unfinished(workspace) or workspace.id in self._memory.to_audit
        if changed or (ours and unfinished):
            self.queue.add(workspace.id)
            return
        self._memory.seen.add(workspace.id)
        self._resting.add(workspace)

    async def reconcile(self, workspace_id: str) -> float | None:
        """Step by step until there is something to wait for; returns when to look again."""
        workspace = await self._records.find(workspace_id)
        if workspace is None or workspace.purged_at is not None:
            return None
        last: Effect | None = None
        saved_at: datetime | None = None
        for _ in range(STEPS_AT_ONCE):
            try:
                saved, effect = await self._step(workspace, saved_at)
            except Outdated:
                self._metrics.cas_losses.inc()
                return 0.0
            except RowLocked:
                log.info(
                    "a workspace waits: another transaction has locked its row", workspace_id=workspace_id
                )
                return LOCKED_AGAIN
            stands = _stage(saved) == _stage(workspace)
            if saved.version != workspace.version:
                saved_at = self._nature.clock()
            workspace = saved
            if not stands:
                self._looks.pop(workspace_id, None)
            elif effect is None or effect == last:
                return self._again(workspace)
            last = effect
        return 0.0

    async def _step(self, workspace: Workspace, saved_at: datetime | None) -> tuple[Workspace, Effect | None]:
        """One look, one decision, one effect."""
        look = await self._observer.look(workspace, self._nature.clock())
        context = self._context(self._nature.clock())
        decision = plan(workspace, look, context)
        self._memory.seen.add(workspace.id)
        if _breaks_off(workspace, decision) and not await self._fence(workspace):
            return workspace, None
        saved = workspace
        if decision.writes(workspace) or (
            decision.effect is not None and not _is_fresh(saved_at, context.now)
        ):
            saved = await self._save(workspace, decision, context.now)
            self._metrics.count_decision(workspace, decision, look, context.now)
        if decision.effect is not None:
            saved = await self._act(saved, decision.effect, look)
        if saved.operation is Operation.NONE and workspace.operation is not Operation.NONE:
            await self._forget_jobs(workspace)
        return saved, decision.effect

    async def _save(self, before: Workspace, decision: Decision, now: datetime) -> Workspace:
        """The epoch and the row's version are compared, also where only an effect is to follow."""
        if decision.event is not None:
            log.info(decision.sentence, workspace_id=before.id, workspace_event=decision.event.value)
        return await self._records.save(before, decision, now)

    async def _fence(self, workspace: Workspace) -> bool:
        """An earlier leader may have yet to start a job of the operation that ends: it must not any more.

        True once that is so, and was so before the look on which the end was decided.
        """
        if workspace.id in self._memory.fenced:
            return True
        try:
            await self._actor.fence(workspace)
        except (EffectDeferred, EffectFailed) as reason:
            log.debug("an operation cannot end yet", workspace_id=workspace.id, reason=str(reason))
        else:
            self._memory.fenced.add(workspace.id)
        return False

    async def _act(self, workspace: Workspace, effect: Effect, look: Observation) -> Workspace:
        sha256 = None
        if isinstance(effect, RestoreHome):
            sha256 = await self._records.archive_checksum(effect.archive_key)
        try:
            await self._actor.perform(workspace, effect, sha256)
        except DiskSpaceShortage as reason:
            return await self._let_wait_for_room(workspace, str(reason), look)
        except EffectQueued as reason:
            return await self._let_wait(workspace, str(reason))
        except EffectDeferred as reason:
            log.debug("an effect waits", workspace_id=workspace.id, reason=str(reason))
        except EffectFailed as error:
            return await self._count(workspace, error, look)
        if workspace.error_message is not None and workspace.error_reason is None:
            now = self._nature.clock()
            return await self._save(
                workspace, Decision("There is room again.", without_waiting_message(workspace)), now
            )
        return workspace

    async def _let_wait_for_room(self, workspace: Workspace, message: str, look: Observation) -> Workspace:
        """Show the owner what the operation waits for, and give the wish back after a while."""
        now = self._nature.clock()
        decision = wait_for_disk_space(workspace, message, now)
        if decision.event is None and workspace.error_message is not None:
            return await self._let_wait(workspace, message)
        decision = with_phase(decision, now)
        lives = running_job_id(workspace, look) is not None
        if _breaks_off(workspace, decision) and (lives or not await self._fence(workspace)):
            return workspace
        return await self._save(workspace, decision, now)

    async def _let_wait(self, workspace: Workspace, reason: str) -> Workspace:
        """An operation must not time out in a queue; its row is written now and then only."""
        now = self._nature.clock()
        since = workspace.progress_at or workspace.op_started_at
        if since is not None and now - since < self._rules.timeouts[workspace.operation] / 4:
            return workspace
        return await self._save(workspace, Decision(reason, replace(workspace, progress_at=now)), now)

    async def _count(self, workspace: Workspace, error: EffectFailed, look: Observation) -> Workspace:
        """One more failure; but while a job of this attempt lives, the next attempt would not see it."""
        now = self._nature.clock()
        decision = with_phase(record_failure(workspace, error.failure, self._context(now)), now)
        lives = running_job_id(workspace, look) is not None
        if lives or (_breaks_off(workspace, decision) and not await self._fence(workspace)):
            log.warning(
                "an effect failed and will be tried again", workspace_id=workspace.id, error=str(error)
            )
            return workspace
        saved = await self._save(workspace, decision, now)
        self._metrics.count_decision(workspace, decision, look, now)
        return saved

    def _again(self, workspace: Workspace) -> float | None:
        """In how many seconds to look at this workspace again; None leaves it to the sweep."""
        now = self._nature.clock()
        if why_left_alone(workspace, self._rules.backends) is not None:
            return None
        if workspace.next_retry_at is not None and workspace.next_retry_at > now:
            return (workspace.next_retry_at - now).total_seconds()
        if workspace.operation is not Operation.NONE or workspace.request is not None:
            looks = self._looks[workspace.id] = self._looks.get(workspace.id, 0) + 1
            return min(FIRST_LOOK_AGAIN * LOOKS_GROW**looks, self._rhythm.active_interval)
        self._looks.pop(workspace.id, None)
        if self._active_until.get(workspace.id, now) > now:
            return self._rhythm.active_interval
        self._active_until.pop(workspace.id, None)
        return None

    async def audit(self) -> None:
        """Once an hour, compare the archives that rows name with what the store lists.

        Beside the sweep: a store that takes its time holds up nothing else.
        """
        now = self._nature.clock()
        if self._audited_at is not None and now - self._audited_at < self._rhythm.audit_interval:
            return
        try:
            listed = {stored.key for stored in await self._providers.archives.list() if stored.complete}
        except StorageProblem as error:
            log.warning("the archives could not be audited", error=str(error))
            return
        self._audited_at = now
        keys = await self._records.archive_keys()
        self._memory.to_audit = {name for name, (key, ready) in keys.items() if (key in listed) != ready}
        for workspace_id in self._memory.to_audit:
            self._resting.disturb(workspace_id)

    async def _forget_jobs(self, workspace: Workspace) -> None:
        """The operation is over, and its jobs were seen dead: their reports are no longer needed."""
        if workspace.op_id is None or not workspace.operation.has_jobs:
            return
        for attempt in range(workspace.error_count + 1):
            for name in (job_id(workspace.op_id, attempt), deletion_job_id(workspace.op_id, attempt)):
                await self._providers.jobs.forget(name)
                self._memory.started_jobs.discard(name)

    def _context(self, now: datetime) -> Context:
        nature = self._nature
        return Context(now, self._rules, nature.new_id(), nature.new_id(), nature.jitter())


def _stage(workspace: Workspace) -> tuple[object, ...]:
    """A step that changes this is followed by the next one at once."""
    return workspace.operation, workspace.op_id, workspace.phase


def _breaks_off(workspace: Workspace, decision: Decision) -> bool:
    """Whether an operation that moves a home ends without having done so."""
    ends = workspace.operation is not Operation.NONE and decision.after.operation is Operation.NONE
    return ends and workspace.operation.moves_home and decision.event is not TimelineEvent.FINISHED


def _is_fresh(saved_at: datetime | None, now: datetime) -> bool:
    return saved_at is not None and now - saved_at < FRESH
