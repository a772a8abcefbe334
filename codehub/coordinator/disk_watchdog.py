"""Disk watchdog: measures homes, and warns and stops workspaces below the disk reserve (ADR 0019)."""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from codehub.coordinator.leader_interfaces import LeaderDatabase
from codehub.coordinator.provider_interfaces import Volumes
from codehub.database.leadership import StaleLeader
from codehub.domain.disk import (
    DiskActions,
    DiskRules,
    DiskState,
    FreeSpace,
    HomeSize,
    LiveHome,
    Notice,
    Reserve,
    Resource,
    RunningHome,
    Shortage,
    amount_text,
    choose_disk_actions,
    is_below_multiple,
    is_shortage_over,
    shortages,
)
from codehub.domain.states import Phase
from codehub.host.cancellation import raise_if_cancelled
from codehub.storage.errors import StorageProblem

logger = structlog.get_logger(__name__)

NEAR = 2
"""Below this multiple of the reserve, the watchdog measures every running home each second."""
NEAR_INTERVAL = 1.0
DISPLAY_EVERY = timedelta(seconds=60)
"""Pause between two rounds of measurements while there is enough space."""
REMEASURE_EVERY = timedelta(minutes=10)
"""Age at which a running home is measured again while there is enough space."""
MAX_AGE_NEAR = timedelta(seconds=5)
"""Age up to which a size is good enough near the reserve."""
BUDGET = timedelta(seconds=5)
"""Time in which measurements start, and for which a tick waits. The rest is measured later."""
TREND = timedelta(seconds=15)
"""Period over which the fill rate of the disk is measured."""
NOTICEABLE, NOTICEABLE_BYTES = 0.05, 64 << 20
"""A size is recorded again once it has changed by more than either."""
NOTICEABLE_ENTRIES = 1000
"""A number of entries is recorded again once it has changed by more than this and that fraction."""


