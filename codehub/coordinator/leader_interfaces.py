"""Interfaces to the database, activity and notifications that a leader uses during its term."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from codehub.domain.awake import CpuHold, Holds
from codehub.domain.decision import Decision
from codehub.domain.disk import HomeSize, LiveHome, Notice
from codehub.domain.gateway_reports import ActivitySnapshot, GatewayReport
from codehub.domain.gc import ArchiveHolder, StoredArchive
from codehub.domain.health_checks import CheckName, CheckResult
from codehub.domain.resource_usage import UsageSample
from codehub.domain.running_workspace import RunningWorkspace
from codehub.domain.ttl import Expiry, TtlDefaults
from codehub.domain.workspace import Workspace


class LeaderDatabase(Protocol):
    """Repository that is fenced by the leader's epoch (ADR 0002).

    A write raises StaleLeader once another coordinator leads, and RowLocked if another transaction
    keeps a row locked for too long.
    """

    async def versions(self) -> Mapping[str, int]:
        """Return the version of every row that is not purged, by workspace id."""

    async def archive_keys(self) -> Mapping[str, tuple[str, bool]]:
        """Return the archive key of every workspace that has one, and whether it was last observed.

        Purged workspaces are left out.
        """

    async def ids_with_upstream(self) -> Set[str]:
        """Return every workspace that has an upstream."""

    async def clear_upstreams(self, workspace_ids: Collection[str]) -> None:
        """Remove the upstreams of these workspaces."""

    async def load(self, workspace_ids: Sequence[str]) -> list[Workspace]: ...

    async def find(self, workspace_id: str) -> Workspace | None: ...

    async def save(self, before: Workspace, decision: Decision, now: datetime) -> Workspace:
        """Commit a decision, or raise VersionConflict if the row has changed since the decision was made."""

    async def archive_checksum(self, key: str) -> str | None:
        """Return the sha256 that an archive had when it was committed."""

    async def advance_last_access(self, seen: Mapping[str, datetime]) -> None:
        """Write activity to last_access_at and person_access_at, which only move forward."""

    async def gateway_reports(self) -> Mapping[str, GatewayReport]:
        """Return the last report of each gateway worker."""

    async def update_gateway_reports(self, carried: Mapping[str, int], gone: Collection[str]) -> None:
        """Record which flushes are in last_access_at, and remove the workers that are gone."""

    async def reset_idle_time(self, now: datetime) -> None:
        """Count the idle time of every RUNNING workspace from now."""

    async def ttl_candidates(self, defaults: TtlDefaults, now: datetime) -> list[Workspace]:
        """Return at least every workspace whose deadline has passed."""

    async def holds(self, workspace_ids: Collection[str]) -> Mapping[str, Holds]:
        """Return what may hold these workspaces. One without any holds may be left out."""

    async def remove_expired_leases(self, now: datetime) -> int:
        """Remove expired leases, and record their ends; return how many."""

    async def running_workspaces(self) -> list[RunningWorkspace]:
        """Return every RUNNING workspace, with its home and with the CPU use that keeps it awake."""

    async def begin_cpu_hold(self, workspace_id: str, hold: CpuHold) -> None:
        """Let CPU use keep a workspace awake, unless it is about to stop."""

    async def renew_cpu_holds(self, holds: Mapping[str, CpuHold]) -> None:
        """Record new measurements of CPU use that keeps workspaces awake. No workspace's row changes."""

    async def end_cpu_hold(self, workspace_id: str, now: datetime) -> None:
        """Record that CPU use no longer keeps a workspace awake."""

    async def cpu_holds_not_measured(self, now: datetime) -> list[str]:
        """Return the workspaces whose CPU use has not been measured for so long that it holds no longer."""

    async def apply_expiry(self, seen: Workspace, expiry: Expiry, now: datetime) -> bool:
        """Set the desired state of an expiry; return False if what it was decided on has changed."""

    async def homes(self) -> list[LiveHome]:
        """Return every home on the disk, with its last measurement that was recorded."""

    async def record_sizes(self, sizes: Mapping[str, HomeSize], now: datetime) -> None:
        """Record measurements, by workspace id. No workspace's row changes."""

    async def warn_of_disk(self, notice: Notice, now: datetime) -> None:
        """Warn a workspace that it will be stopped for the disk."""

    async def stop_for_disk(self, home: LiveHome, notice: Notice, now: datetime) -> bool:
        """Stop a workspace for the disk; return False if it no longer runs as it did."""

    async def clear_notices(self, workspace_ids: Collection[str]) -> None:
        """Remove the notices about the disk from these workspaces."""

    async def purge(self, deleted_before: datetime | None, now: datetime) -> list[str]:
        """Purge some workspaces whose grace period is over; return their ids, or none if none is left."""

    async def op_ids(self) -> set[str]:
        """Return the ids of all current operations."""

    async def archive_holders(self, now: datetime) -> dict[str, ArchiveHolder]:
        """Return what every workspace protects, purged ones included."""

    async def read_orphans(self) -> dict[str, datetime]:
        """Return when each recorded orphan was first seen."""

    async def replace_orphans(self, seen: Mapping[str, datetime]) -> None:
        """Record exactly these orphans. An orphan that was recorded before keeps its time."""

    async def mark_archive_removed(
        self, item: StoredArchive, present: Collection[str], archives_kept: int, now: datetime
    ) -> str | None:
        """Commit the removal of an archive, so that nothing can choose it; or return why it stays."""

    async def trim_audit_log(self, before: datetime) -> int:
        """Remove some audit entries from before a time; return how many, or 0 if none is left."""

    async def remove_expired_execs(self, ended_before: datetime, now: datetime) -> int:
        """Forget some commands that ended before a time; return how many, or 0 if none is left."""

    async def wanted_execs(self, exec_ids: Collection[str], now: datetime) -> set[str]:
        """Return the commands whose output is to be kept. That of archived workspaces is not."""

    async def without_home(self, workspace_ids: Collection[str]) -> set[str]:
        """Return which of these workspaces are archived, deleted or unknown, and have no operation."""

    def locked_without_home(self, workspace_id: str) -> AbstractAsyncContextManager[bool]:
        """Return whether this still holds for a workspace, and lock its row for the block."""

    async def trim_timelines(self) -> int:
        """Remove the oldest entries of long timelines, and all of purged workspaces; return how many."""

    async def record_counted_failures(self, now: datetime) -> None:
        """Record how many failed passwords of the hours that are over got no entry of their own."""

    async def forget_login_failures(self) -> int:
        """Forget some failed sign-ins beyond the bound; return how many."""

    async def health_checks(self) -> Mapping[CheckName, CheckResult]:
        """Return the results that this leader or an earlier one has saved."""

    async def save_health_checks(self, checks: Mapping[CheckName, CheckResult]) -> None:
        """Replace the results of these checks."""


