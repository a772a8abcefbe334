"""What a leader reads and writes in the database during one time in office."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from codehub.domain.decision import Decision
from codehub.domain.disk import HomeSize, LiveHome, Notice
from codehub.domain.gateway_reports import ActivitySnapshot, GatewayReport
from codehub.domain.gc import ArchiveHolder, StoredArchive
from codehub.domain.health_checks import CheckName, CheckResult
from codehub.domain.ttl import Expiry, TtlDefaults
from codehub.domain.workspace import Workspace


class LeaderDatabase(Protocol):
    """Every write is fenced by the leader's epoch, and raises StaleLeader once another one leads.

    A write raises RowLocked if another transaction keeps a row locked for too long.
    """

    async def versions(self) -> Mapping[str, int]:
        """The version of every row that may still need something, by workspace id."""

    async def archive_keys(self) -> Mapping[str, tuple[str, bool]]:
        """The archive_key of every workspace that has one and is not purged; and whether it was there."""

    async def ids_with_upstream(self) -> Set[str]:
        """Every workspace that has an upstream."""

    async def clear_upstreams(self, workspace_ids: Collection[str]) -> None:
        """Forget the upstreams of these."""

    async def load(self, workspace_ids: Sequence[str]) -> list[Workspace]: ...

    async def find(self, workspace_id: str) -> Workspace | None: ...

    async def save(self, before: Workspace, decision: Decision, now: datetime) -> Workspace:
        """Commit a decision; raises Outdated when the row is no longer the one that it was made on."""

    async def archive_checksum(self, key: str) -> str | None:
        """The sha256 that an archive had when it was committed."""

    async def touch(self, seen: Mapping[str, datetime]) -> None:
        """Carry activity over into last_access_at, only ever forward."""

    async def gateways(self) -> Mapping[str, GatewayReport]:
        """Return the last report of each gateway worker."""

    async def settle_gateways(self, carried: Mapping[str, int], gone: Collection[str]) -> None:
        """Record which flushes were carried into last_access_at, and forget the workers that are gone."""

    async def restart_clocks(self, now: datetime) -> None:
        """Count the idle time of every RUNNING workspace from now."""

    async def expirable(self, defaults: TtlDefaults, now: datetime) -> list[Workspace]:
        """At least every workspace whose deadline has passed."""

    async def expire(self, seen: Workspace, expiry: Expiry, now: datetime) -> bool:
        """A TTL's wish; False when something that it was decided on has changed since, or is about to."""

    async def homes(self) -> list[LiveHome]:
        """Return every home on the disk, with its last measurement that was recorded."""

    async def record_sizes(self, sizes: Mapping[str, HomeSize], now: datetime) -> None:
        """Record measurements, by workspace id. No workspace's row changes."""

    async def warn_of_disk(self, notice: Notice, now: datetime) -> None:
        """Warn a workspace that it will be stopped for the disk."""

    async def stop_for_disk(self, home: LiveHome, notice: Notice, now: datetime) -> bool:
        """Stop a workspace for the disk; False when it no longer runs as it did."""

    async def clear_notices(self, workspace_ids: Collection[str]) -> None:
        """Remove what these workspaces were told about the disk."""

    async def purge(self, deleted_before: datetime | None, now: datetime) -> list[str]:
        """Commit that some whose grace period is over will not come back; returns none when none is left."""

    async def op_ids(self) -> set[str]:
        """The operations under way."""

    async def holders(self, now: datetime) -> dict[str, ArchiveHolder]:
        """What every workspace that there ever was protects."""

    async def first_seen(self) -> dict[str, datetime]:
        """The orphans in mind."""

    async def remember(self, seen: Mapping[str, datetime]) -> None:
        """Keep exactly these orphans in mind."""

    async def condemn(self, item: StoredArchive, present: Collection[str], now: datetime) -> str | None:
        """Commit that an archive goes, so that nothing can choose it; or say why it has to stay."""

    async def trim_audit_log(self, before: datetime) -> int:
        """Remove some audit entries from before a time; return how many, 0 when none is left."""

    async def trim_timelines(self) -> int:
        """Remove the oldest entries of long timelines, and all of purged workspaces; return how many."""

    async def record_counted_failures(self, now: datetime) -> None:
        """Record how many failed passwords of the hours that are over got no entry of their own."""

    async def health_checks(self) -> Mapping[CheckName, CheckResult]:
        """Return the results that this leader or an earlier one has saved."""

    async def save_health_checks(self, checks: Mapping[CheckName, CheckResult]) -> None:
        """Replace the results of these checks."""


class Activity(Protocol):
    """When workspaces were last used, on its way into the database."""

    async def read(self) -> ActivitySnapshot: ...
    async def remove(self, carried: ActivitySnapshot) -> int: ...


class LeadershipTerm(Protocol):
    """One time in office."""

    @property
    def epoch(self) -> int: ...
    async def heartbeat(self) -> None: ...
    async def catch_up(self, newest: int) -> None: ...
    async def resign(self) -> None: ...


Listen = Callable[[Callable[[str], None], Callable[[], None]], Awaitable[None]]
"""Listens until cancelled, calling back with a hint about one workspace, or to look at everything again."""


@dataclass(frozen=True)
class LeaderServices:
    """What a leader works with."""

    records: LeaderDatabase
    activity: Activity
    listen: Listen


class CoordinatorBackend(Protocol):
    """Where leaders are elected, and their records lie."""

    async def campaign(self) -> LeadershipTerm | None:
        """Take office if nobody holds it."""

    def desk(self, term: LeadershipTerm) -> AbstractAsyncContextManager[LeaderServices]: ...