class DiskWatchdog:
    """Watchdog of one leader. Under root, a home's uid is `uid_base` plus its workspace's number."""

    def __init__(
        self,
        database: LeaderDatabase,
        volumes: Volumes,
        reserve: Reserve,
        grace: timedelta,
        *,
        uid_base: int,
        quota_bytes: int,
        clock: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._volumes = volumes
        self._reserve = reserve
        self._grace = grace
        self._uid_base = uid_base
        self._quota_bytes = quota_bytes
        self._clock = clock
        self._free: deque[tuple[datetime, FreeSpace]] = deque()
        self._sizes: dict[str, tuple[datetime, HomeSize]] = {}
        self._measuring: asyncio.Task[None] | None = None
        self._displayed_at: datetime | None = None
        self._logged_at: datetime | None = None
        self._has_notices = True
        """Whether notices may have to be cleared. A new leader has not read them yet."""
        self.is_near = False
        """Whether the disk is so full that the next tick should come soon."""

    def free_space(self) -> FreeSpace | None:
        """Return the free space as last measured."""
        return self._free[-1][1] if self._free else None

    async def tick(self) -> None:
        """Measure homes that are due, then stop and warn. Do nothing while the disk is unobservable.

        What matters most is written first: on a full disk, the database may refuse the next write.
        """
        try:
            free = await self._volumes.free_space()
        except StorageProblem as error:
            logger.warning("the disk of the homes cannot be observed", error=str(error))
            return
        now = self._clock()
        self._record_free_space(now, free)
        self.is_near = is_below_multiple(NEAR, free, self._reserve)
        if not self.is_near and not self._has_notices and not self._is_display_due(now):
            return
        homes = await self._database.homes()
        self._keep_sizes_of({home.workspace_id for home in homes})
        await self._measure_homes(homes)
        actions = self._choose_all_actions(homes, free, now)
        by_id = {home.workspace_id: home for home in homes}
        await _write_each(
            *(partial(self._stop, by_id[notice.workspace_id], notice, now) for notice in actions.stop),
            *(partial(self._warn, notice, now) for notice in actions.warn),
            partial(self._record_sizes, homes, now),
            partial(self._clear_notices, homes, actions, free),
        )

    def _record_free_space(self, now: datetime, free: FreeSpace) -> None:
        self._free.append((now, free))
        while now - self._free[0][0] > TREND:
            self._free.popleft()

    def _time_until_full(self, resource: Resource) -> timedelta | None:
        """Return how long the disk lasts at the current rate, or None while it does not fill up."""
        (since, first), (now, last) = self._free[0], self._free[-1]
        before, free = first.of(resource), last.of(resource)
        if before is None or free is None or free >= before:
            return None
        return (now - since) * free / (before - free)

    def _is_display_due(self, now: datetime) -> bool:
        if self._displayed_at is not None and now - self._displayed_at < DISPLAY_EVERY:
            return False
        self._displayed_at = now
        return True

    def _keep_sizes_of(self, names: set[str]) -> None:
        for name in self._sizes.keys() - names:
            del self._sizes[name]

    async def _measure_homes(self, homes: Iterable[LiveHome]) -> None:
        """Wait a limited time for measurements: a home that takes long must not delay decisions."""
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure_in_turn(homes))
        try:
            done, _ = await asyncio.wait({self._measuring}, timeout=BUDGET.total_seconds())
        except asyncio.CancelledError:
            self._measuring.cancel()
            raise
        for task in done:
            task.result()

    async def _measure_in_turn(self, homes: Iterable[LiveHome]) -> None:
        """Measure one home after the other, starting with the oldest size."""
        started_at = self._clock()
        never_measured = datetime.min.replace(tzinfo=started_at.tzinfo)
        due = [home for home in homes if self._needs_measuring(home, started_at)]
        for home in sorted(due, key=lambda home: self._measured_at(home) or never_measured):
            if self._clock() - started_at > BUDGET:
                return
            try:
                size = await self._size_of(home)
            except StorageProblem as error:
                logger.debug("a home cannot be measured", workspace_id=home.workspace_id, error=str(error))
                continue
            self._sizes[home.workspace_id] = (self._clock(), size)

    def _measured_at(self, home: LiveHome) -> datetime | None:
        known = self._sizes.get(home.workspace_id)
        if known is not None:
            return known[0]
        return None if home.record is None else home.record.measured_at

    def _needs_measuring(self, home: LiveHome, now: datetime) -> bool:
        measured = self._measured_at(home)
        if measured is None or measured < home.phase_changed_at:
            return True
        if home.phase is not Phase.RUNNING:
            return False  # nothing writes to it
        return now - measured > (MAX_AGE_NEAR if self.is_near else REMEASURE_EVERY)

    async def _size_of(self, home: LiveHome) -> HomeSize:
        """Return the size of a home. With quotas, the kernel reports it at no cost."""
        uid = self._uid_base + home.number if os.geteuid() == 0 else None
        usage = None if uid is None else await self._volumes.usage(uid)
        known = self._known_size(home)
        if usage is None:
            size = await self._volumes.measure(home.home_store_key)
        elif known is not None and self.is_near:
            size = replace(known, bytes=usage.bytes, entries=usage.files)
        else:
            walked = await self._volumes.measure(home.home_store_key)
            size = replace(walked, bytes=usage.bytes, entries=usage.files, complete=True)
        return replace(size, quota_bytes=0 if usage is None else self._quota_bytes)

    def _known_size(self, home: LiveHome) -> HomeSize | None:
        known = self._sizes.get(home.workspace_id)
        if known is not None:
            return known[1]
        return None if home.record is None or home.record.measured_at is None else home.record.size

    async def _record_sizes(self, homes: Iterable[LiveHome], now: datetime) -> None:
        """Record sizes that have changed noticeably. An idle installation writes nothing."""
        changed = {
            home.workspace_id: self._sizes[home.workspace_id][1]
            for home in homes
            if home.workspace_id in self._sizes and _is_noticeable(home, *self._sizes[home.workspace_id])
        }
        if changed:
            await self._database.record_sizes(changed, now)

    async def _clear_notices(self, homes: Iterable[LiveHome], actions: DiskActions, free: FreeSpace) -> None:
        """Clear warnings once the shortage is over, and reasons of a stop once the workspace runs again."""
        is_over = is_shortage_over(free, self._reserve)
        fresh = {notice.workspace_id for notice in actions.all}
        noticed = [
            home
            for home in homes
            if home.record is not None and home.record.notice is not None and home.workspace_id not in fresh
        ]
        self._has_notices = bool(noticed or fresh)
        over = [
            home.workspace_id
            for home in noticed
            if home.has_run_again or (is_over and home.record is not None and home.record.stopped_at is None)
        ]
        if over:
            await self._database.clear_notices(over)

    def _choose_all_actions(self, homes: list[LiveHome], free: FreeSpace, now: datetime) -> DiskActions:
        """Decide for each resource that is short. The second leaves out the homes of the first."""
        chosen = DiskActions()
        for shortage in shortages(free, self._reserve):
            done = {notice.workspace_id for notice in chosen.all}
            left = [home for home in homes if home.workspace_id not in done]
            actions = self._choose_actions(left, shortage, now)
            chosen = DiskActions(chosen.warn + actions.warn, chosen.stop + actions.stop)
        return chosen

    def _choose_actions(self, homes: list[LiveHome], shortage: Shortage, now: datetime) -> DiskActions:
        resource = shortage.resource
        sizes = {home.workspace_id: self._known_size(home) for home in homes}
        running = [
            RunningHome(home.workspace_id, size.of(resource), None if home.has_run_again else home.warned_at)
            for home in homes
            if home.may_stop and (size := sizes[home.workspace_id]) is not None
        ]
        expected = sum(
            size.of(resource)
            for home in homes
            if home.frees_space_soon and (size := sizes[home.workspace_id])
        )
        stopping = any(home.is_stopping for home in homes)
        disk = DiskState(shortage.free, expected, self._time_until_full(resource), resource, stopping)
        actions = choose_disk_actions(disk, running, DiskRules(shortage.reserve, self._grace), now)
        if not actions.all:
            self._log_shortage(shortage, expected, now)
        return actions

    async def _stop(self, home: LiveHome, notice: Notice, now: datetime) -> None:
        if await self._database.stop_for_disk(home, notice, now):
            logger.warning(notice.message, workspace_id=notice.workspace_id)

    async def _warn(self, notice: Notice, now: datetime) -> None:
        await self._database.warn_of_disk(notice, now)
        logger.warning(notice.message, workspace_id=notice.workspace_id)

    def _log_shortage(self, shortage: Shortage, expected: int, now: datetime) -> None:
        if self._logged_at is not None and now - self._logged_at < DISPLAY_EVERY:
            return
        self._logged_at = now
        logger.warning(
            "the disk of the homes is below its reserve: starts and restores wait",
            free=amount_text(shortage.free, shortage.resource),
            reserve=amount_text(shortage.reserve, shortage.resource),
            expected=amount_text(expected, shortage.resource),
        )


async def _write_each(*writes: Callable[[], Awaitable[None]]) -> None:
    """Make every write, also after one that fails; then raise what failed. StaleLeader ends it at once."""
    failures: list[Exception] = []
    for write in writes:
        try:
            await write()
        except StaleLeader:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised below
            raise_if_cancelled()
            failures.append(error)
    if failures:
        raise ExceptionGroup("the disk watchdog could not write everything", failures)


def _is_noticeable(home: LiveHome, measured_at: datetime, size: HomeSize) -> bool:
    if home.record is None or home.record.measured_at is None:
        return True
    if home.record.measured_at >= measured_at:
        return False
    before = home.record.size
    if before.quota_bytes != size.quota_bytes or before.is_full != size.is_full:
        return True
    change = abs(size.bytes - before.bytes)
    return (
        change > NOTICEABLE_BYTES
        or change > NOTICEABLE * before.bytes
        or abs(size.entries - before.entries) > max(NOTICEABLE_ENTRIES, NOTICEABLE * before.entries)
    )
