"""What there is in a simulated installation: homes, archives and containers, byte for byte.

Whatever is done to a home is checked at once against the contract above all others: at every instant at least
one complete copy of the newest content exists.
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
"""Seconds. A gateway that takes the place of another so soon was never away for a person."""


class Violation(Exception):  # noqa: N818 - a fact about a history
    """A contract was broken."""

    story: tuple[str, ...] = ()


@dataclass
class Home:
    """A directory. Containers keep hold of it even when it is renamed, as a mount does."""

    content: bytes
    vandalised: bool = False
    size: int = 0
    entries: int = 0


@dataclass
class Disk:
    """The directory of a workspace: a home with its marker, what lies beside it, its lock and its fence."""

    home: Home | None = None
    marker: Generation | None = None
    beside: dict[str, Home] = field(default_factory=dict)
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
    """It never answers."""

    def works(self, now: float) -> bool:
        """Its processes write, whether or not it answers."""
        return self.running and now >= self.ready_at

    def is_ready(self, now: float) -> bool:
        return self.works(now) and now >= self.silent_until and not self.hangs

    def was_seen_ready(self, now: float) -> bool:
        """Whether it has answered for so long that its controller cannot have missed it."""
        return self.is_ready(now) and now - max(self.ready_at, self.silent_until) > 30

    def silence(self, now: float) -> float:
        """For how many seconds it has not answered, unless it is ready."""
        return now - self.silent_from


@dataclass
class Stored:
    """An object in the archive store; complete once its `.meta` is there."""

    content: bytes
    complete: bool = False
    sha256: str = ""
    last_needed: datetime | None = None


@dataclass
class Truth:
    """What a home must hold.

    Robbed: someone outside of CodeHub has destroyed a copy since its user last wrote.
    Wounded: and no new one was made since. Lost: with it went the last one.
    """

    content: bytes = b""
    robbed: bool = False
    wounded: bool = False
    lost: bool = False
    promised: bool = True


class Reality:
    def __init__(self, loop: VirtualLoop, grace: timedelta) -> None:
        self.loop = loop
        self.grace = grace
        self.disks: dict[str, Disk] = {}
        self.containers: dict[str, Container] = {}
        self.store: dict[str, Stored] = {}
        self.truths: dict[str, Truth] = {}
        self.down: dict[str, float] = {}
        self.uses: dict[str, list[float]] = {}
        """When somebody did something in a workspace, known to CodeHub or not."""
        self.open_gateways: set[str] = set()
        self.reachable_since: float | None = None
        self._reachable_before: tuple[float | None, float | None] = None, None
        self.unreachable_since: float | None = None
        """When the last gateway went that was there alone; None while there always was one."""
        self.story: list[str] = []
        self.violation: Violation | None = None
        self.before_deletion: Callable[[str, Home], None] = lambda workspace_id, home: None
        self.steps = 0
        self.capacity = PLENTY
        self.hanging_attempts: tuple[str, ...] = ()
        """The last characters of the attempts whose IDE may hang for good."""
        self.replaced: set[str] = set()
        """Operations that have replaced an IDE which they had started."""
        self.inodes = PLENTY
        self.waived: set[str] = set()
        """Workspaces of which someone has asked to delete them without a grace period."""

    def free_space(self) -> FreeSpace:
        """What all homes, and what lies beside them, leave of the disk."""
        homes = [disk.home for disk in self.disks.values() if disk.home is not None]
        homes += [home for disk in self.disks.values() for home in disk.beside.values()]
        taken = sum(home.size for home in homes), sum(home.entries for home in homes)
        return FreeSpace(self.capacity - taken[0], self.inodes - taken[1])

    def tell(self, workspace_id: str, words: str) -> None:
        self.story.append(f"{self.loop.time():10.3f} {workspace_id[-3:]} {words}")

    def fail(self, workspace_id: str, words: str) -> None:
        """Noted as well, since whoever calls may live on after errors."""
        self.tell(workspace_id, f"VIOLATION: {words}")
        violation = Violation(f"{words} (workspace {workspace_id})")
        self.violation = self.violation or violation
        raise violation

    def is_down(self, what: str) -> bool:
        return self.down.get(what, 0.0) > self.loop.time()

    def open_gateway(self, name: str) -> None:
        now = self.loop.moment().timestamp()
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
            self.reachable_since, self.unreachable_since = None, self.loop.moment().timestamp()

    def disk(self, workspace_id: str) -> Disk:
        if workspace_id not in self.disks:
            self.disks[workspace_id] = Disk()
        return self.disks[workspace_id]

    def changed(self, workspace_id: str) -> None:
        """Something of this workspace has changed: is there still a copy?"""
        self.steps += 1
        truth = self.truths.get(workspace_id)
        if truth is None or not truth.promised:
            return
        if not truth.content or self.has_copy(workspace_id, truth.content):
            truth.lost = False
        elif truth.wounded:
            truth.lost = True
        else:
            self.fail(workspace_id, "no complete copy of the home is left")

    def has_copy(self, workspace_id: str, content: bytes) -> bool:
        disk = self.disks.get(workspace_id)
        if disk is not None:
            if disk.home is not None and disk.home.content == content:
                return True
            if any(
                name.startswith(".aside") and home.content == content for name, home in disk.beside.items()
            ):
                return True
        prefix = f"{workspace_id}/"
        return any(
            key.startswith(prefix) and is_intact(item) and item.content == content
            for key, item in self.store.items()
        )

    def write(self, workspace_id: str, content: bytes) -> bool:
        """Something in the container writes: that is the newest content from now on, wherever it lands."""
        container = self.containers.get(workspace_id)
        truth = self.truths[workspace_id]
        if container is None or not container.works(self.loop.time()) or container.home.vandalised:
            return False
        container.home.content = content
        if not truth.lost:
            truth.content, truth.robbed, truth.wounded = content, False, False
            self.tell(workspace_id, f"writes {content!r}")
        self.changed(workspace_id)
        return True

    def vandalise(self, workspace_id: str) -> None:
        """Called before someone outside of CodeHub destroys something: what is gone then is not our fault."""
        self.truths[workspace_id].robbed = self.truths[workspace_id].wounded = True

    def find(self, key: str) -> ArchiveFact | None:
        item = self.store.get(key)
        if item is None or not item.complete:
            return None
        workspace_id, archive_op_id, _ = key.split("/")
        size = len(item.content)
        return ArchiveFact(workspace_id, archive_op_id, key, item.sha256, size, size, 1)

    def put(self, key: str, content: bytes) -> Stored:
        """Begin or go on with an upload; what has its `.meta` is never written again."""
        workspace_id = key.split("/")[0]
        there = self.store.get(key)
        if there is not None and there.complete:
            self.fail(workspace_id, f"the complete archive {key} is written again")
        item = self.store[key] = Stored(content, last_needed=self.loop.moment())
        return item

    def commit(self, key: str) -> None:
        item = self.store[key]
        item.sha256 = sha256(item.content)
        item.complete = True
        truth = self.truths[key.split("/")[0]]
        truth.wounded = truth.wounded and item.content != truth.content
        self.tell(key.split("/")[0], f"archive {key.split('/')[1][-4:]} holds {item.content!r}")

    def remove(self, key: str) -> None:
        workspace_id = key.split("/")[0]
        item = self.store.pop(key, None)
        if item is None:
            return
        self.tell(workspace_id, f"archive {key} is removed")
        needed = item.last_needed
        truth = self.truths.get(workspace_id)
        promised = truth is not None and truth.promised
        if promised and needed is not None and self.loop.moment() - needed < self.grace:
            self.fail(workspace_id, f"the archive {key} is removed before its grace is over")
        self.changed(workspace_id)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_intact(item: Stored) -> bool:
    return item.complete and item.sha256 == sha256(item.content)
