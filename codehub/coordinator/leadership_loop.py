"""The coordinator process: campaign, lead, and campaign again whenever leadership is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from codehub.coordinator.clock_and_ids import REAL, ClockAndIds
from codehub.coordinator.controller import Controller, Intervals
from codehub.coordinator.disk_watchdog import NEAR_INTERVAL, DiskWatchdog
from codehub.coordinator.effect_executor import EffectExecutor, ExecutorRules
from codehub.coordinator.gc_runner import GcRunner
from codehub.coordinator.health_runner import HealthRunner
from codehub.coordinator.leader_services import CoordinatorBackend, LeaderServices, LeadershipTerm, Listen
from codehub.coordinator.metrics import Metrics
from codehub.coordinator.observer import LeaderState
from codehub.coordinator.providers import Providers
from codehub.coordinator.ttl_runner import TtlRules, TtlRunner
from codehub.database.engine import ConnectionTrouble
from codehub.database.leadership import StaleLeader
from codehub.domain.decision import PlanRules
from codehub.domain.error_policy import RetryPolicy
from codehub.domain.gateway_reports import GatewayRules
from codehub.domain.gc import GcRules
from codehub.domain.states import Operation
from codehub.domain.ttl import TtlDefaults
from codehub.host.cancellation import raise_if_cancelled
from codehub.settings import Settings
from codehub.storage.volumes.quota import HomeQuota

logger = structlog.get_logger(__name__)

HEARTBEAT_EVERY = 2.0
SWEEP_AGAIN = 2.0
"""Seconds after a pass that failed: it may have been the one that makes up for lost hints."""
LISTEN_AGAIN = 2.0
FAILURES_EVERY = 60.0
"""Seconds between two looks for failed passwords that were only counted."""
GC_AFTER = 60.0
"""Seconds of a term before its first GC: terms that are shorter than GC's interval must collect as well."""

DatabaseTrouble = (*ConnectionTrouble, SQLAlchemyError)


async def serve(
    settings: Settings,
    providers: Providers,
    house: CoordinatorBackend,
    *,
    stop: asyncio.Event,
    nature: ClockAndIds = REAL,
    metrics: Metrics | None = None,
) -> None:
    """Lead whenever nobody else does, until `stop` is set. Jobs and workspaces live on."""
    counts = metrics or Metrics()
    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            leading = asyncio.create_task(_campaign_and_lead(settings, providers, house, nature, counts))
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
    settings: Settings, providers: Providers, house: CoordinatorBackend, nature: ClockAndIds, metrics: Metrics
) -> None:
    term = await _win(house, settings.coordinator_leader_retry_interval)
    logger.info("this coordinator leads", epoch=term.epoch)
    try:
        async with house.desk(term) as desk:
            await Leader(settings, providers, desk, term, nature, metrics).lead()
    except* StaleLeader:
        logger.warning("this term is over", epoch=term.epoch)
    except* DatabaseTrouble as group:
        logger.warning("leadership is given up", epoch=term.epoch, error=str(group.exceptions[0]))
    finally:
        await term.resign()


async def _win(house: CoordinatorBackend, retry_interval: float) -> LeadershipTerm:
    while True:
        try:
            term = await house.campaign()
        except DatabaseTrouble as error:
            raise_if_cancelled()
            logger.warning("the database does not answer; campaigning again", error=str(error))
            term = None
        if term is not None:
            return term
        await asyncio.sleep(retry_interval)


