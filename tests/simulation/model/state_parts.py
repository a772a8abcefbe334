"""The parts of a state of the model. Every part is a value.

Instead of times, a state has what they amount to (`op_due`, `retry`, ...), and "time passes" is a
step like any other. Names are small numbers of three families. After each step they are renamed to
1, 2, 3, ... in the order of their age, so that states that differ only in names are equal.
"""

from typing import NamedTuple

from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase


class Op(int):
    """An op_id."""


class Arc(int):
    """An archive_op_id. Their order is that of their age, as it is with ULIDs."""


class Stamp(int):
    """A moment at which the workspace was used."""


class Generation(NamedTuple):
    """The marker beside a home: which operation made it, from which archive."""

    op: Op
    arc: Arc | None


class Fact(NamedTuple):
    """The part of a condition that decisions depend on."""

    status: bool
    reason: str


class Request(NamedTuple):
    """The `request` column."""

    kind: str
    source: str | None = None
    arc: Arc | None = None


class Row(NamedTuple):
    """The workspace's row. `deleted`: 0 no, 1 in its grace period, 2 the grace period is over.

    `op_due`: 0 the operation has just begun or moved, 1 half of its time is over, 2 all of it.
    """

    desired: DesiredState
    deleted: int
    purged: bool
    waived: bool
    """Whether its deletion without an archive and a grace period was requested."""
    request: Request | None
    volume: Fact
    archive: Fact
    exists: Fact
    ready: Fact
    healthy: Fact
    phase: Phase
    phase_due: bool
    operation: Operation
    op: Op | None
    op_due: int
    archive_op: Arc | None
    archive_key: Arc | None
    errors: int
    error: ErrorReason | None
    retry: str | None
    started: str | None
    home: Generation | None


class Expected(NamedTuple):
    """The content that the user must get back, and whether it was destroyed from outside."""

    content: bytes | None = None
    lost: bool = False
    writes: int = 0


class Container(NamedTuple):
    """`state`: starting, ready, hung (it runs, may write, and does not answer) or exited."""

    op: Op
    attempt: int
    home: Generation | None
    state: str


class Disk(NamedTuple):
    """The workspace's directory. `fence` is the highest epoch that has changed it."""

    home: bytes | None = None
    marker: Generation | None = None
    staging: bytes | None = None
    asides: tuple[bytes, ...] = ()
    fence: int = 0


class Stored(NamedTuple):
    """An archive in the store. It is complete once it has its `.meta`."""

    arc: Arc
    content: bytes
    complete: bool


class Record(NamedTuple):
    """A row of the table of archives."""

    arc: Arc
    kept: bool = False
    removed: bool = False


class Store(NamedTuple):
    archives: tuple[Stored, ...] = ()
    records: tuple[Record, ...] = ()

    def find(self, arc: Arc | None) -> Stored | None:
        return next((item for item in self.archives if item.arc == arc), None)

    def complete(self, arc: Arc | None) -> bytes | None:
        """The content of a complete archive."""
        found = self.find(arc)
        return found.content if found is not None and found.complete else None

    def put(self, stored: Stored) -> "Store":
        others = tuple(item for item in self.archives if item.arc != stored.arc)
        return self._replace(archives=tuple(sorted((*others, stored))))

    def without(self, arc: Arc) -> "Store":
        return self._replace(archives=tuple(item for item in self.archives if item.arc != arc))


class Job(NamedTuple):
    """A storage job. `state`: queued, half, marked, acted (it still runs), done, failed or gone.

    `read` is what it has moved so far. `starters` are the leaders that remember having started it:
    1 the current one, 2 the stale one.
    """

    op: Op | None
    attempt: int
    kind: str
    home: Generation | None
    arc: Arc | None
    epoch: int
    state: str = "queued"
    read: bytes = b""
    starters: int = 1
    reason: ErrorReason | None = None
    names: tuple[str, ...] = ()

    @property
    def name(self) -> tuple[int, int, str]:
        return (self.op or 0, self.attempt, JOB_ROLES[self.kind])

    @property
    def is_running(self) -> bool:
        return self.state in ("queued", "half", "marked", "acted")

    @property
    def has_lock(self) -> bool:
        return self.state in ("half", "marked")


