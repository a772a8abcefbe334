"""Facts about the world, as the providers report them. Reality is the truth; these are one look at it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from codehub.domain.states import ErrorReason


@dataclass(frozen=True)
class Generation:
    """Which operation made a volume, and from which archive: the marker beside the home."""

    op_id: str
    archive_key: str | None


@dataclass(frozen=True)
class VolumeFact:
    """A home directory that exists. Without a generation it is unfinished, and not ready."""

    generation: Generation | None


@dataclass(frozen=True)
class Progress:
    bytes: int
    total: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class ContainerFact:
    exists: bool
    running: bool
    ready: bool
    upstream: str | None
    op_id: str | None
    message: str = ""
    progress: Progress | None = None
    """Of the image that is being pulled for it."""


@dataclass(frozen=True)
class ArchiveFact:
    """A complete archive: the object and its `.meta` are both there."""

    workspace_id: str
    archive_op_id: str
    key: str
    sha256: str
    bytes: int
    unpacked: int
    entries: int


class JobState(StrEnum):
    """GONE: it was started, is dead, and left no result (it was killed)."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    GONE = "GONE"


@dataclass(frozen=True)
class JobFact:
    """`outdated`: it failed because the home is no longer the one that its operation has archived.

    `bytes` and `seconds`: how much of a home an ended job has archived or restored, and how long it took.
    `left_out`: what the archive does not hold, as a phrase. `changed`: what a restore has changed.
    """

    state: JobState
    progress: Progress | None
    reason: ErrorReason | None
    message: str
    outdated: bool = False
    bytes: int = 0
    seconds: float = 0.0
    left_out: str = ""
    changed: str = ""


@dataclass(frozen=True)
class Unknown:
    """Something could not be looked at. It keeps its last value and never reads as "gone"."""

    message: str


@dataclass(frozen=True)
class Skipped:
    """Not part of this look: the last known value stands."""


SKIPPED = Skipped()


@dataclass(frozen=True)
class Observation:
    """One look at everything a workspace has.

    `archive` is the archive that matters now: of the archive operation under way, else of `archive_key`.
    `silent_since` is when a container that was ready stopped answering. `is_first` says that this
    controller has not seen the workspace before: what happened earlier happened while CodeHub was down.
    `job_is_ours` says that this controller started the job, so that its death is the job's own.
    """

    at: datetime
    container: ContainerFact | Unknown | None
    volume: VolumeFact | Unknown | None
    archive: ArchiveFact | Unknown | Skipped | None = SKIPPED
    job: JobFact | None = None
    deletion: JobFact | None = None
    silent_since: datetime | None = None
    is_first: bool = False
    job_is_ours: bool = True
