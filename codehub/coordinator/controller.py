"""Workspace controller: observe, decide, save, act (ADR 0001).

It reconciles one workspace at a time, and never waits for a storage job (ADR 0003).
"""

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
from codehub.coordinator.idle_tracker import BulkObservation, IdleTracker, needs_full_observation
from codehub.coordinator.leader_interfaces import LeaderDatabase
from codehub.coordinator.metrics import CoordinatorMetrics
from codehub.coordinator.observer import LeaderState, Observer
from codehub.coordinator.provider_interfaces import Providers
from codehub.coordinator.work_queue import WorkQueue
from codehub.database.leader_database import RowLocked, VersionConflict
from codehub.domain.attempt_jobs import running_job_id
from codehub.domain.continue_operation import wait_for_disk_space
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
from codehub.domain.other_backends import why_left_alone
from codehub.domain.plan import plan
from codehub.domain.states import Operation
from codehub.domain.workspace import Workspace
from codehub.storage.errors import StorageProblem

logger = structlog.get_logger(__name__)

FIRST_RECHECK = 0.05
"""Seconds until the first recheck of an operation. Each further recheck waits longer."""
RECHECK_GROWTH = 1.1
"""Factor between two rechecks: a pause is at most about a tenth of the time that has passed."""
STEPS_PER_TURN = 8
"""Steps of one workspace before other workspaces get a worker."""
LOCKED_ROW_RETRY = 1.0
"""Seconds until the next attempt at a workspace whose row another transaction keeps locked."""
ROWS_PER_QUERY = 500
EPOCH_CHECK_VALID_FOR = timedelta(seconds=1)
"""A save compares the epoch. An effect within this time after it needs no further comparison."""


@dataclass(frozen=True)
class Intervals:
    """Timing of rechecks and audits, from the settings."""

    active: float
    active_duration: float
    audit: timedelta = timedelta(hours=1)


