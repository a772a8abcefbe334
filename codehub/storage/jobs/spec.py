"""What a storage job is told: everything it needs, and nothing of the database."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias

from codehub.domain.observation import Generation


@dataclass(frozen=True)
class StorageLocation:
    """Where homes and archives lie, and whose they must be."""

    volumes_root: Path
    archive_url: str
    installation_id: str


@dataclass(frozen=True)
class ArchiveJob:
    """Put a home into the store. The home stays as it is.

    `reserve`: bytes that must stay free on the disk of a store that is a directory.
    """

    kind: ClassVar[str] = "archive"
    place: StorageLocation
    workspace_id: str
    home_store_key: str
    generation: Generation
    archive_op_id: str
    epoch: int
    reserve: int


@dataclass(frozen=True)
class EmptyArchiveJob:
    """Put the archive of a new home into the store; `uid` will own the home, and `files` will be in it."""

    kind: ClassVar[str] = "empty-archive"
    place: StorageLocation
    workspace_id: str
    home_store_key: str
    archive_op_id: str
    uid: int | None
    epoch: int
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RestoreJob:
    """Make a home from an archive. Its generation will be `{op_id, archive_key}`.

    `uid` will own the home and everything in it; None leaves owners as they are. `reserve`, `reserve_files`:
    bytes and inodes of the disk that must stay free.
    """

    kind: ClassVar[str] = "restore"
    place: StorageLocation
    workspace_id: str
    home_store_key: str
    op_id: str
    archive_key: str
    sha256: str | None
    epoch: int
    reserve: int
    uid: int | None = None
    reserve_files: int = 0


@dataclass(frozen=True)
class DeleteJob:
    """Remove a home of this generation, and only of this; None stands for a home without a marker.

    `unchanged_since`: the time, in seconds of the epoch, from which on nothing in it may have changed.
    """

    kind: ClassVar[str] = "delete"
    place: StorageLocation
    workspace_id: str
    home_store_key: str
    generation: Generation | None
    epoch: int
    unchanged_since: float | None = None


@dataclass(frozen=True)
class ClearJob:
    """Remove these leftovers beside a home. The home stays as it is."""

    kind: ClassVar[str] = "clear"
    place: StorageLocation
    workspace_id: str
    home_store_key: str
    names: list[str]
    epoch: int


JobSpec: TypeAlias = ArchiveJob | EmptyArchiveJob | RestoreJob | DeleteJob | ClearJob

_KINDS: dict[str, type[JobSpec]] = {
    job.kind: job for job in (ArchiveJob, EmptyArchiveJob, RestoreJob, DeleteJob, ClearJob)
}


def dump_spec(spec: JobSpec) -> bytes:
    return json.dumps({"kind": spec.kind, **asdict(spec)}, default=str, indent=1).encode()


def load_spec(content: bytes) -> JobSpec:
    fields = json.loads(content)
    job = _KINDS[fields.pop("kind")]
    place = fields.pop("place")
    place["volumes_root"] = Path(place["volumes_root"])
    if fields.get("generation") is not None:
        fields["generation"] = Generation(**fields["generation"])
    return job(place=StorageLocation(**place), **fields)
