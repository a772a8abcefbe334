"""Commands, leases and CPU use in a simulated database, and the contract of their holds (section 14)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from codehub.domain.awake import Command, CpuHold, Holds, Lease

SEEN_WITHIN = timedelta(minutes=5)


@dataclass
class CommandRow:
    """A command. `ends_at` is when its process ends, whether or not CodeHub has seen it."""

    workspace_id: str
    started_at: datetime
    seen_at: datetime
    ends_at: datetime
    timeout: timedelta | None
    ended: bool = False
    known_at: datetime | None = None
    """The `seen_at` that the TTL runner has read; None if it has not read this command."""

    def held_until(self) -> datetime:
        """Return until when it held the workspace as far as the TTL runner could know."""
        seen = self.seen_at if self.known_at is None else self.known_at
        bounds = [self.ends_at, seen + SEEN_WITHIN]
        return min(bounds if self.timeout is None else [*bounds, self.started_at + self.timeout])


@dataclass
class LeaseRow:
    lease: Lease
    ended_at: datetime | None = None
    removed: bool = False

    def held_until(self) -> datetime:
        return self.ended_at or self.lease.expires_at


@dataclass
class CpuRow:
    """CPU use that holds a workspace."""

    workspace_id: str
    hold: CpuHold
    ended_at: datetime | None = None
    known_at: datetime | None = None
    """The `measured_at` that the TTL runner has read."""

    def held_until(self) -> datetime:
        """Return until when it held the workspace as far as the TTL runner could know."""
        over = (self.known_at or self.hold.measured_at) + SEEN_WITHIN
        return over if self.ended_at is None else min(over, self.ended_at)


@dataclass
class HoldRows:
    """The tables `execs`, `leases` and `cpu_holds`. What they lose stays here, for the contract."""

    commands: list[CommandRow] = field(default_factory=list)
    leases: list[LeaseRow] = field(default_factory=list)
    cpu: list[CpuRow] = field(default_factory=list)

    def cpu_of(self, workspace_id: str) -> CpuRow | None:
        """Return the present hold of a workspace by its CPU use."""
        return next((row for row in self.cpu if row.workspace_id == workspace_id and not row.ended_at), None)

    def end_cpu(self, workspace_id: str, now: datetime) -> bool:
        row = self.cpu_of(workspace_id)
        if row is not None:
            row.ended_at = now
        return row is not None

    def read(self, workspace_ids: Collection[str]) -> dict[str, Holds]:
        return {name: self._read(name) for name in workspace_ids}

    def _read(self, name: str) -> Holds:
        commands = [row for row in self.commands if row.workspace_id == name and not row.ended]
        for row in commands:
            row.known_at = row.seen_at
        leases = [row.lease for row in self.leases if row.lease.workspace_id == name and not row.removed]
        found = tuple(Command(row.started_at, row.seen_at, row.timeout) for row in commands)
        cpu = self.cpu_of(name)
        if cpu is not None:
            cpu.known_at = cpu.hold.measured_at
        return Holds(found, tuple(leases), None if cpu is None else cpu.hold)

    def remove_expired(self, now: datetime) -> dict[str, datetime]:
        """Remove expired leases; return the last end of each workspace."""
        ends: dict[str, datetime] = {}
        for row in self.leases:
            if not row.removed and row.lease.expires_at <= now:
                row.removed = True
                name = row.lease.workspace_id
                ends[name] = max(row.lease.expires_at, ends.get(name, row.lease.expires_at))
        return ends

    def ends_of(self, workspace_id: str) -> Iterator[tuple[str, datetime]]:
        """Yield what has held a workspace, and until when."""
        for command in self.commands:
            if command.workspace_id == workspace_id:
                yield "a command", command.held_until()
        for lease in self.leases:
            if lease.lease.workspace_id == workspace_id:
                yield "a lease", lease.held_until()
        for cpu in self.cpu:
            if cpu.workspace_id == workspace_id:
                yield "its CPU use", cpu.held_until()
