"""The state of a simulated installation: homes, archives and containers, byte for byte.

Each change of a home is checked at once against the most important contract: at every instant, at
least one complete copy of the newest content exists.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from codehub.domain.disk import FreeSpace
from codehub.domain.observation import ArchiveFact, Generation
from tests.simulation.clock import VirtualLoop

PLENTY = 1 << 40
REPLACEMENT = 1.0
"""Seconds. A gateway that is replaced within this time counts as always reachable."""


class Violation(Exception):  # noqa: N818 - a fact about a history
    """A contract was broken."""

    events: tuple[str, ...] = ()


@dataclass
class Home:
    """A directory. A container keeps it even when it is renamed, as a mount does."""

    content: bytes
    removed_by_others: bool = False
    size: int = 0
    entries: int = 0


@dataclass
class Disk:
    """Directory of a workspace: a home with its marker, siblings, lock and fence."""

    home: Home | None = None
    marker: Generation | None = None
    siblings: dict[str, Home] = field(default_factory=dict)
    lock: object | None = None
    fence: int = 0


@dataclass
class Container:
    attempt: str
    home: Home
    ready_at: float
    running: bool = True
    silent_until: float = 0.0
    silent_from: float = 0.0
    hangs: bool = False
    """Whether it never answers."""

    def has_started(self, now: float) -> bool:
        """Return whether its processes write, even if it does not answer."""
        return self.running and now >= self.ready_at

    def is_ready(self, now: float) -> bool:
        return self.has_started(now) and now >= self.silent_until and not self.hangs

    def was_ready_for_long(self, now: float) -> bool:
        """Return whether it has answered for so long that the controller must have observed it."""
        return self.is_ready(now) and now - max(self.ready_at, self.silent_until) > 30

    def silence(self, now: float) -> float:
        """Return for how many seconds it has not answered, unless it is ready."""
        return now - self.silent_from


@dataclass(frozen=True)
class CpuLoad:
    """A program that uses so many cores in a workspace from one time to another, if that runs."""

    begin: float
    end: float
    cores: float

    def used(self, begin: float, end: float) -> float:
        return self.cores * max(0.0, min(self.end, end) - max(self.begin, begin))


@dataclass
class Stored:
    """An object in the archive store; complete once its `.meta` is there."""

    content: bytes
    complete: bool = False
    sha256: str = ""
    last_needed: datetime | None = None


@dataclass
class ExpectedHome:
    """The content that a home must have.

    `damaged_since_write`: someone outside of CodeHub destroyed a copy since the user last wrote.
    `damaged`: in addition, no new copy was made since. `lost`: that copy was the last one.
    """

    content: bytes = b""
    damaged_since_write: bool = False
    damaged: bool = False
    lost: bool = False
    protected: bool = True


class World:
    def __init__(self, loop: VirtualLoop, grace: timedelta) -> None:
        self.loop = loop
        self.grace = grace
        self.disks: dict[str, Disk] = {}
        self.containers: dict[str, Container] = {}
        self.store: dict[str, Stored] = {}
        self.expected_homes: dict[str, ExpectedHome] = {}
        self.down: dict[str, float] = {}
        self.uses: dict[str, list[float]] = {}
        """Times at which a workspace was used, whether or not CodeHub has recorded them."""
        self.open_gateways: set[str] = set()
        self.reachable_since: float | None = None
        self._reachable_before: tuple[float | None, float | None] = None, None
        self.unreachable_since: float | None = None
        """When the last open gateway closed; None if there was always one."""
        self.events: list[str] = []
        self.violation: Violation | None = None
        self.before_deletion: Callable[[str, Home], None] = lambda workspace_id, home: None
        self.steps = 0
        self.capacity = PLENTY
        self.hanging_attempts: tuple[str, ...] = ()
        """Suffixes of the attempts whose IDE may hang for good."""
        self.replaced: set[str] = set()
        """Operations that have replaced an IDE that they had started."""
        self.inodes = PLENTY
        self.cpu_loads: dict[str, list[CpuLoad]] = {}
        self.left_behind: dict[str, datetime] = {}
        """Archives of homes that a restore has replaced, and until when they are kept."""
        self.waived: set[str] = set()
        """Workspaces whose owner requested a delete without a grace period."""

    def free_space(self) -> FreeSpace:
        """Return the space that homes and their siblings leave free."""
        homes = [disk.home for disk in self.disks.values() if disk.home is not None]
        homes += [home for disk in self.disks.values() for home in disk.siblings.values()]
        taken = sum(home.size for home in homes), sum(home.entries for home in homes)
        return FreeSpace(self.capacity - taken[0], self.inodes - taken[1])

    def cpu_seconds(self, workspace_id: str) -> float:
        """Return the CPU time that the container of a workspace has used since it started."""
        now, container = self.loop.time(), self.containers[workspace_id]
        begun = container.silent_from
        return sum(load.used(begun, now) for load in self.cpu_loads.get(workspace_id, ()))

    def record(self, workspace_id: str, message: str) -> None:
        self.events.append(f"{self.loop.time():10.3f} {workspace_id[-3:]} {message}")

    def fail(self, workspace_id: str, message: str) -> None:
        """Record and raise a violation. It is kept too, since the caller may survive errors."""
        self.record(workspace_id, f"VIOLATION: {message}")
        violation = Violation(f"{message} (workspace {workspace_id})")
        self.violation = self.violation or violation
        raise violation

    def is_down(self, what: str) -> bool:
        return self.down.get(what, 0.0) > self.loop.time()

    def open_gateway(self, name: str) -> None:
        now = self.loop.utc_now().timestamp()
        if not self.open_gateways:
            if self.unreachable_since is None or now - self.unreachable_since > REPLACEMENT:
                self.reachable_since = now
            else:
                self.reachable_since, self.unreachable_since = self._reachable_before
        self.open_gateways.add(name)

    def close_gateway(self, name: str) -> None:
        self.open_gateways.discard(name)
        if not self.open_gateways and self.reachable_since is not None:
            self._reachable_before = self.reachable_since, self.unreachable_since
            self.reachable_since, self.unreachable_since = None, self.loop.utc_now().timestamp()

    def disk(self, workspace_id: str) -> Disk:
        if workspace_id not in self.disks:
            self.disks[workspace_id] = Disk()
        return self.disks[workspace_id]

    def changed(self, workspace_id: str) -> None:
        """Check that a copy still exists after a change of this workspace."""
        self.steps += 1
        expected = self.expected_homes.get(workspace_id)
        if expected is None or not expected.protected:
            return
        if not expected.content or self.has_copy(workspace_id, expected.content):
            expected.lost = False
        elif expected.damaged:
            expected.lost = True
        else:
            self.fail(workspace_id, "no complete copy of the home is left")

    def has_copy(self, workspace_id: str, content: bytes) -> bool:
        disk = self.disks.get(workspace_id)
        if disk is not None:
            if disk.home is not None and disk.home.content == content:
                return True
            if any(
                name.startswith(".aside") and home.content == content for name, home in disk.siblings.items()
            ):
                return True
        prefix = f"{workspace_id}/"
        return any(
            key.startswith(prefix) and is_intact(item) and item.content == content
            for key, item in self.store.items()
        )

    def write(self, workspace_id: str, content: bytes) -> bool:
        """Write from inside the container. This is the newest content from now on."""
        container = self.containers.get(workspace_id)
        expected = self.expected_homes[workspace_id]
        if (
            container is None
            or not container.has_started(self.loop.time())
            or container.home.removed_by_others
        ):
            return False
        container.home.content = content
        if not expected.lost:
            expected.content, expected.damaged_since_write, expected.damaged = content, False, False
            self.record(workspace_id, f"writes {content!r}")
        self.changed(workspace_id)
        return True

    def record_outside_damage(self, workspace_id: str) -> None:
        """Record that someone outside of CodeHub is about to destroy a copy."""
        self.expected_homes[workspace_id].damaged_since_write = self.expected_homes[workspace_id].damaged = (
            True
        )

    def find(self, key: str) -> ArchiveFact | None:
        item = self.store.get(key)
        if item is None or not item.complete:
            return None
        workspace_id, archive_op_id, _ = key.split("/")
        size = len(item.content)
        return ArchiveFact(workspace_id, archive_op_id, key, item.sha256, size, size, 1)

    def put(self, key: str, content: bytes) -> Stored:
        """Start or continue an upload. An archive with a `.meta` is never written again."""
        workspace_id = key.split("/")[0]
        there = self.store.get(key)
        if there is not None and there.complete:
            self.fail(workspace_id, f"the complete archive {key} is written again")
        item = self.store[key] = Stored(content, last_needed=self.loop.utc_now())
        return item

    def commit(self, key: str) -> None:
        item = self.store[key]
        item.sha256 = sha256(item.content)
        item.complete = True
        expected = self.expected_homes[key.split("/")[0]]
        expected.damaged = expected.damaged and item.content != expected.content
        self.record(key.split("/")[0], f"archive {key.split('/')[1][-4:]} holds {item.content!r}")

    def remove(self, key: str) -> None:
        workspace_id = key.split("/")[0]
        item = self.store.pop(key, None)
        if item is None:
            return
        self.record(workspace_id, f"archive {key} is removed")
        needed = item.last_needed
        expected = self.expected_homes.get(workspace_id)
        protected = expected is not None and expected.protected
        if protected and needed is not None and self.loop.utc_now() - needed < self.grace:
            self.fail(workspace_id, f"the archive {key} is removed before its grace is over")
        if protected and self.loop.utc_now() < self.left_behind.get(key, self.loop.utc_now()):
            self.fail(workspace_id, f"the archive {key} is removed, although a restore left it behind")
        self.changed(workspace_id)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_intact(item: Stored) -> bool:
    return item.complete and item.sha256 == sha256(item.content)