JOB_ROLES = {
    "archive": "main", "empty": "main", "restore": "main",
    "delete": "delete", "purge": "purge", "clear": "clear",
}  # fmt: skip


class Act(NamedTuple):
    """A decided and saved effect that is still to be carried out."""

    kind: str
    op: Op | None = None
    attempt: int = 0
    home: Generation | None = None
    arc: Arc | None = None


class ObservedJob(NamedTuple):
    state: str
    reason: ErrorReason | None


class PartialObservation(NamedTuple):
    """Observations of a leader in this reconcile. "unknown" and "skipped" are values too."""

    job: ObservedJob | None = None
    deletion: ObservedJob | None = None
    ours: bool = True
    container: tuple[str, Op | None, int] | str | None = None
    volume: tuple[Generation | None] | str | None = None


class Leader(NamedTuple):
    """A controller.

    `at`: idle, jobs, container, volume (last observed), act, held, fenced or failed.

    `row` is the row that it loaded, if that has changed since. `valid`: the row has not changed
    since the save. `job_runs`: a job of the attempt ran when the effect was decided. `seen`,
    `silent` and `fenced` (the disk is fenced against earlier leaders) are in memory only.
    """

    epoch: int
    at: str = "idle"
    observed: PartialObservation = PartialObservation()
    act: Act | None = None
    valid: bool = True
    row: Row | None = None
    seen: bool = False
    silent: int = 0
    fenced: bool = False
    job_runs: bool = False
    failure: ErrorReason | None = None


class Activity(NamedTuple):
    """Newest use: `last_access` in the row, `redis` in the ZSET, `unsent` in the gateway.

    A use up to `idle` is long ago. `recent_report`: the gateway has reported within the standby
    TTL. `sent`: it has written to Redis, and its heartbeat is still to come.

    `person` is the newest use by a person in the row, and `held` when a hold last began or ended. If
    `person` is not after `limit`, programs may no longer keep the workspace awake.
    """

    last_access: Stamp = Stamp(1)
    redis: Stamp | None = None
    newest: Stamp = Stamp(1)
    idle: Stamp | None = None
    unsent: Stamp | None = None
    sent: bool = False
    recent_report: bool = True
    person: Stamp = Stamp(1)
    held: Stamp = Stamp(1)
    limit: Stamp | None = None
    command: bool = False
    lease: bool = False
    cpu: bool = False

    @property
    def now(self) -> Stamp:
        """A moment after all others."""
        return Stamp(max(self.newest, self.held) + 1)

    @property
    def is_without_person(self) -> bool:
        """Whether no person has used it for so long that programs no longer keep it awake."""
        return self.limit is not None and self.person <= self.limit

    @property
    def is_held(self) -> bool:
        return (self.command or self.lease or self.cpu) and not self.is_without_person


class TtlSnapshot(NamedTuple):
    """The values that the TTL runner's update is conditional on."""

    desired: DesiredState
    phase: Phase
    operation: Operation
    deleted: bool
    request: Request | None
    last_access: Stamp
    held: Stamp
    expiry: DesiredState
    moved: bool = False
    """Whether phase_changed_at differs from what was read."""


class Ttl(NamedTuple):
    """The TTL runner. `at`: idle, begun, read, carried, ready, seen.

    `recent_report` is the gateway's heartbeat as it was read, and `reported` the newest use that
    was reported by then.
    """

    epoch: int = 0
    at: str = "idle"
    read: Stamp | None = None
    seen: TtlSnapshot | None = None
    recent_report: bool = False
    reported: Stamp | None = None


class Gc(NamedTuple):
    """The GC runner. `at`: idle, listed, due or checked.

    Known orphans in the store (`orphans`) and beside the home (`remains`) have an age: 0 new, 1
    over the orphan grace, 2 over the retention. `empty_database`: the database that it reads is
    empty, because it was lost or is another installation's.
    """

    epoch: int = 0
    at: str = "idle"
    listed: tuple[Arc, ...] = ()
    leftovers: tuple[str, ...] = ()
    due: tuple[Arc, ...] = ()
    clear: tuple[str, ...] = ()
    orphans: tuple[tuple[Arc, int], ...] = ()
    remains: tuple[tuple[str, int], ...] = ()
    empty_database: bool = False
    archives_kept: int = 0
    """How many of the newest complete archives of a living workspace stay."""