class Activity(Protocol):
    """Times of last use that gateways have flushed to Redis (ADR 0004)."""

    async def read(self) -> ActivitySnapshot: ...
    async def remove(self, carried: ActivitySnapshot) -> int: ...


class UsageHistory(Protocol):
    """Samples of what workspaces use, of the last hour, in Redis (ADR 0039)."""

    async def append(self, samples: Mapping[str, UsageSample]) -> None: ...
    async def read(self, workspace_ids: Collection[str]) -> Mapping[str, Sequence[UsageSample]]:
        """Return the samples of these workspaces, the oldest first."""


class LeadershipTerm(Protocol):
    """One term of a leader, which ends when another coordinator leads."""

    @property
    def epoch(self) -> int: ...
    async def heartbeat(self) -> None: ...
    async def catch_up(self, newest: int) -> None: ...
    async def resign(self) -> None: ...


HintSource = Callable[[Callable[[str], None], Callable[[], None]], Awaitable[None]]
"""Listens until cancelled. It calls the first callback for a workspace, the second to resync all."""


@dataclass(frozen=True)
class LeaderServices:
    """Connections that a leader uses during its term."""

    database: LeaderDatabase
    activity: Activity
    usage: UsageHistory
    listen: HintSource


class CoordinatorBackend(Protocol):
    """Leader election, and the services of the elected leader."""

    async def campaign(self) -> LeadershipTerm | None:
        """Start a term if no other coordinator leads."""

    def leader_services(self, term: LeadershipTerm) -> AbstractAsyncContextManager[LeaderServices]: ...