class Controller:
    def __init__(
        self,
        database: LeaderDatabase,
        providers: Providers,
        executor: EffectExecutor,
        state: LeaderState,
        *,
        rules: PlanRules,
        intervals: Intervals,
        clock_and_ids: ClockAndIds,
        metrics: CoordinatorMetrics,
    ) -> None:
        self._database = database
        self._providers = providers
        self._executor = executor
        self._state = state
        self._observer = Observer(providers, state)
        self._rules = rules
        self._intervals = intervals
        self._clock_and_ids = clock_and_ids
        self._metrics = metrics
        self._idle_tracker = IdleTracker()
        self._active_until: dict[str, datetime] = {}
        self._rechecks: dict[str, int] = {}
        self._audited_at: datetime | None = None
        self._known_containers: Set[str] | None = None
        """The containers of the last bulk observation."""
        self.may_start_containers = asyncio.Event()
        """Set once no route points to a container that is gone."""
        self.queue = WorkQueue(self.reconcile)

    def enqueue_soon(self, workspace_id: str) -> None:
        """Reconcile this workspace soon: something may have happened to it."""
        until = self._clock_and_ids.clock() + timedelta(seconds=self._intervals.active_duration)
        self._active_until[workspace_id] = until
        self._rechecks.pop(workspace_id, None)
        self.queue.add(workspace_id)

    async def sweep(self) -> None:
        """Observe everything in a constant number of calls, and queue what needs attention."""
        now = self._clock_and_ids.clock()
        versions = await self._database.versions()
        bulk = await self._observer.observe_all()
        await self._remove_stale_routes(bulk)
        active = self._idle_tracker.update(versions, bulk)
        context = self._context(now)
        for start in range(0, len(active), ROWS_PER_QUERY):
            for workspace in await self._database.load(active[start : start + ROWS_PER_QUERY]):
                self._queue_or_mark_idle(workspace, bulk, context)
            await asyncio.sleep(0)

    async def _remove_stale_routes(self, bulk: BulkObservation) -> None:
        """Remove the routes to containers that are gone.

        The runtime may give the address of such a container to the next one. So no container is
        started before the first bulk observation.
        """
        if isinstance(bulk.containers, Unknown):
            return
        containers = set(bulk.containers)
        known = self._known_containers
        routed = await self._database.ids_with_upstream() if known is None else known
        if gone := routed - containers:
            await self._database.clear_upstreams(gone)
        self._known_containers = containers
        self.may_start_containers.set()

    def _queue_or_mark_idle(self, workspace: Workspace, bulk: BulkObservation, context: Context) -> None:
        ours = why_left_alone(workspace, self._rules.backends) is None
        if ours and bulk.is_outage and workspace.operation is Operation.NONE:
            return  # no decision is possible, and every row would be rewritten to report the outage
        observation = self._observer.observation_of(workspace, bulk, context.now)
        decision = plan(workspace, observation, context)
        changed = bool(changed_columns(workspace, decision.after)) or decision.effect is not None
        unfinished = needs_full_observation(workspace) or workspace.id in self._state.to_audit
        if changed or (ours and unfinished):
            self.queue.add(workspace.id)
            return
        self._state.observed.add(workspace.id)
        self._idle_tracker.mark_idle(workspace)

    async def reconcile(self, workspace_id: str) -> float | None:
        """Take steps until the workspace waits for something; return the seconds until the recheck."""
        workspace = await self._database.find(workspace_id)
        if workspace is None or workspace.purged_at is not None:
            return None
        last: Effect | None = None
        saved_at: datetime | None = None
        for _ in range(STEPS_PER_TURN):
            try:
                saved, effect = await self._step(workspace, saved_at)
            except VersionConflict:
                self._metrics.cas_losses.inc()
                return 0.0
            except RowLocked:
                logger.info(
                    "another transaction has locked the row of a workspace; trying again",
                    workspace_id=workspace_id,
                    next_try_in=LOCKED_ROW_RETRY,
                )
                return LOCKED_ROW_RETRY
            same_stage = _stage(saved) == _stage(workspace)
            if saved.version != workspace.version:
                saved_at = self._clock_and_ids.clock()
            workspace = saved
            if not same_stage:
                self._rechecks.pop(workspace_id, None)
            elif effect is None or effect == last:
                return self._seconds_until_recheck(workspace)
            last = effect
        return 0.0

    async def _step(self, workspace: Workspace, saved_at: datetime | None) -> tuple[Workspace, Effect | None]:
        """Observe, decide, save and carry out one effect."""
        observation = await self._observer.observe(workspace, self._clock_and_ids.clock())
        context = self._context(self._clock_and_ids.clock())
        decision = plan(workspace, observation, context)
        self._state.observed.add(workspace.id)
        if _aborts_home_move(workspace, decision) and not await self._fence(workspace):
            return workspace, None
        saved = workspace
        if decision.writes(workspace) or (
            decision.effect is not None and not _is_recent(saved_at, context.now)
        ):
            saved = await self._save(workspace, decision, context.now)
            self._metrics.count_decision(workspace, decision, observation, context.now)
        if decision.effect is not None:
            saved = await self._execute(saved, decision.effect, observation)
        if saved.operation is Operation.NONE and workspace.operation is not Operation.NONE:
            await self._remove_job_reports(workspace)
        return saved, decision.effect

    async def _save(self, before: Workspace, decision: Decision, now: datetime) -> Workspace:
        """Save a decision. The epoch and the row's version are compared even if only an effect follows."""
        if decision.event is not None:
            logger.info(decision.sentence, workspace_id=before.id, workspace_event=decision.event.value)
        return await self._database.save(before, decision, now)

    async def _fence(self, workspace: Workspace) -> bool:
        """Keep earlier leaders from starting a job of the operation that ends (ADR 0002).

        Return whether the fence stood before the observation on which the end was decided.
        """
        if workspace.id in self._state.fenced:
            return True
        try:
            await self._executor.fence(workspace)
        except (EffectDeferred, EffectFailed) as reason:
            logger.debug("an operation cannot end yet", workspace_id=workspace.id, reason=str(reason))
        else:
            self._state.fenced.add(workspace.id)
        return False

    async def _execute(self, workspace: Workspace, effect: Effect, observation: Observation) -> Workspace:
        sha256 = None
        if isinstance(effect, RestoreHome):
            sha256 = await self._database.archive_checksum(effect.archive_key)
        try:
            await self._executor.execute(workspace, effect, sha256)
        except DiskSpaceShortage as reason:
            return await self._wait_for_disk_space(workspace, str(reason), observation)
        except EffectQueued as reason:
            return await self._wait_in_queue(workspace, str(reason))
        except EffectDeferred as reason:
            logger.debug("an effect waits", workspace_id=workspace.id, reason=str(reason))
        except EffectFailed as error:
            return await self._record_failure(workspace, error, observation)
        if workspace.error_message is not None and workspace.error_reason is None:
            now = self._clock_and_ids.clock()
            return await self._save(
                workspace, Decision("Disk space is available again.", without_waiting_message(workspace)), now
            )
        return workspace

    async def _wait_for_disk_space(
        self, workspace: Workspace, message: str, observation: Observation
    ) -> Workspace:
        """Show the owner what the operation waits for, and give up the operation after a while."""
        now = self._clock_and_ids.clock()
        decision = wait_for_disk_space(workspace, message, now)
        if decision.event is None and workspace.error_message is not None:
            return await self._wait_in_queue(workspace, message)
        decision = with_phase(decision, now)
        job_runs = running_job_id(workspace, observation) is not None
        if _aborts_home_move(workspace, decision) and (job_runs or not await self._fence(workspace)):
            return workspace
        return await self._save(workspace, decision, now)

    async def _wait_in_queue(self, workspace: Workspace, reason: str) -> Workspace:
        """Count waiting as progress, so that the operation does not time out. Write the row rarely."""
        now = self._clock_and_ids.clock()
        since = workspace.progress_at or workspace.op_started_at
        if since is not None and now - since < self._rules.timeouts[workspace.operation] / 4:
            return workspace
        return await self._save(workspace, Decision(reason, replace(workspace, progress_at=now)), now)

    async def _record_failure(
        self, workspace: Workspace, error: EffectFailed, observation: Observation
    ) -> Workspace:
        """Count the failure, unless a job of this attempt runs: the next attempt would lose track of it."""
        now = self._clock_and_ids.clock()
        decision = with_phase(record_failure(workspace, error.failure, self._context(now)), now)
        job_runs = running_job_id(workspace, observation) is not None
        if job_runs or (_aborts_home_move(workspace, decision) and not await self._fence(workspace)):
            logger.warning(
                "an effect failed and will be tried again", workspace_id=workspace.id, error=str(error)
            )
            return workspace
        saved = await self._save(workspace, decision, now)
        self._metrics.count_decision(workspace, decision, observation, now)
        return saved

    def _seconds_until_recheck(self, workspace: Workspace) -> float | None:
        """Return when to reconcile this workspace again; None leaves it to the sweep."""
        now = self._clock_and_ids.clock()
        if why_left_alone(workspace, self._rules.backends) is not None:
            return None
        if workspace.next_retry_at is not None and workspace.next_retry_at > now:
            return (workspace.next_retry_at - now).total_seconds()
        if workspace.operation is not Operation.NONE or workspace.request is not None:
            count = self._rechecks[workspace.id] = self._rechecks.get(workspace.id, 0) + 1
            return min(FIRST_RECHECK * RECHECK_GROWTH**count, self._intervals.active)
        self._rechecks.pop(workspace.id, None)
        if self._active_until.get(workspace.id, now) > now:
            return self._intervals.active
        self._active_until.pop(workspace.id, None)
        return None

    async def compare_archives_with_store(self) -> None:
        """Once an hour, compare the archives that rows name with the listing of the store.

        This runs beside the sweep, so that a slow store delays nothing else.
        """
        now = self._clock_and_ids.clock()
        if self._audited_at is not None and now - self._audited_at < self._intervals.audit:
            return
        try:
            listed = {stored.key for stored in await self._providers.archives.list() if stored.complete}
        except StorageProblem as error:
            logger.warning("the archives could not be audited", error=str(error))
            return
        self._audited_at = now
        keys = await self._database.archive_keys()
        self._state.to_audit = {name for name, (key, ready) in keys.items() if (key in listed) != ready}
        for workspace_id in self._state.to_audit:
            self._idle_tracker.mark_active(workspace_id)

    async def _remove_job_reports(self, workspace: Workspace) -> None:
        """Remove the reports of an operation that is over. Its jobs were observed to have ended."""
        if workspace.op_id is None or not workspace.operation.has_jobs:
            return
        for attempt in range(workspace.error_count + 1):
            for name in (job_id(workspace.op_id, attempt), deletion_job_id(workspace.op_id, attempt)):
                await self._providers.jobs.forget(name)
                self._state.started_jobs.discard(name)

    def _context(self, now: datetime) -> Context:
        source = self._clock_and_ids
        return Context(now, self._rules, source.new_id(), source.new_id(), source.jitter())


def _stage(workspace: Workspace) -> tuple[object, ...]:
    """Return what a step must change for the next one to follow at once."""
    return workspace.operation, workspace.op_id, workspace.phase


def _aborts_home_move(workspace: Workspace, decision: Decision) -> bool:
    """Return whether an operation that moves a home ends before it has moved it."""
    ends = workspace.operation is not Operation.NONE and decision.after.operation is Operation.NONE
    return ends and workspace.operation.moves_home and decision.event is not TimelineEvent.FINISHED


def _is_recent(saved_at: datetime | None, now: datetime) -> bool:
    return saved_at is not None and now - saved_at < EPOCH_CHECK_VALID_FOR
