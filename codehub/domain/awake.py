"""Holds: running commands, leases and CPU use, which keep a running workspace from standby (ADR 0037).

A hold is a fact with an end. Each fact is as the database last recorded it; `awake_at` returns which
of them hold at a given moment.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

SEEN_WITHIN: Final = timedelta(minutes=5)
"""A command that nothing has seen alive for this long no longer holds."""
CPU_WINDOW: Final = timedelta(minutes=10)
"""Time over which the CPU use is averaged that keeps a workspace awake."""
MAX_LEASES: Final = 50
"""Leases that a workspace may have at a time."""
FOREVER: Final = datetime.max.replace(tzinfo=UTC)
"""The end of a hold whose end is not known."""
LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
LONGEST_TIMEOUT: Final = timedelta(days=3650)


@dataclass(frozen=True)
class Command:
    """A command that has not ended, as far as the database knows."""

    started_at: datetime
    """When it was started, or requested if it is still starting."""
    seen_at: datetime
    timeout: timedelta | None = None

    @property
    def latest_end(self) -> datetime:
        """When its timeout ends it, or FOREVER without one."""
        if self.timeout is None:
            return FOREVER
        return self.started_at + min(self.timeout, LONGEST_TIMEOUT)

    @property
    def held_until(self) -> datetime:
        """When it stops holding, unless it is seen again."""
        return min(self.latest_end, self.seen_at + SEEN_WITHIN)


@dataclass(frozen=True)
class Lease:
    """A promise to keep a workspace awake until a time, with its reason."""

    id: str
    workspace_id: str
    actor_id: str
    actor_name: str
    reason: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class CpuHold:
    """CPU use above what its owner has set, on average over CPU_WINDOW, in percent of one core."""

    percent: float
    above_percent: int
    """The setting with which it was compared."""
    began_at: datetime
    measured_at: datetime

    @property
    def held_until(self) -> datetime:
        """When it stops holding, unless it is measured again."""
        return self.measured_at + SEEN_WITHIN


@dataclass(frozen=True)
class Holds:
    """The commands, the leases and the CPU use of one workspace, over or not."""

    commands: tuple[Command, ...] = ()
    leases: tuple[Lease, ...] = ()
    cpu: CpuHold | None = None


NO_HOLDS: Final = Holds()


@dataclass(frozen=True)
class Awake:
    """What holds a workspace at one moment, and when the last of the other holds ended."""

    now: datetime
    commands: tuple[Command, ...] = ()
    lease: Lease | None = None
    """The lease that expires last."""
    ended_at: datetime = LONG_AGO
    cpu: CpuHold | None = None

    @property
    def commands_until(self) -> datetime:
        """When the last command ends if each runs for as long as it may."""
        return _newest(command.latest_end for command in self.commands)

    @property
    def lease_until(self) -> datetime:
        return LONG_AGO if self.lease is None else self.lease.expires_at

    @property
    def cpu_until(self) -> datetime:
        """FOREVER while its CPU use holds it: the end of that is not known."""
        return LONG_AGO if self.cpu is None else FOREVER

    @property
    def until(self) -> datetime:
        """When the last hold ends, or has ended. LONG_AGO if there was none."""
        return max(self.commands_until, self.lease_until, self.cpu_until, self.ended_at)


NOT_HELD: Final = Awake(LONG_AGO)


def awake_at(holds: Holds, now: datetime) -> Awake:
    """Return what holds at `now`: a hold counts until its end, and no longer at its end."""
    running = tuple(command for command in holds.commands if now < command.held_until)
    valid = [lease for lease in holds.leases if now < lease.expires_at]
    over = [command.held_until for command in holds.commands if command.held_until <= now]
    over += [lease.expires_at for lease in holds.leases if lease.expires_at <= now]
    lease = max(valid, key=lambda lease: lease.expires_at, default=None)
    cpu = holds.cpu if holds.cpu is not None and now < holds.cpu.held_until else None
    if holds.cpu is not None and cpu is None:
        over.append(holds.cpu.held_until)
    return Awake(now, running, lease, _newest(over), cpu)


def _newest(moments: Iterable[datetime]) -> datetime:
    return max(moments, default=LONG_AGO)
