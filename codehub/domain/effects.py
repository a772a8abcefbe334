"""What the coordinator may do to the world. Each is idempotent and harmless when repeated."""

from dataclasses import dataclass

from codehub.domain.observation import Generation


@dataclass(frozen=True)
class Provision:
    """Make the empty home of a new workspace."""

    generation: Generation


@dataclass(frozen=True)
class StartContainer:
    """Start the IDE on the volume of exactly this generation."""

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
    """Keep a home of another generation under another name: its owner has chosen what takes its place."""

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
    """The main job of one attempt at an operation."""
    return f"{op_id}-{attempt}"


def deletion_job_id(op_id: str, attempt: int) -> str:
    """The job that removes the volume once its archive is committed."""
    return f"{op_id}-{attempt}-delete"
