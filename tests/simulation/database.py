"""A simulated PostgreSQL: rows, leadership, hints and gateways; every commit is one instant."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from codehub.database.leadership import StaleLeader
from codehub.domain import allowed_changes, user_limits
from codehub.domain.archive_keys import archive_key
from codehub.domain.awake import CpuHold, Lease
from codehub.domain.conditions import initial_conditions
from codehub.domain.decision import CONTROLLER_COLUMNS, Decision, TimelineEvent
from codehub.domain.disk import HomeRecord, HomeSize, LiveHome, Notice
from codehub.domain.error_policy import is_terminal
from codehub.domain.gc import ArchiveHolder, StoredArchive, protection
from codehub.domain.health_checks import CheckName, CheckResult
from codehub.domain.judge import judge
from codehub.domain.observation import ArchiveFact
from codehub.domain.problems import InvalidState, ValidationFailed
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from codehub.domain.ttl import Expiry, TtlDefaults, expired
from codehub.domain.user_limits import Limits, Usage
from codehub.domain.workspace import PendingRequest, RecoverSource, RequestKind, Workspace
from tests.simulation.hold_rows import CommandRow, CpuRow, HoldRows, LeaseRow
from tests.simulation.process import Session
from tests.simulation.providers import home_store_key
from tests.simulation.world import ExpectedHome, Home, World, is_intact

CLAIMS = {
    DesiredState.PENDING: (),
    DesiredState.ARCHIVED: (Operation.CREATE_EMPTY_ARCHIVE, Operation.STOPPING, Operation.ARCHIVING),
    DesiredState.STANDBY: (Operation.PROVISIONING, Operation.RESTORING, Operation.STOPPING),
    DesiredState.RUNNING: (
        Operation.PROVISIONING,
        Operation.RESTORING,
        Operation.STARTING,
        Operation.STOPPING,
    ),
    DesiredState.DELETED: (Operation.STOPPING, Operation.ARCHIVING, Operation.DELETING),
}
"""The operations that lead to a desired state (specification, section 3)."""
LIMITS = Limits(30, 30)
STANDBY_TTL = 60
FLUSH_EVERY = 5
SEEN_AFTER = 3 * FLUSH_EVERY
"""Seconds after which the coordinator has every use, or a gateway counts as silent."""


@dataclass
class Archive:
    fact: ArchiveFact
    kept_until: datetime | None = None
    removed: bool = False


@dataclass
class Leadership:
    epoch: int = 0
    session: Session | None = None
    heartbeat_at: float = 0.0


@dataclass
class GatewayRow:
    reported_at: datetime
    flushes: int = 0
    carried: int = 0
    ended: bool = False


def lost_connection() -> Exception:
    return OSError("The connection to the database is lost.")


@dataclass
class Database:
    world: World
    retention: timedelta = timedelta(0)
    archives_kept: int = 1
    rows: dict[str, Workspace] = field(default_factory=dict)
    archives: dict[str, Archive] = field(default_factory=dict)
    first_seen: dict[bool, dict[str, datetime]] = field(default_factory=lambda: {False: {}, True: {}})
    """The recorded orphans of this database, and of the empty one that may replace it."""
    leadership: Leadership = field(default_factory=Leadership)
    listeners: list[Callable[[str], None]] = field(default_factory=list)
    claimed: set[str] = field(default_factory=set)
    used_archive_op_ids: set[str] = field(default_factory=set)
    requested_versions: dict[str, int] = field(default_factory=dict)
    gateways: dict[str, GatewayRow] = field(default_factory=dict)
    activity_read_at: datetime | None = None
    checks: dict[CheckName, CheckResult] = field(default_factory=dict)
    homes: dict[str, HomeRecord] = field(default_factory=dict)
    holds: HoldRows = field(default_factory=HoldRows)
    max_awake: timedelta = timedelta.max
    person_acts: dict[str, datetime] = field(default_factory=dict)
    """When a person last requested something that counts as use, by workspace id."""
    before_disk_stop: Callable[[Workspace], None] = lambda row: None
    blank: bool = False
    """Whether the empty database of a new installation has replaced this one."""

    def __post_init__(self) -> None:
        self.world.before_deletion = self._check_deletion

    def now(self) -> datetime:
        return self.world.loop.utc_now()

    def create(self, workspace_id: str, number: int, desired: DesiredState) -> None:
        now = self.now()
        self.rows[workspace_id] = Workspace(
            id=workspace_id, number=number, owner_id="u", name=workspace_id, description="",
            image_ref="code-server", instance_backend="process", storage_backend="local-dir",
            home_store_key=home_store_key(workspace_id), standby_ttl_seconds=None, archive_ttl_seconds=None,
            awake_cpu_percent=None,
            desired_state=desired, deleted_at=None, purged_at=None, grace_waived_at=None,
            keep_until=None, last_access_at=now, person_access_at=now, holds_changed_at=None,
            request=None, conditions=initial_conditions(now), observed_at=None, phase=Phase.PENDING,
            phase_changed_at=now, operation=Operation.NONE, op_id=None, op_started_at=None, progress=None,
            progress_at=None, archive_op_id=None, archive_key=None, upstream=None, error_count=0,
            error_reason=None, error_message=None, next_retry_at=None, started_at=None, home_ctx=None,
            created_at=now, updated_at=now, version=0,
        )  # fmt: skip
        self.world.expected_homes[workspace_id] = ExpectedHome()
        self.notify(workspace_id)

    def notify(self, workspace_id: str) -> None:
        for listener in self.listeners:
            listener(workspace_id)

    def put(self, after: Workspace) -> Workspace:
        """Write a row, and check every version of it."""
        before = self.rows[after.id]
        after = replace(after, version=before.version + 1, updated_at=self.now())
        self.rows[after.id] = after
        self._check_row(before, after)
        for key in {before.archive_key, after.archive_key, self._op_key(before), self._op_key(after)}:
            if key is not None and key in self.world.store:
                self.world.store[key].last_needed = self.now()
        if (before.desired_state, before.request) != (after.desired_state, after.request):
            self.notify(after.id)
        return after

    def _op_key(self, row: Workspace) -> str | None:
        return None if row.archive_op_id is None else archive_key(row.id, row.archive_op_id)

    def _check_row(self, before: Workspace, after: Workspace) -> None:
        fail, name = self.world.fail, after.id
        if after.phase is Phase.ERROR and after.operation is not Operation.NONE:
            fail(name, "ERROR with an operation")
        if before.op_id is not None and after.op_id not in (None, before.op_id):
            fail(name, "one operation replaces another")
        if before.op_id is None and after.op_id is not None:
            self._check_claim(after)
        if is_terminal(before.error_reason) and after.error_reason is None and before.request is None:
            fail(name, f"{before.error_reason} is cleared although nobody recovered it")
        if after.error_reason is not before.error_reason:
            self._check_loss(after)
        self._check_home(after)
        if _should_run(after) and not _should_run(before):
            self._check_limit(after)

    def _check_limit(self, row: Workspace) -> None:
        running = sum(_should_run(item) for item in self.rows.values())
        if running > LIMITS.everyone:
            self.world.fail(row.id, f"{running} workspaces are to run, but the limit is {LIMITS.everyone}")

    def admit(self, row: Workspace) -> None:
        """Check the limits as the gate does, in one transaction."""
        counted = sum(user_limits.counts_as_running(item) for item in self.rows.values() if item.id != row.id)
        user_limits.admit_running(Usage(counted, counted), LIMITS)

    def _check_claim(self, row: Workspace) -> None:
        assert row.op_id is not None
        restores = row.archive_to_restore is not None
        if row.operation not in CLAIMS[DesiredState.ARCHIVED if restores else row.desired_state]:
            self.world.fail(row.id, f"{row.operation} is claimed although {row.desired_state} is desired")
        if row.op_id in self.claimed:
            self.world.fail(row.id, f"{row.op_id} is claimed twice")
        self.claimed.add(row.op_id)
        if row.operation.makes_archive:
            if row.archive_op_id is None or row.archive_op_id in self.used_archive_op_ids:
                self.world.fail(row.id, f"the archive_op_id {row.archive_op_id} is used again")
            self.used_archive_op_ids.add(str(row.archive_op_id))

    def _check_loss(self, row: Workspace) -> None:
        lost = row.error_reason in (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)
        if lost and not self.world.expected_homes[row.id].damaged_since_write:
            self.world.fail(row.id, f"{row.error_reason} although nothing was destroyed from outside")

    def _check_deletion(self, workspace_id: str, home: Home) -> None:
        """Archive uploaded and verified -> archive_key committed -> volume deleted."""
        row = self.rows[workspace_id]
        item = self.world.store.get(row.archive_key or "")
        safe = item is not None and is_intact(item) and item.content == home.content
        expected = self.world.expected_homes[workspace_id]
        if expected.protected and not expected.damaged and not safe:
            self.world.fail(workspace_id, "the home is deleted before its archive is safe and committed")

    def _check_home(self, row: Workspace) -> None:
        """Check that an idle row has the newest content, or what the owner has chosen instead."""
        home, expected = self.world.disk(row.id).home, self.world.expected_homes[row.id]
        shown = row.phase in (Phase.STANDBY, Phase.RUNNING) and row.operation is Operation.NONE
        if not shown or home is None or not expected.protected:
            return
        generation = self.world.disk(row.id).marker
        if generation != row.home_ctx:
            return
        if home.content != expected.content:
            self.world.fail(row.id, f"{row.phase} shows {home.content!r} instead of {expected.content!r}")

    def check_epoch(self, epoch: int) -> None:
        if self.leadership.epoch != epoch:
            raise StaleLeader

    def save(self, before: Workspace, decision: Decision, retention: timedelta, epoch: int) -> Workspace:
        if epoch != self.leadership.epoch:
            self.world.fail(before.id, f"the leader of epoch {epoch} writes in epoch {self.leadership.epoch}")
        if self.requested_versions.get(before.id, -1) > before.version:
            self.world.fail(before.id, "a decision on an older row overwrites a newer request")
        row, new = self.rows[before.id], decision.after
        if new.phase is not judge(new.conditions, new.deleted_at, new.error_reason, new.grace_waived_at):
            self.world.fail(row.id, f"{new.phase} does not follow from the conditions")
        request_columns = ("request", "desired_state") if decision.changes_request else ()
        saved = decision.saved_row()
        after = replace(
            row, **{name: getattr(saved, name) for name in (*CONTROLLER_COLUMNS, *request_columns)}
        )
        if decision.archive is not None:
            self.archives.setdefault(decision.archive.archive_op_id, Archive(decision.archive))
        if decision.event is not None:
            self.world.record(before.id, f"[{self.leadership.epoch}] {decision.sentence}")
        if decision.event is TimelineEvent.CHOSEN:
            self._check_choice(row, retention)
        if decision.keep_archives:
            self._record_recovery_choice(after, retention)
        return self.put(after)

    def _check_choice(self, row: Workspace, retention: timedelta) -> None:
        """Check that the present home is a complete archive when a restore replaces it, and is kept."""
        expected, key = self.world.expected_homes[row.id], row.archive_key or ""
        item = self.world.store.get(key)
        safe = item is not None and is_intact(item) and item.content == expected.content
        if expected.protected and not expected.damaged and not safe:
            self.world.fail(row.id, "a restore replaces the home before its archive is safe and committed")
        self.world.left_behind[key] = self.now() + retention

    def _record_recovery_choice(self, row: Workspace, retention: timedelta) -> None:
        """Expect the content that the owner has chosen in place of a lost home."""
        for item in self.archives.values():
            if item.fact.workspace_id == row.id:
                item.kept_until = self.now() + retention
        expected = self.world.expected_homes[row.id]
        stored = self.world.store.get(row.archive_key or "")
        expected.content = stored.content if stored is not None else b""
        expected.damaged, expected.lost = stored is None or not is_intact(stored), False

    def apply_expiry(self, seen: Workspace, expiry: Expiry) -> None:
        if self.requested_versions.get(seen.id, -1) > seen.version:
            self.world.fail(seen.id, "a TTL overwrites a newer request")
        if expiry.desired is DesiredState.STANDBY:
            self._check_idle(seen)
        self.world.record(seen.id, f"TTL: {expiry.sentence}")
        self.put(replace(self.rows[seen.id], desired_state=expiry.desired))

    def _check_idle(self, row: Workspace) -> None:
        """Check that the workspace was idle for its TTL when the coordinator read the activity.

        A use of the last seconds before that may still be in the memory of a gateway.
        """
        assert self.activity_read_at is not None
        read_at = self.activity_read_at.timestamp()
        if read_at - row.phase_changed_at.timestamp() < STANDBY_TTL:
            self.world.fail(row.id, "is stopped as soon as it runs")
        uses = self.world.uses.get(row.id, [])
        used = max((at for at in uses if at < read_at - SEEN_AFTER), default=0.0)
        self._check_reachable(row, max(used, row.phase_changed_at.timestamp()), read_at)
        if read_at - STANDBY_TTL < used:
            self.world.fail(row.id, f"is stopped while in use: it was used {read_at - used:.0f} s before")
        self._check_not_held(row, used, self.activity_read_at)

    def _check_not_held(self, row: Workspace, used: float, read_at: datetime) -> None:
        """Check that nothing held it during its TTL, unless no person has used it for too long."""
        person = max(row.phase_changed_at, self.person_acts.get(row.id, row.phase_changed_at))
        limit = max(person.timestamp(), used) + self.max_awake.total_seconds()
        for what, until in self.holds.ends_of(row.id):
            if read_at.timestamp() - STANDBY_TTL < min(until.timestamp(), limit):
                self.world.fail(row.id, f"is stopped although {what} keeps it awake until {until}")

    def _check_reachable(self, row: Workspace, idle_since: float, read_at: float) -> None:
        """Check that time without any gateway does not count as idle."""
        away, back = self.world.unreachable_since, self.world.reachable_since
        if away is None or idle_since + STANDBY_TTL <= away:
            return
        if read_at - (away if back is None else back) < STANDBY_TTL:
            self.world.fail(row.id, "is stopped before its user could come back")

    def live_homes(self) -> list[LiveHome]:
        rows = [] if self.blank else self.rows.values()
        return [
            LiveHome(row.id, row.number, row.home_store_key, row.phase, row.phase_changed_at,
                     allowed_changes.may_stop_for_disk(row), self.homes.get(row.id))
            for row in rows if row.phase in (Phase.RUNNING, Phase.STANDBY)
        ]  # fmt: skip

    def update_home(self, workspace_id: str, **changes: object) -> None:
        known = self.homes.get(workspace_id, HomeRecord(HomeSize(0, 0)))
        self.homes[workspace_id] = replace(known, **changes)  # type: ignore[arg-type]

    def stop_for_disk(self, row: Workspace, notice: Notice) -> None:
        self.world.record(row.id, f"disk: {notice.message}")
        self.before_disk_stop(row)
        self.update_home(row.id, notice=notice.message, stopped_at=self.now())
        self.put(replace(row, desired_state=DesiredState.STANDBY))

    def purgeable(self, deleted_before: datetime | None) -> list[Workspace]:
        return [
            row
            for row in self.rows.values()
            if row.deleted_at is not None
            and (
                row.grace_waived_at is not None
                or (deleted_before is not None and row.deleted_at <= deleted_before)
            )
            and row.purged_at is None
            and row.phase is Phase.DELETED
            and row.operation is Operation.NONE
        ]

    def purge(self, due: Sequence[Workspace]) -> list[str]:
        for row in due:
            assert row.deleted_at is not None
            over = row.deleted_at + self.retention <= self.now()
            if not over and row.id not in self.world.waived:
                self.world.fail(row.id, "is purged in its grace period, which was not waived")
            self.world.expected_homes[row.id].protected = False
            self.put(replace(row, purged_at=self.now()))
        return [row.id for row in due]

    def archive_holders(self, only: str | None = None) -> dict[str, ArchiveHolder]:
        if self.blank:
            return {}
        rows = self.rows.values() if only is None else [self.rows[only]] if only in self.rows else []
        return {
            row.id: ArchiveHolder(
                row.archive_key,
                row.archive_op_id,
                row.phase,
                row.deleted_at,
                row.purged_at,
                frozenset(
                    item.fact.key
                    for item in self.archives.values()
                    if item.fact.workspace_id == row.id
                    and item.kept_until is not None
                    and item.kept_until > self.now()
                ),
                grace_waived=row.grace_waived_at is not None,
                requested=row.request.archive_op_id if row.request is not None else None,
                recorded=frozenset(self._restorable(row.id)),
            )
            for row in rows
        }

    def _restorable(self, workspace_id: str) -> list[str]:
        return [
            item.fact.key
            for item in self.archives.values()
            if item.fact.workspace_id == workspace_id and not item.removed
        ]

    def mark_archive_removed(
        self, item: StoredArchive, present: Collection[str], archives_kept: int
    ) -> str | None:
        holder = self.archive_holders(item.workspace_id).get(item.workspace_id)
        reason = protection(item, holder, present, archives_kept)
        if reason is None:
            self._check_removal(item)
        if reason is None and item.archive_op_id in self.archives:
            self.archives[item.archive_op_id].removed = True
        return reason

    def _check_removal(self, item: StoredArchive) -> None:
        """Check that GC removes neither a requested archive nor the newest of a living workspace."""
        row = self.rows.get(item.workspace_id)
        if self.blank or row is None or row.deleted_at is not None:
            return
        if row.archive_to_restore == item.archive_op_id:
            self.world.fail(row.id, f"GC removes {item.key}, which is about to be restored")
        restorable = [key for key in self._restorable(row.id) if self.world.find(key) is not None]
        if item.key in sorted(restorable)[-self.archives_kept :]:
            self.world.fail(row.id, f"GC removes {item.key}, one of the newest archives")

    def due(self, defaults: TtlDefaults, now: datetime) -> list[Workspace]:
        rows = [] if self.blank else self.rows.values()
        return [row for row in rows if expired(row, defaults, now, now) is not None]


def _should_run(row: Workspace) -> bool:
    return row.desired_state is DesiredState.RUNNING and not is_terminal(row.error_reason)


class Gate:
    """Requests of users, by the rules of `codehub.domain.allowed_changes`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def set_desired_state(self, workspace_id: str, desired: DesiredState) -> None:
        row = self._db.rows[workspace_id]
        if not allowed_changes.check_desired_state(row, desired):
            return
        changes: dict[str, object] = {"desired_state": desired}
        if desired is DesiredState.RUNNING:
            self._db.admit(row)
            changes |= self._use(row)
        self._put(row, f"requests {desired}", **changes)

    def delete(self, workspace_id: str) -> None:
        row = self._db.rows[workspace_id]
        allowed_changes.check_delete(row)
        self._put(row, "deletes", desired_state=DesiredState.DELETED, deleted_at=self._db.now(), request=None)

    def delete_now(self, workspace_id: str) -> None:
        row = self._db.rows[workspace_id]
        if not allowed_changes.check_delete_now(row, row.name):
            return
        self._db.world.waived.add(workspace_id)
        self._put(row, "deletes without an archive", desired_state=DesiredState.DELETED, request=None,
                  deleted_at=row.deleted_at or self._db.now(), grace_waived_at=self._db.now())  # fmt: skip

    def undelete(self, workspace_id: str) -> None:
        row = self._db.rows[workspace_id]
        desired = allowed_changes.check_undelete(row)
        if desired is DesiredState.RUNNING:
            self._db.admit(row)
        self._db.world.waived.discard(workspace_id)
        self._put(row, f"undeletes to {desired}", desired_state=desired, deleted_at=None,
                  grace_waived_at=self.waiver_after_undelete(row), **self._use(row))  # fmt: skip

    def waiver_after_undelete(self, row: Workspace) -> datetime | None:
        return None

    def recover(self, workspace_id: str, source: RecoverSource | None, archive_op_id: str | None) -> None:
        row = self._db.rows[workspace_id]
        allowed_changes.check_recover(row, source, archive_op_id)
        known = self._db.archives.get(archive_op_id or "")
        if archive_op_id is not None and (known is None or known.removed):
            raise ValidationFailed("no such archive")
        if row.desired_state is DesiredState.RUNNING:
            self._db.admit(row)
        request = PendingRequest(RequestKind.RECOVER, "user", source, archive_op_id)
        self._put(row, f"recovers from {source}", request=request, **self._use(row))

    def restore(self, workspace_id: str, archive_op_id: str) -> None:
        row = self._db.rows[workspace_id]
        known = self._db.archives.get(archive_op_id)
        if not allowed_changes.check_restore(row, archive_op_id):
            return
        if known is None or known.removed:
            raise ValidationFailed("no such archive")
        request = PendingRequest(RequestKind.RESTORE, "user", archive_op_id=archive_op_id)
        self._put(row, f"restores {archive_op_id}", request=request, last_access_at=self._db.now())

    def cancel(self, workspace_id: str) -> None:
        row = self._db.rows[workspace_id]
        allowed_changes.check_cancel(row)
        if row.request is not None and row.archive_to_restore is None:
            raise InvalidState("already requested")
        self._put(row, f"cancels {row.operation}", request=PendingRequest(RequestKind.CANCEL, "user"))

    def advance_last_access(self, workspace_id: str, at: datetime) -> None:
        row = self._db.rows.get(workspace_id)
        if row is None:
            return
        person = max(row.person_access_at or row.last_access_at, at)
        if row.last_access_at < at or person != row.person_access_at:
            self._db.put(replace(row, last_access_at=max(row.last_access_at, at), person_access_at=person))

    def reset_idle_time(self, now: datetime) -> None:
        for row in list(self._db.rows.values()):
            if row.phase is Phase.RUNNING:
                self.advance_last_access(row.id, now)

    def _use(self, row: Workspace) -> dict[str, object]:
        """Return the columns that a person's use changes."""
        now = self._db.person_acts[row.id] = self._db.now()
        return {"last_access_at": now, "person_access_at": now}

    def start_command(self, workspace_id: str, lasts: timedelta, timeout: timedelta | None) -> None:
        """Start a command for a program."""
        row, now = self._db.rows[workspace_id], self._db.now()
        allowed_changes.check_may_hold(row)
        self._db.holds.commands.append(CommandRow(row.id, now, now, now + lasts, timeout))
        self._db.world.record(row.id, f"runs a command for {lasts.total_seconds():.0f} s")
        self.change_holds(row, last_access_at=now)

    def end_command(self, command: CommandRow) -> None:
        command.ended = True
        self.change_holds(self._db.rows[command.workspace_id])

    def create_lease(self, workspace_id: str, length: timedelta) -> None:
        row, now = self._db.rows[workspace_id], self._db.now()
        allowed_changes.check_may_hold(row)
        number = f"{len(self._db.holds.leases):08}"
        lease = Lease(number, row.id, "u", "a program", "a reason", now, now + length)
        self._db.holds.leases.append(LeaseRow(lease))
        self._db.world.record(row.id, f"has a lease for {length.total_seconds():.0f} s")
        self.change_holds(row)

    def end_lease(self, item: LeaseRow) -> None:
        item.removed, item.ended_at = True, self._db.now()
        self.change_holds(self._db.rows[item.lease.workspace_id])

    def begin_cpu_hold(self, workspace_id: str, hold: CpuHold) -> None:
        row = self._db.rows[workspace_id]
        try:
            allowed_changes.check_may_hold(row)
        except InvalidState:
            return
        self._db.holds.end_cpu(workspace_id, hold.measured_at)
        self._db.holds.cpu.append(CpuRow(workspace_id, hold))
        self._db.world.record(row.id, f"uses {hold.percent:.0f} % CPU")
        self.change_holds(row)

    def end_cpu_hold(self, workspace_id: str) -> None:
        if self._db.holds.end_cpu(workspace_id, self._db.now()):
            self._db.world.record(workspace_id, "uses little CPU")
            self.change_holds(self._db.rows[workspace_id])

    def change_holds(self, row: Workspace, **changes: object) -> None:
        """`gate.change_holds`."""
        self._db.put(replace(row, holds_changed_at=self._db.now(), **changes))  # type: ignore[arg-type]

    def _put(self, row: Workspace, message: str, **changes: object) -> None:
        self._db.world.record(row.id, message)
        after = self._db.put(replace(row, **changes))  # type: ignore[arg-type]
        self._db.requested_versions[row.id] = after.version
