"""Facts about containers, volumes, archives and jobs, as the providers reported them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from codehub.domain.states import ErrorReason


@dataclass(frozen=True)
class Generation:
    """Operation that made a volume, and the archive it was restored from (ADR 0002).

    A marker file beside the home holds it.
    """

    op_id: str
    archive_key: str | None


@dataclass(frozen=True)
class VolumeFact:
    """Home directory that exists. Without a generation it is unfinished, and not ready."""

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
    """Progress of the image pull for this container."""


@dataclass(frozen=True)
class ArchiveFact:
    """Complete archive: both the object and its `.meta` exist."""

    workspace_id: str
    archive_op_id: str
    key: str
    sha256: str
    bytes: int
    unpacked: int
    entries: int


class JobState(StrEnum):
    """State of a storage job. A GONE job was killed: it has ended and left no result."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    GONE = "GONE"


@dataclass(frozen=True)
class JobFact:
    """State and result of a storage job.

    `outdated`: the job failed because the home has changed since its operation archived it.
    `bytes` and `seconds`: how much of a home an ended job archived or restored, and how long it took.
    `left_out`: what the archive does not hold, as a phrase.
    `changed`: what a restore has changed, as a phrase.
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
    """Result of a failed check. The last known value stands; it never counts as missing."""

    message: str


@dataclass(frozen=True)
class Skipped:
    """Marker for a check that was not made this time. The last known value stands."""


SKIPPED = Skipped()


@dataclass(frozen=True)
class Observation:
    """Facts about everything that a workspace has, at one time.

    `archive`: the archive of the archive operation under way, otherwise that of `archive_key`.
    `chosen`: the archive that a pending request to restore names.
    `silent_since`: when a container that was ready stopped answering.
    `is_first`: this controller observes the workspace for the first time. Earlier events happened
    while CodeHub was down.
    `job_is_ours`: this controller started the job. If the job was killed, CodeHub's end was not the cause.
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
    chosen: ArchiveFact | Unknown | Skipped | None = SKIPPED
