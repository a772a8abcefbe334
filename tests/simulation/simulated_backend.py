"""Leader election, database, activity and hints of one simulated coordinator process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from redis.exceptions import ConnectionError as RedisDown

from codehub.coordinator.leader_interfaces import LeaderServices, LeadershipTerm
from codehub.database import leader_database
from codehub.database.leader_database import VersionConflict
from codehub.database.leadership import ANSWER_TIMEOUT, HUNG_AFTER
from codehub.domain import allowed_changes
from codehub.domain.awake import CpuHold, Holds
from codehub.domain.conditions import holds
from codehub.domain.decision import Decision, TimelineEvent
from codehub.domain.disk import HomeSize, LiveHome, Notice
from codehub.domain.effects import DeleteContainer
from codehub.domain.gateway_reports import ActivitySnapshot, GatewayReport
from codehub.domain.gc import ArchiveHolder, StoredArchive
from codehub.domain.health_checks import CheckName, CheckResult
from codehub.domain.resource_usage import UsageSample
from codehub.domain.running_workspace import RunningWorkspace
from codehub.domain.states import ConditionName, Operation, Phase
from codehub.domain.ttl import Expiry, TtlDefaults
from codehub.domain.workspace import Workspace
from tests.simulation.database import Database, Gate, lost_connection
from tests.simulation.process import Process
from tests.simulation.redis import Redis

T = TypeVar("T")
STARTING_TIMEOUT = 150
PURGE_SECONDS = 0.02
"""Time to purge one row on a busy database."""


class SimulatedActivity:
    def __init__(self, process: Process, redis: Redis, database: Database) -> None:
        self._process = process
        self._redis = redis
        self._db = database

    async def read(self) -> ActivitySnapshot:
        return await self._process.read(self._read, RedisDown, "redis")

    def _read(self) -> ActivitySnapshot:
        self._db.activity_read_at = self._db.now()
        return self._redis.read()

    async def remove(self, carried: ActivitySnapshot) -> int:
        return await self._process.write(lambda: self._remove(carried), RedisDown, "redis")

    def _remove(self, carried: ActivitySnapshot) -> int:
        for workspace_id, at in carried.uses.items():
            if self._redis.uses.get(workspace_id, at + 1) <= at:
                del self._redis.uses[workspace_id]
                self._check(workspace_id)
        for gateway, number in carried.flushes.items():
            if self._redis.flushes.get(gateway, number + 1) <= number:
                del self._redis.flushes[gateway]
        return len(carried.uses)

    def _check(self, workspace_id: str) -> None:
        flushed = self._redis.flushed.get(workspace_id)
        row = self._db.rows[workspace_id]
        if flushed is not None and row.last_access_at.timestamp() < flushed - 0.001:
            self._db.world.fail(workspace_id, "activity is forgotten before it was committed")


class SimulatedUsage:
    def __init__(self, process: Process, redis: Redis) -> None:
        self._process = process
        self._redis = redis

    async def append(self, samples: Mapping[str, UsageSample]) -> None:
        def write() -> None:
            for name, sample in samples.items():
                self._redis.usage.setdefault(name, []).append(sample)

        await self._process.write(write, RedisDown, "redis")

    async def read(self, workspace_ids: Collection[str]) -> Mapping[str, Sequence[UsageSample]]:
        def read() -> Mapping[str, Sequence[UsageSample]]:
            return {name: list(self._redis.usage.get(name, ())) for name in workspace_ids}

        return await self._process.read(read, RedisDown, "redis")


class SimulatedTerm:
    def __init__(self, process: Process, database: Database, epoch: int) -> None:
        self.epoch = epoch
        self._process = process
        self._db = database
        self._session = database.leadership.session

    async def heartbeat(self) -> None:
        await self._process.write(self._beat, lost_connection, "database")

    def _beat(self) -> None:
        leadership = self._db.leadership
        if leadership.session is not self._session:
            raise lost_connection()
        self._db.check_epoch(self.epoch)
        leadership.heartbeat_at = self._db.world.loop.time()

    async def catch_up(self, newest: int) -> None:
        await self._process.write(lambda: self._catch_up(newest), lost_connection, "database")

    def _catch_up(self, newest: int) -> None:
        self._db.check_epoch(self.epoch)
        self._db.leadership.epoch = newest

    async def resign(self) -> None:
        if self._process.alive and self._db.leadership.session is self._session:
            self._db.leadership.session = None


class SimulatedLeaderDatabase:
    """The database as one leader uses it. Tests of `LeaderDatabase` run against both implementations."""

    def __init__(self, process: Process, database: Database, epoch: int, retention: timedelta) -> None:
        self._process = process
        self._db = database
        self._gate = Gate(database)
        self._epoch = epoch
        self._retention = retention

    async def versions(self) -> Mapping[str, int]:
        return await self._read(
            lambda: {} if self._db.blank else {
                row.id: row.version for row in self._db.rows.values() if row.purged_at is None
            }
        )  # fmt: skip

    async def ids_with_upstream(self) -> set[str]:
        return await self._read(
            lambda: {row.id for row in self._db.rows.values() if row.purged_at is None and row.upstream}
        )

    async def clear_upstreams(self, workspace_ids: Collection[str]) -> None:
        def write() -> None:
            rows = [self._db.rows[name] for name in workspace_ids if name in self._db.rows]
            for row in rows:
                if row.upstream is not None:
                    self._db.put(replace(row, upstream=None))

        await self._write(write)

    async def archive_keys(self) -> Mapping[str, tuple[str, bool]]:
        return await self._read(
            lambda: {
                row.id: (row.archive_key, holds(row.conditions, ConditionName.ARCHIVE_READY))
                for row in self._db.rows.values()
                if row.purged_at is None and row.archive_key is not None
            }
        )

    async def load(self, workspace_ids: Sequence[str]) -> list[Workspace]:
        return await self._read(lambda: [self._db.rows[name] for name in workspace_ids])

    async def find(self, workspace_id: str) -> Workspace | None:
        return await self._read(lambda: self._db.rows.get(workspace_id))

    async def archive_checksum(self, key: str) -> str | None:
        def read() -> str | None:
            known = self._db.archives.get(key.split("/")[1])
            return None if known is None else known.fact.sha256

        return await self._read(read)

    async def save(self, before: Workspace, decision: Decision, now: datetime) -> Workspace:
        return await self._write(lambda: self._save(before, decision))

    def _save(self, before: Workspace, decision: Decision) -> Workspace:
        self.compare(before)
        if before.operation is Operation.STARTING:
            self._check_start(before, decision)
        if not decision.writes(before):
            return before
        return self._db.save(before, decision, self._retention, self._epoch)

    def _check_start(self, before: Workspace, decision: Decision) -> None:
        """Check that a hung IDE is replaced before its start times out, not too early, and once."""
        world, now = self._db.world, self._db.world.loop.time()
        container = world.containers.get(before.id)
        if container is None or not container.running:
            return
        hung = "has not answered" in decision.sentence
        ended = before.request is not None or decision.sentence.startswith("Timed out")
        replaces = hung or (isinstance(decision.effect, DeleteContainer) and not ended)
        if replaces and not container.is_ready(now) and container.silence(now) < STARTING_TIMEOUT / 2:
            world.fail(before.id, "an IDE is replaced within its time")
        if hung and decision.event is TimelineEvent.FAILED:
            if before.op_id in world.replaced:
                world.fail(before.id, "an IDE is replaced again and again")
            world.replaced.add(before.op_id or "")
        if container.hangs and decision.sentence.startswith("Timed out") and before.error_count == 0:
            world.fail(before.id, "a start times out, and its hung IDE was not replaced")

    def compare(self, before: Workspace) -> None:
        if self._db.rows[before.id].version != before.version:
            raise VersionConflict

    async def advance_last_access(self, seen: Mapping[str, datetime]) -> None:
        def write() -> None:
            for workspace_id, at in seen.items():
                self._gate.advance_last_access(workspace_id, at)

        await self._write(write)

    async def gateway_reports(self) -> dict[str, GatewayReport]:
        return await self._read(
            lambda: {
                name: GatewayReport(self._db.now() - row.reported_at, row.flushes, row.ended)
                for name, row in self._db.gateways.items()
            }
        )

    async def update_gateway_reports(self, carried: Mapping[str, int], gone: Collection[str]) -> None:
        def write() -> None:
            for name, number in carried.items():
                if name in self._db.gateways:
                    row = self._db.gateways[name]
                    row.carried = max(row.carried, number)
            for name in gone:
                self._db.gateways.pop(name, None)

        await self._write(write)

    async def reset_idle_time(self, now: datetime) -> None:
        await self._write(lambda: self._gate.reset_idle_time(now))

    async def ttl_candidates(self, defaults: TtlDefaults, now: datetime) -> list[Workspace]:
        return await self._read(lambda: self._db.due(defaults, now))

    async def holds(self, workspace_ids: Collection[str]) -> Mapping[str, Holds]:
        if not self._db.holds.commands and not self._db.holds.leases and not self._db.holds.cpu:
            return {}  # no draw of chance: histories without programs stay as they are
        return await self._read(lambda: self._db.holds.read(workspace_ids))

    async def remove_expired_leases(self, now: datetime) -> int:
        if not self._db.holds.leases:
            return 0
        return await self._write(lambda: self._remove_expired_leases(now))

    def _remove_expired_leases(self, now: datetime) -> int:
        ends = self._db.holds.remove_expired(now)
        for workspace_id, end in ends.items():
            row = self._db.rows[workspace_id]
            self._db.put(replace(row, holds_changed_at=max(end, row.holds_changed_at or end)))
        return len(ends)

    async def running_workspaces(self) -> list[RunningWorkspace]:
        if not self._db.world.cpu_loads:
            return []  # no draw of chance here either
        return await self._read(self._running_workspaces)

    def _running_workspaces(self) -> list[RunningWorkspace]:
        found = []
        for row in self._db.rows.values():
            if row.phase is Phase.RUNNING:
                held = self._db.holds.cpu_of(row.id)
                hold = None if held is None else held.hold
                found.append(RunningWorkspace(row.id, row.awake_cpu_percent, None, hold))
        return found

    async def begin_cpu_hold(self, workspace_id: str, hold: CpuHold) -> None:
        await self._write(lambda: self._gate.begin_cpu_hold(workspace_id, hold))

    async def renew_cpu_holds(self, holds: Mapping[str, CpuHold]) -> None:
        def write() -> None:
            for name, hold in holds.items():
                row = self._db.holds.cpu_of(name)
                if row is not None:
                    row.hold = hold

        await self._write(write)

    async def end_cpu_hold(self, workspace_id: str, now: datetime) -> None:
        await self._write(lambda: self._gate.end_cpu_hold(workspace_id))

    async def cpu_holds_not_measured(self, now: datetime) -> list[str]:
        if not self._db.holds.cpu:
            return []
        return await self._read(
            lambda: [
                row.workspace_id
                for row in self._db.holds.cpu
                if row.ended_at is None and row.hold.held_until <= now
            ]
        )

    async def apply_expiry(self, seen: Workspace, expiry: Expiry, now: datetime) -> bool:
        return await self._write(lambda: self._expire(seen, expiry))

    def _expire(self, seen: Workspace, expiry: Expiry) -> bool:
        try:
            self.compare(seen)
        except VersionConflict:
            return False
        self._db.apply_expiry(seen, expiry)
        return True

    async def homes(self) -> list[LiveHome]:
        return await self._read(self._db.live_homes)

    async def record_sizes(self, sizes: Mapping[str, HomeSize], now: datetime) -> None:
        def write() -> None:
            for name, size in sizes.items():
                self._db.update_home(name, size=size, measured_at=now)

        await self._write(write)

    async def warn_of_disk(self, notice: Notice, now: datetime) -> None:
        def write() -> None:
            self._db.world.record(notice.workspace_id, notice.message)
            self._db.update_home(notice.workspace_id, notice=notice.message, warned_at=now)

        await self._write(write)

    async def stop_for_disk(self, home: LiveHome, notice: Notice, now: datetime) -> bool:
        return await self._write(lambda: self._stop_for_disk(home, notice))

    def _stop_for_disk(self, home: LiveHome, notice: Notice) -> bool:
        row = self._db.rows[home.workspace_id]
        if not allowed_changes.may_stop_for_disk(row) or row.phase_changed_at != home.phase_changed_at:
            return False
        self._db.stop_for_disk(row, notice)
        return True

    async def clear_notices(self, workspace_ids: Collection[str]) -> None:
        def write() -> None:
            for name in workspace_ids:
                self._db.update_home(name, notice=None, warned_at=None, stopped_at=None)

        await self._write(write)

    async def purge(self, deleted_before: datetime | None, now: datetime) -> list[str]:
        return await self._write(lambda: [] if self._db.blank else self._purge(deleted_before))

    def _purge(self, deleted_before: datetime | None) -> list[str]:
        """Lose the leadership if the transaction takes too long, because the heartbeat waits for it."""
        due = self._db.purgeable(deleted_before)[: leader_database.PURGED_AT_ONCE]
        if len(due) * PURGE_SECONDS > ANSWER_TIMEOUT:
            self._db.leadership.session = None
            raise lost_connection()
        return self._db.purge(due)

    async def op_ids(self) -> set[str]:
        return await self._read(
            lambda: {row.op_id for row in self._db.rows.values() if row.op_id is not None}
        )

    async def archive_holders(self, now: datetime) -> dict[str, ArchiveHolder]:
        return await self._read(self._db.archive_holders)

    async def read_orphans(self) -> dict[str, datetime]:
        return await self._read(lambda: dict(self._db.first_seen[self._db.blank]))

    async def replace_orphans(self, seen: Mapping[str, datetime]) -> None:
        def write() -> None:
            known = self._db.first_seen[self._db.blank]
            self._db.first_seen[self._db.blank] = {key: known.get(key, at) for key, at in seen.items()}

        await self._write(write)

    async def mark_archive_removed(
        self, item: StoredArchive, present: Collection[str], archives_kept: int, now: datetime
    ) -> str | None:
        return await self._write(lambda: self._db.mark_archive_removed(item, present, archives_kept))

    async def trim_audit_log(self, before: datetime) -> int:
        return 0  # people do not sign in here

    async def remove_expired_execs(self, ended_before: datetime, now: datetime) -> int:
        return 0

    async def wanted_execs(self, exec_ids: Collection[str], now: datetime) -> set[str]:
        return set(exec_ids)

    async def without_home(self, workspace_ids: Collection[str]) -> set[str]:
        return set()

    @asynccontextmanager
    async def locked_without_home(self, workspace_id: str) -> AsyncIterator[bool]:
        yield False

    async def trim_timelines(self) -> int:
        return 0  # the simulation does not read them

    async def record_counted_failures(self, now: datetime) -> None:
        pass

    async def forget_login_failures(self) -> int:
        return 0

    async def health_checks(self) -> dict[CheckName, CheckResult]:
        return await self._read(lambda: dict(self._db.checks))

    async def save_health_checks(self, checks: Mapping[CheckName, CheckResult]) -> None:
        await self._write(lambda: self._db.checks.update(checks))

    async def _read(self, read: Callable[[], T]) -> T:
        return await self._process.read(read, lost_connection, "database")

    async def _write(self, write: Callable[[], T]) -> T:
        def fenced() -> T:
            self.check_epoch()
            return write()

        return await self._process.write(fenced, lost_connection, "database")

    def check_epoch(self) -> None:
        self._db.check_epoch(self._epoch)


class SimulatedBackend:
    leader_database = SimulatedLeaderDatabase

    def __init__(self, process: Process, database: Database, redis: Redis, retention: timedelta) -> None:
        self._process = process
        self._db = database
        self._redis = redis
        self._retention = retention

    async def campaign(self) -> LeadershipTerm | None:
        return await self._process.read(self._campaign, lost_connection, "database")

    def _campaign(self) -> LeadershipTerm | None:
        leadership, now = self._db.leadership, self._db.world.loop.time()
        if leadership.session is None:
            leadership.session = self._process.new_session()
            leadership.epoch += 1
            leadership.heartbeat_at = now
            self._db.world.record("---", f"{self._process.name} leads, epoch {leadership.epoch}")
            return SimulatedTerm(self._process, self._db, leadership.epoch)
        if now - leadership.heartbeat_at > HUNG_AFTER.total_seconds():
            leadership.session = None
        return None

    @asynccontextmanager
    async def leader_services(self, term: LeadershipTerm) -> AsyncIterator[LeaderServices]:
        database = self.leader_database(self._process, self._db, term.epoch, self._retention)
        activity = SimulatedActivity(self._process, self._redis, self._db)
        yield LeaderServices(database, activity, SimulatedUsage(self._process, self._redis), self._listen)

    async def _listen(self, hint: Callable[[str], None], resync: Callable[[], None]) -> None:
        chance, loop = self._process.chance, self._db.world.loop

        def notified(workspace_id: str) -> None:
            """Lose, delay or double the hint."""
            luck = chance.random()
            if luck < 0.1 or not self._process.alive:
                return
            for _ in range(2 if luck > 0.9 else 1):
                loop.call_later(chance.random(), arrived, workspace_id)

        def arrived(workspace_id: str) -> None:
            if self._process.alive and self._process.resumed.is_set() and listening:
                hint(workspace_id)

        listening = True
        try:
            while True:
                self._db.listeners.append(notified)
                resync()
                await asyncio.sleep(chance.uniform(60, 600))
                self._db.listeners.remove(notified)
                await asyncio.sleep(chance.uniform(0.1, 5))
        finally:
            listening = False
            if notified in self._db.listeners:
                self._db.listeners.remove(notified)
