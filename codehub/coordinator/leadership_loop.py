"""Leadership loop: campaign, lead, and campaign again after leadership is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from codehub.coordinator.clock_and_ids import REAL, ClockAndIds
from codehub.coordinator.command_cleaner import INTERVAL as CLEAN_EVERY
from codehub.coordinator.command_cleaner import CommandCleaner
from codehub.coordinator.controller import Controller, Intervals
from codehub.coordinator.disk_watchdog import NEAR_INTERVAL, DiskWatchdog
from codehub.coordinator.effect_executor import EffectExecutor, ExecutorRules
from codehub.coordinator.gc_runner import GcRunner
from codehub.coordinator.health_runner import HealthRunner
from codehub.coordinator.leader_interfaces import (
    CoordinatorBackend,
    HintSource,
    LeaderServices,
    LeadershipTerm,
)
from codehub.coordinator.metrics import CoordinatorMetrics
from codehub.coordinator.observer import LeaderState
from codehub.coordinator.provider_interfaces import Providers
from codehub.coordinator.ttl_runner import TtlRules, TtlRunner
from codehub.coordinator.usage_sampler import UsageSampler
from codehub.database.engine import CONNECTION_ERRORS
from codehub.database.leadership import StaleLeader
from codehub.domain.decision import PlanRules
from codehub.domain.error_policy import RetryPolicy
from codehub.domain.gateway_reports import GatewayRules
from codehub.domain.gc import GcRules
from codehub.domain.resource_usage import SAMPLE_EVERY
from codehub.domain.states import Operation
from codehub.host.cancellation import raise_if_cancelled
from codehub.settings import Settings
from codehub.storage.volumes.quota import HomeQuota

logger = structlog.get_logger(__name__)

HEARTBEAT_EVERY = 2.0
SWEEP_RETRY = 2.0
"""Seconds after a failed sweep: it may be the one that makes up for lost hints."""
LISTEN_RETRY = 2.0
FAILED_SIGN_INS_EVERY = 60.0
"""Seconds between two summaries of failed passwords that were only counted, and checks of their number."""
FIRST_GC_AFTER = 60.0
"""Seconds from the start of a term to its first GC. Even terms shorter than the GC interval collect."""
FIRST_SAMPLE_AFTER = 1.0
"""Seconds from the start of a term to its first samples, so that averages have no gap."""

DatabaseTrouble = (*CONNECTION_ERRORS, SQLAlchemyError)


async def run_elections(
    settings: Settings,
    providers: Providers,
    backend: CoordinatorBackend,
    *,
    stop: asyncio.Event,
    clock_and_ids: ClockAndIds = REAL,
    metrics: CoordinatorMetrics | None = None,
) -> None:
    """Lead whenever no other coordinator does, until `stop` is set. Jobs and workspaces keep running."""
    metrics = metrics or CoordinatorMetrics()
    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            leading = asyncio.create_task(
                _campaign_and_lead(settings, providers, backend, clock_and_ids, metrics)
            )
            try:
                await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leading.cancel()
                await asyncio.gather(leading, return_exceptions=True)
            _raise_unexpected(leading)
    finally:
        stopping.cancel()


def _raise_unexpected(leading: "asyncio.Task[None]") -> None:
    error = None if leading.cancelled() else leading.exception()
    if error is not None:
        raise error


async def _campaign_and_lead(
    settings: Settings,
    providers: Providers,
    backend: CoordinatorBackend,
    clock_and_ids: ClockAndIds,
    metrics: CoordinatorMetrics,
) -> None:
    term = await _win_election(backend, settings.coordinator_leader_retry_interval)
    logger.info("this coordinator leads", epoch=term.epoch)
    try:
        async with backend.leader_services(term) as services:
            await Leader(settings, providers, services, term, clock_and_ids, metrics).lead()
    except* StaleLeader:
        logger.warning("this leadership term is over", epoch=term.epoch)
    except* DatabaseTrouble as group:
        logger.warning("leadership is given up", epoch=term.epoch, error=str(group.exceptions[0]))
    finally:
        await term.resign()


async def _win_election(backend: CoordinatorBackend, retry_interval: float) -> LeadershipTerm:
    while True:
        try:
            term = await backend.campaign()
        except DatabaseTrouble as error:
            raise_if_cancelled()
            logger.warning("the database does not answer; campaigning again", error=str(error))
            term = None
        if term is not None:
            return term
        await asyncio.sleep(retry_interval)


class Leader:
    """Supervisor of the components of one leadership term.

    Each component runs at its own interval. A failure of one does not stop the others.
    """

    def __init__(
        self,
        settings: Settings,
        providers: Providers,
        services: LeaderServices,
        term: LeadershipTerm,
        clock_and_ids: ClockAndIds,
        metrics: CoordinatorMetrics,
    ) -> None:
        self._settings = settings
        database = self._database = services.database
        self._claim = providers.claim
        self._hint_sources = [services.listen, *([] if providers.hints is None else [providers.hints])]
        self._term = term
        self._clock = clock_and_ids.clock
        self._metrics = metrics
        state = self._state = LeaderState()
        quota = HomeQuota(settings.home_quota_bytes, settings.home_quota_files)
        rules = ExecutorRules(settings.disk_reserve, settings.workspace_uid_base, quota)
        self._controller = Controller(
            database,
            providers,
            EffectExecutor(providers, state, rules, term.epoch),
            state,
            rules=rules_of(settings),
            intervals=Intervals(settings.coordinator_active_interval, settings.coordinator_active_duration),
            clock_and_ids=clock_and_ids,
            metrics=metrics,
        )
        self._sweep_now = asyncio.Event()
        self._ttl = TtlRunner(
            database, services.activity, providers.archives, ttl_rules_of(settings), clock_and_ids.clock
        )
        self._disk = DiskWatchdog(
            database,
            providers.volumes,
            settings.disk_reserve,
            timedelta(seconds=settings.disk_grace_seconds),
            uid_base=settings.workspace_uid_base,
            quota_bytes=settings.home_quota_bytes,
            clock=clock_and_ids.clock,
        )
        self._usage = UsageSampler(
            database,
            providers.runtime,
            services.usage,
            self._disk.free_space,
            settings.ttl_defaults,
            clock_and_ids.clock,
        )
        self._gc = GcRunner(database, providers, gc_rules_of(settings), term.epoch)
        self._gc_lock = asyncio.Lock()
        retention = timedelta(seconds=settings.exec_retention_seconds)
        self._cleaner = (
            None if providers.commands is None else CommandCleaner(database, providers.commands, retention)
        )
        self._health = HealthRunner(database, providers, self._gc, settings.disk_reserve)

    async def lead(self) -> None:
        """Lead until leadership is lost; raise what ended it."""
        self._metrics.begin_term(self._term.epoch, self._controller.queue)
        try:
            await self._lead()
        finally:
            self._health.close()
            self._metrics.end_term()

    async def _lead(self) -> None:
        settings = self._settings
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_leadership())
            if self._claim is not None:
                tasks.create_task(self._claim_storage(self._claim))
            tasks.create_task(self._run_work_queue())
            for source in self._hint_sources:
                tasks.create_task(self._listen(source))
            tasks.create_task(self._sweep())
            idle = settings.coordinator_idle_interval
            tasks.create_task(
                self._run_periodically(idle, self._controller.compare_archives_with_store, "audit", first=0.0)
            )
            tasks.create_task(
                self._run_periodically(settings.coordinator_ttl_interval, self._apply_ttls, "TTL")
            )
            tasks.create_task(
                self._run_periodically(FAILED_SIGN_INS_EVERY, self._bound_failed_sign_ins, "sign-ins")
            )
            tasks.create_task(self._run_periodically(idle, self._check_health, "health", first=0.0))
            if self._cleaner is not None:
                cleaner = self._cleaner
                tasks.create_task(
                    self._run_periodically(CLEAN_EVERY, lambda: cleaner.tick(self._clock()), "commands")
                )
            tasks.create_task(self._watch_disk())
            sample_every = SAMPLE_EVERY.total_seconds()
            tasks.create_task(
                self._run_periodically(sample_every, self._usage.tick, "usage", first=FIRST_SAMPLE_AFTER)
            )
            interval = settings.coordinator_gc_interval
            tasks.create_task(
                self._run_periodically(
                    interval, self._collect_garbage, "GC", first=min(interval, FIRST_GC_AFTER)
                )
            )
            tasks.create_task(self._run_periodically(min(idle, interval), self._purge_without_grace, "GC"))

    async def _run_work_queue(self) -> None:
        await self._controller.may_start_containers.wait()
        await self._controller.queue.run()

    async def _claim_storage(self, claim: Callable[[], Awaitable[bool]]) -> None:
        """Retry until the volumes and the store are claimed; then sweep."""
        claimed = False

        async def attempt() -> None:
            nonlocal claimed
            claimed = await claim()

        while not claimed:
            await self._run_tick(attempt, "claim")
            if not claimed:
                await asyncio.sleep(self._settings.coordinator_idle_interval)
        self._sweep_now.set()

    async def _listen(self, source: HintSource) -> None:
        """Listen to a hint source, and reconnect after a failure. Each connection requests a sweep."""
        while True:
            await self._run_tick(lambda: source(self._controller.enqueue_soon, self._sweep_now.set), "hints")
            await asyncio.sleep(LISTEN_RETRY)

    async def _keep_leadership(self) -> None:
        """Send heartbeats. If a disk has recorded a newer epoch than the database, start a term after it."""
        while True:
            await self._term.heartbeat()
            raise_if_cancelled()
            newest = self._state.newest_epoch
            if newest > self._term.epoch:
                # The heartbeat shows that no newer leader exists: the database is older than the disks.
                logger.error(
                    "homes were changed in a later epoch than the database has recorded, as after a "
                    "restore from a backup; starting a new leadership term after that epoch",
                    epoch=self._term.epoch,
                    newest=newest,
                )
                await self._term.catch_up(newest)
                raise StaleLeader
            await asyncio.sleep(HEARTBEAT_EVERY)

    async def _sweep(self) -> None:
        while True:
            succeeded = await self._run_tick(self._controller.sweep, "sweep")
            interval = self._settings.coordinator_idle_interval
            try:
                async with asyncio.timeout(interval if succeeded else min(interval, SWEEP_RETRY)):
                    await self._sweep_now.wait()
            except TimeoutError:
                continue
            self._sweep_now.clear()

    async def _watch_disk(self) -> None:
        """Start with a check at once: the disk may have filled up while no coordinator led."""
        interval = self._settings.coordinator_disk_interval
        while True:
            await self._run_tick(self._disk.tick, "disk")
            await asyncio.sleep(min(interval, NEAR_INTERVAL) if self._disk.is_near else interval)

    async def _collect_garbage(self) -> None:
        before = self._gc.alarms
        async with self._gc_lock:
            self._metrics.gc_freed_bytes.inc(await self._gc.tick(self._clock()))
        if self._gc.alarms is not before:  # otherwise the cycle was skipped
            self._metrics.gc_alarms.inc(len(self._gc.alarms or ()))

    async def _purge_without_grace(self) -> None:
        async with self._gc_lock:
            self._metrics.gc_freed_bytes.inc(await self._gc.purge_waived(self._clock()))

    async def _apply_ttls(self) -> None:
        for expiry in await self._ttl.tick():
            self._metrics.count_expiration(expiry.desired)

    async def _bound_failed_sign_ins(self) -> None:
        await self._database.record_counted_failures(self._clock())
        if forgotten := await self._database.forget_login_failures():
            logger.warning(
                "failed sign-ins of many accounts and networks; some are forgotten", rows=forgotten
            )

    async def _check_health(self) -> None:
        self._metrics.show_checks(await self._health.tick())

    async def _run_periodically(
        self, interval: float, tick: Callable[[], Awaitable[object]], name: str, first: float | None = None
    ) -> None:
        pause = interval if first is None else first
        while True:
            await asyncio.sleep(pause)
            await self._run_tick(tick, name)
            pause = interval

    async def _run_tick(self, tick: Callable[[], Awaitable[object]], name: str) -> bool:
        """Run one tick, and return whether it succeeded. Only StaleLeader ends the term."""
        succeeded = False
        try:
            await tick()
            succeeded = True
        except StaleLeader:
            raise
        except Exception:
            raise_if_cancelled()
            self._metrics.count_tick_failure(name)
            logger.exception("a tick failed and is skipped", component=name)
        # A driver may swallow the cancellation as a lost connection, and the tick then succeeds.
        raise_if_cancelled()
        return succeeded


def ttl_rules_of(settings: Settings) -> TtlRules:
    return TtlRules(
        settings.ttl_defaults,
        settings.backends,
        GatewayRules(
            silence=2 * timedelta(seconds=settings.activity_flush_interval),
            lost_after=timedelta(seconds=settings.gateway_lost_after_seconds),
        ),
    )


def gc_rules_of(settings: Settings) -> GcRules:
    return GcRules(
        timedelta(seconds=settings.gc_orphan_grace_seconds),
        timedelta(seconds=settings.trash_retention_seconds),
        timedelta(days=settings.audit_retention_days) if settings.audit_retention_days else None,
        settings.archives_kept,
    )


def rules_of(settings: Settings) -> PlanRules:
    timeouts: dict[Operation, timedelta] = {
        operation: timedelta(seconds=getattr(settings, f"reconciler_{operation.value.lower()}_timeout"))
        for operation in Operation
        if operation is not Operation.NONE
    }
    retry = RetryPolicy(settings.reconciler_max_retries, timedelta(seconds=settings.reconciler_retry_backoff))
    return PlanRules(retry, timeouts, settings.backends)
