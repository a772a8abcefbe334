"""Disk pressure: which running workspaces are warned and stopped while space is short (ADR 0019)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from codehub.domain.states import Phase

URGENT = 4
"""Below this fraction of the reserve, space freed by archiving comes too late."""
NEARLY_FULL = 64
"""Below this fraction of the reserve, a warning may come too late, or fail to be recorded."""
SMALL = 8
"""A home of less than this fraction of the reserve is never stopped."""
SHORTAGE_OVER = 1.25
"""Warnings end when this multiple of the reserve is free, so that they do not flap."""
START_WAITS = timedelta(minutes=10)
"""Longest time that a start or restore waits for space. Meanwhile its home is not archived."""
FULL = 0.98
"""A home above this fraction of its quota is full."""


class Resource(StrEnum):
    """Resource of a disk. FILES are inodes: each file and directory takes one."""

    BYTES = "bytes"
    FILES = "files"


@dataclass(frozen=True)
class FreeSpace:
    """Free space of a disk. `files` is None on a file system without a fixed number of inodes."""

    bytes: int
    files: int | None = None

    def of(self, resource: Resource) -> int | None:
        return self.bytes if resource is Resource.BYTES else self.files


@dataclass(frozen=True)
class Reserve:
    """Space that must stay free on the disk of the homes for the database. 0 turns it off."""

    bytes: int
    files: int = 0

    def of(self, resource: Resource) -> int:
        return self.bytes if resource is Resource.BYTES else self.files


@dataclass(frozen=True)
class Shortage:
    """Resource that is below its reserve."""

    resource: Resource
    free: int
    reserve: int

    @property
    def left(self) -> str:
        """Return a phrase for the free space: `has 300 MiB left`, `can take only 12 more files`."""
        if self.resource is Resource.FILES:
            return f"can take only {self.free:,} more files"
        return f"has {size_text(self.free)} left"

    @property
    def kept(self) -> str:
        return size_text(self.reserve) if self.resource is Resource.BYTES else f"{self.reserve:,}"


@dataclass(frozen=True)
class DiskRules:
    """Rules for one resource. `reserve` is in its unit."""

    reserve: int
    grace: timedelta = timedelta(minutes=2)


@dataclass(frozen=True)
class DiskState:
    """State of a disk. `expected`: space that archiving the stopped homes will free.

    `stopping`: a workspace that the watchdog has stopped still runs, and may be the one that writes.
    """

    free: int
    expected: int = 0
    full_in: timedelta | None = None
    resource: Resource = Resource.BYTES
    stopping: bool = False


@dataclass(frozen=True)
class LargeEntry:
    """Large file or directory of a home, by its path below the home."""

    name: str
    bytes: int


@dataclass(frozen=True)
class HomeSize:
    """Measured size of a home.

    `complete` is False if the home has more entries than a walk counts: it is at least this large.
    """

    bytes: int
    entries: int
    complete: bool = True
    largest: tuple[LargeEntry, ...] = ()
    quota_bytes: int = 0
    """0 means no quota."""

    def of(self, resource: Resource) -> int:
        return self.bytes if resource is Resource.BYTES else self.entries

    @property
    def is_full(self) -> bool:
        return self.quota_bytes > 0 and self.bytes >= FULL * self.quota_bytes


@dataclass(frozen=True)
class HomeRecord:
    """Last recorded size of a home, and what the watchdog did about it."""

    size: HomeSize
    measured_at: datetime | None = None
    notice: str | None = None
    warned_at: datetime | None = None
    stopped_at: datetime | None = None


@dataclass(frozen=True)
class LiveHome:
    """Home of a RUNNING or STANDBY workspace.

    `may_stop`: the workspace runs, and no operation or request is under way.
    """

    workspace_id: str
    number: int
    home_store_key: str
    phase: Phase
    phase_changed_at: datetime
    may_stop: bool
    record: HomeRecord | None = None

    @property
    def warned_at(self) -> datetime | None:
        return None if self.record is None else self.record.warned_at

    @property
    def has_run_again(self) -> bool:
        """Whether the workspace was started since the watchdog stopped it."""
        stopped = None if self.record is None else self.record.stopped_at
        return stopped is not None and self.phase is Phase.RUNNING and self.phase_changed_at > stopped

    @property
    def frees_space_soon(self) -> bool:
        """Whether the watchdog has stopped the workspace, so that archiving will free its space."""
        stopped = self.record is not None and self.record.stopped_at is not None
        return stopped and not self.has_run_again

    @property
    def is_stopping(self) -> bool:
        """Whether the watchdog has stopped the workspace, and it still runs."""
        return self.frees_space_soon and self.phase is Phase.RUNNING


@dataclass(frozen=True)
class RunningHome:
    """Home of a running workspace. `size` is in the unit of the resource that is short."""

    workspace_id: str
    size: int
    warned_at: datetime | None = None


@dataclass(frozen=True)
class Notice:
    """Message to the owner of a workspace, for the timeline and its page."""

    workspace_id: str
    message: str


@dataclass(frozen=True)
class DiskActions:
    """Workspaces to warn and to stop now."""

    warn: tuple[Notice, ...] = ()
    stop: tuple[Notice, ...] = ()

    @property
    def all(self) -> tuple[Notice, ...]:
        return (*self.stop, *self.warn)


def choose_disk_actions(
    disk: DiskState, homes: Sequence[RunningHome], rules: DiskRules, now: datetime
) -> DiskActions:
    """Return which running workspaces to warn and to stop now, the largest first.

    On a disk that is nearly full, the largest is stopped without a warning, one after the other.
    """
    if disk.free >= rules.reserve:
        return DiskActions()
    share = size_limit_under_shortage(disk, [home.size for home in homes], rules)
    above = sorted((home for home in homes if home.size > share), key=_largest_first)
    grace = grace_of(disk, rules)
    due = [home for home in above if home.warned_at is not None and now - home.warned_at >= grace]
    stopped = due if is_urgent(disk, rules) else due[:1]
    if not stopped and not disk.stopping and disk.free * NEARLY_FULL < rules.reserve:
        stopped = above[:1]
    warned = [home for home in above if home.warned_at is None and home not in stopped]
    return DiskActions(
        tuple(Notice(home.workspace_id, _warning(disk, home, rules, grace)) for home in warned),
        tuple(Notice(home.workspace_id, _stop_reason(disk, home, rules)) for home in stopped),
    )


def size_limit_under_shortage(disk: DiskState, sizes: Sequence[int], rules: DiskRules) -> int:
    """Return the size up to which a running home is neither warned nor stopped."""
    missing = rules.reserve - disk.free
    if not is_urgent(disk, rules):
        missing -= disk.expected
    share = largest_after_freeing(sizes, missing)
    if is_urgent(disk, rules):
        share = share * disk.free * URGENT // rules.reserve
    return max(share, rules.reserve // SMALL)


def largest_after_freeing(sizes: Sequence[int], missing: int) -> int:
    """Return the size to which the largest homes have to shrink to free `missing` bytes together."""
    ordered = sorted(sizes, reverse=True)
    if not ordered or missing <= 0:
        return ordered[0] if ordered else 0
    for count, (size, next_size) in enumerate(zip(ordered, [*ordered[1:], 0], strict=True), 1):
        step = count * (size - next_size)
        if step >= missing:
            return size - -(-missing // count)
        missing -= step
    return 0


def is_urgent(disk: DiskState, rules: DiskRules) -> bool:
    return disk.free * URGENT < rules.reserve


def grace_of(disk: DiskState, rules: DiskRules) -> timedelta:
    """Return the time between a warning and a stop: less if the disk would be full before."""
    return rules.grace if disk.full_in is None else min(rules.grace, disk.full_in / 4)


def shortages(free: FreeSpace, reserve: Reserve) -> tuple[Shortage, ...]:
    """Return the resources that are below their reserve."""
    return tuple(
        Shortage(resource, left, kept)
        for resource in Resource
        if (left := free.of(resource)) is not None and left < (kept := reserve.of(resource))
    )


def is_shortage_over(free: FreeSpace, reserve: Reserve) -> bool:
    """Return whether there is enough free space to end the warnings."""
    return _is_free(SHORTAGE_OVER, free, reserve)


def is_below_multiple(multiple: float, free: FreeSpace, reserve: Reserve) -> bool:
    """Return whether less than this multiple of a reserve is free."""
    return not _is_free(multiple, free, reserve)


def _is_free(multiple: float, free: FreeSpace, reserve: Reserve) -> bool:
    enough = Reserve(int(multiple * reserve.bytes), int(multiple * reserve.files))
    return not shortages(free, enough)


def size_text(count: int) -> str:
    """Return a number of bytes as people read it: `300 MiB`, `41 GiB`."""
    mebibytes = count / (1 << 20)
    if mebibytes < 1:
        return f"{count} bytes"
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"


def amount_text(count: int, resource: Resource) -> str:
    """Return an amount as people read it: `300 MiB`, `12,000 files`."""
    return size_text(count) if resource is Resource.BYTES else f"{count:,} files"


def waiting_message(shortage: Shortage) -> str:
    return (
        f"Waiting for disk space: the disk of the homes {shortage.left}, less than the reserve of "
        f"{shortage.kept}. Archive or delete workspaces, or ask an admin to make room."
    )


def _largest_first(home: RunningHome) -> tuple[int, str]:
    return -home.size, home.workspace_id


def _left(disk: DiskState, rules: DiskRules) -> str:
    shortage = Shortage(disk.resource, disk.free, rules.reserve)
    return f"the disk {shortage.left} (reserve {shortage.kept})"


def _size_of(home: RunningHome, disk: DiskState) -> str:
    return amount_text(home.size, disk.resource)


def _warning(disk: DiskState, home: RunningHome, rules: DiskRules, grace: timedelta) -> str:
    seconds = max(1, round(grace.total_seconds()))
    return (
        f"Warning: {_left(disk, rules)} and this home has {_size_of(home, disk)}, more than its share. "
        f"Remove files now: in about {seconds} s the largest workspaces are stopped."
    )


def _stop_reason(disk: DiskState, home: RunningHome, rules: DiskRules) -> str:
    return (
        f"Stopped: {_left(disk, rules)} and this home has {_size_of(home, disk)}, more than its share. "
        "Nothing was removed. Remove files after the next start, or ask an admin to make room."
    )