class Leader:
    """One time in office: the components, each on its rhythm, none taking the others down."""

    def __init__(
        self,
        settings: Settings,
        providers: Providers,
        desk: LeaderServices,
        term: LeadershipTerm,
        nature: ClockAndIds,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._records = desk.records
        self._claim = providers.claim
        self._sources = [desk.listen] if providers.hints is None else [desk.listen, providers.hints]
        self._term = term
        self._clock = nature.clock
        self._metrics = metrics
        memory = self._memory = LeaderState()
        quota = HomeQuota(settings.home_quota_bytes, settings.home_quota_files)
        rules = ExecutorRules(settings.disk_reserve, settings.workspace_uid_base, quota)
        self._controller = Controller(
            desk.records,
            providers,
            EffectExecutor(providers, memory, rules, term.epoch),
            memory,
            rules=rules_of(settings),
            rhythm=Intervals(settings.coordinator_active_interval, settings.coordinator_active_duration),
            nature=nature,
            metrics=metrics,
        )
        self._sweep_now = asyncio.Event()
        self._ttl = TtlRunner(
            desk.records, desk.activity, providers.archives, ttl_rules_of(settings), nature.clock
        )
        self._disk = DiskWatchdog(
            desk.records,
            providers.volumes,
            settings.disk_reserve,
            timedelta(seconds=settings.disk_grace_seconds),
            uid_base=settings.workspace_uid_base,
            quota_bytes=settings.home_quota_bytes,
            clock=nature.clock,
        )
        self._gc = GcRunner(desk.records, providers, gc_rules_of(settings), term.epoch)
        self._collecting = asyncio.Lock()
        self._health = HealthRunner(desk.records, providers, self._gc, settings.disk_reserve)

    async def lead(self) -> None:
        """Until leadership is lost; raises what ended it."""
        self._metrics.begin_term(self._term.epoch, self._controller.queue)
        try:
            await self._lead()
        finally:
            self._health.close()
            self._metrics.end_term()

    async def _lead(self) -> None:
        settings = self._settings
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_office())
            if self._claim is not None:
                tasks.create_task(self._claim_storage(self._claim))
            tasks.create_task(self._work())
            for listen in self._sources:
                tasks.create_task(self._listen(listen))
            tasks.create_task(self._sweep())
            idle = settings.coordinator_idle_interval
            tasks.create_task(self._every(idle, self._controller.audit, "audit", first=0.0))
            tasks.create_task(self._every(settings.coordinator_ttl_interval, self._expire, "TTL"))
            tasks.create_task(self._every(FAILURES_EVERY, self._record_counted_failures, "audit log"))
            tasks.create_task(self._every(idle, self._check_health, "health", first=0.0))
            tasks.create_task(self._watch_disk())
            interval = settings.coordinator_gc_interval
            tasks.create_task(self._every(interval, self._collect, "GC", first=min(interval, GC_AFTER)))
            tasks.create_task(self._every(min(idle, interval), self._purge_waived, "GC"))

    async def _work(self) -> None:
        await self._controller.has_looked.wait()
        await self._controller.queue.run()

    async def _claim_storage(self, claim: Callable[[], Awaitable[bool]]) -> None:
        """Repeat until the volumes and the store are claimed; then look at everything again."""
        claimed = False

        async def attempt() -> None:
            nonlocal claimed
            claimed = await claim()

        while not claimed:
            await self._guarded(attempt, "claim")
            if not claimed:
                await asyncio.sleep(self._settings.coordinator_idle_interval)
        self._sweep_now.set()

    async def _listen(self, listen: Listen) -> None:
        """A source that fails is listened to again; every beginning asks for a look at everything."""
        while True:
            await self._guarded(lambda: listen(self._controller.hint, self._sweep_now.set), "hints")
            await asyncio.sleep(LISTEN_AGAIN)

    async def _keep_office(self) -> None:
        while True:
            await self._term.heartbeat()
            raise_if_cancelled()
            newest = self._memory.newest_epoch
            if newest > self._term.epoch:
                # No newer leader, or the heartbeat had failed: the database is older than the disks.
                logger.error(
                    "homes were worked on in a later epoch than the database knows: "
                    "was it restored from a backup? Leading anew after that epoch",
                    epoch=self._term.epoch,
                    newest=newest,
                )
                await self._term.catch_up(newest)
                raise StaleLeader
            await asyncio.sleep(HEARTBEAT_EVERY)

    async def _sweep(self) -> None:
        while True:
            went_well = await self._guarded(self._controller.sweep, "sweep")
            interval = self._settings.coordinator_idle_interval
            try:
                async with asyncio.timeout(interval if went_well else min(interval, SWEEP_AGAIN)):
                    await self._sweep_now.wait()
            except TimeoutError:
                continue
            self._sweep_now.clear()

    async def _watch_disk(self) -> None:
        """A new leader looks at once: the disk may have filled up while nobody led."""
        interval = self._settings.coordinator_disk_interval
        while True:
            await self._guarded(self._disk.tick, "disk")
            await asyncio.sleep(min(interval, NEAR_INTERVAL) if self._disk.is_near else interval)

    async def _collect(self) -> None:
        before = self._gc.alarms
        async with self._collecting:
            self._metrics.gc_freed_bytes.inc(await self._gc.tick(self._clock()))
        if self._gc.alarms is not before:  # else the cycle was skipped
            self._metrics.gc_alarms.inc(len(self._gc.alarms or ()))

    async def _purge_waived(self) -> None:
        async with self._collecting:
            self._metrics.gc_freed_bytes.inc(await self._gc.purge_waived(self._clock()))

    async def _expire(self) -> None:
        for expiry in await self._ttl.tick():
            self._metrics.count_expiration(expiry.desired)

    async def _record_counted_failures(self) -> None:
        await self._records.record_counted_failures(self._clock())

    async def _check_health(self) -> None:
        self._metrics.show_checks(await self._health.tick())

    async def _every(
        self, interval: float, tick: Callable[[], Awaitable[object]], name: str, first: float | None = None
    ) -> None:
        pause = interval if first is None else first
        while True:
            await asyncio.sleep(pause)
            await self._guarded(tick, name)
            pause = interval

    async def _guarded(self, tick: Callable[[], Awaitable[object]], name: str) -> bool:
        """A failing component skips its tick; only a lost office ends the term. Whether it went well."""
        went_well = False
        try:
            await tick()
            went_well = True
        except StaleLeader:
            raise
        except Exception:
            raise_if_cancelled()
            self._metrics.count_tick_failure(name)
            logger.exception("a tick failed and is skipped", component=name)
        # A tick that took a dying connection for a dead one, and went on with another, has not failed.
        raise_if_cancelled()
        return went_well


def ttl_rules_of(settings: Settings) -> TtlRules:
    return TtlRules(
        TtlDefaults(settings.ttl_standby_seconds, settings.ttl_archive_seconds),
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
    )


def rules_of(settings: Settings) -> PlanRules:
    timeouts: dict[Operation, timedelta] = {
        operation: timedelta(seconds=getattr(settings, f"reconciler_{operation.value.lower()}_timeout"))
        for operation in Operation
        if operation is not Operation.NONE
    }
    retry = RetryPolicy(settings.reconciler_max_retries, timedelta(seconds=settings.reconciler_retry_backoff))
    return PlanRules(retry, timeouts, settings.backends)
