"""Effects that the coordinator carries out. Each is idempotent (ADR 0002)."""

from dataclasses import dataclass

from codehub.domain.observation import Generation


@dataclass(frozen=True)
class Provision:
    """Create the empty home of a new workspace."""

    generation: Generation


@dataclass(frozen=True)
class StartContainer:
    """Start the IDE on the volume of this generation, and on no other."""

    attempt: str
    generation: Generation


@dataclass(frozen=True)
class DeleteContainer:
    """Stop and remove the container."""


@dataclass(frozen=True)
class ArchiveHome:
    job_id: str
    generation: Generation
    archive_op_id: str


@dataclass(frozen=True)
class ArchiveEmpty:
    job_id: str
    archive_op_id: str


@dataclass(frozen=True)
class RestoreHome:
    job_id: str
    op_id: str
    archive_key: str


@dataclass(frozen=True)
class DeleteVolume:
    job_id: str
    generation: Generation


@dataclass(frozen=True)
class SetHomeAside:
    """Move a home of another generation aside and keep it. Its owner has chosen a replacement."""

    generation: Generation


@dataclass(frozen=True)
class CancelJob:
    job_id: str


Effect = (
    Provision
    | StartContainer
    | DeleteContainer
    | ArchiveHome
    | ArchiveEmpty
    | RestoreHome
    | DeleteVolume
    | SetHomeAside
    | CancelJob
)


def job_id(op_id: str, attempt: int) -> str:
    """Return the id of the main job of one attempt at an operation."""
    return f"{op_id}-{attempt}"


def deletion_job_id(op_id: str, attempt: int) -> str:
    """Return the id of the job that removes the volume once its archive is committed."""
    return f"{op_id}-{attempt}-delete"
