"""Specification of a storage job, as written to spec.json: all that the job needs to know."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias

from codehub.domain.observation import Generation


@dataclass(frozen=True)
class StorageLocation:
    """Where homes and archives are kept, and the installation that both must belong to."""

    volumes_root: Path
    archive_url: str
    installation_id: str


@dataclass(frozen=True)
class ArchiveJob:
    """Job that archives a home, and leaves the home as it is.

    `reserve`: bytes that must stay free on the disk, if the archive store is a directory.
    """

    kind: ClassVar[str] = "archive"
    location: StorageLocation
    workspace_id: str
    home_store_key: str
    generation: Generation
    archive_op_id: str
    epoch: int
    reserve: int


@dataclass(frozen=True)
class EmptyArchiveJob:
    """Job that stores the archive of a new home, which `uid` owns and which contains `files`."""

    kind: ClassVar[str] = "empty-archive"
    location: StorageLocation
    workspace_id: str
    home_store_key: str
    archive_op_id: str
    uid: int | None
    epoch: int
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RestoreJob:
    """Job that makes a home of generation `{op_id, archive_key}` from an archive.

    `uid` will own everything in the home; None keeps the owners of the archive. `reserve` and
    `reserve_files` are the bytes and inodes that must stay free on the disk.
    """

    kind: ClassVar[str] = "restore"
    location: StorageLocation
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
    """Job that removes a home of this generation; None stands for a home without a marker.

    `unchanged_since`: Unix time after which nothing in the home may have changed.
    """

    kind: ClassVar[str] = "delete"
    location: StorageLocation
    workspace_id: str
    home_store_key: str
    generation: Generation | None
    epoch: int
    unchanged_since: float | None = None


@dataclass(frozen=True)
class ClearJob:
    """Job that removes leftovers beside a home, and leaves the home as it is."""

    kind: ClassVar[str] = "clear"
    location: StorageLocation
    workspace_id: str
    home_store_key: str
    names: list[str]
    epoch: int


JobSpec: TypeAlias = ArchiveJob | EmptyArchiveJob | RestoreJob | DeleteJob | ClearJob

_KINDS: dict[str, type[JobSpec]] = {
    job.kind: job for job in (ArchiveJob, EmptyArchiveJob, RestoreJob, DeleteJob, ClearJob)
}

# An earlier version's name of the field. A job that waits across an upgrade was written with it.
_LOCATION_KEY = "place"


def dump_spec(spec: JobSpec) -> bytes:
    """Return the content of spec.json, which jobs of other versions can read."""
    fields = asdict(spec)
    fields[_LOCATION_KEY] = fields.pop("location")
    return json.dumps({"kind": spec.kind, **fields}, default=str, indent=1).encode()


def load_spec(content: bytes) -> JobSpec:
    """Return the job that a spec.json describes."""
    fields = json.loads(content)
    job = _KINDS[fields.pop("kind")]
    location = fields.pop(_LOCATION_KEY)
    location["volumes_root"] = Path(location["volumes_root"])
    if fields.get("generation") is not None:
        fields["generation"] = Generation(**fields["generation"])
    return job(location=StorageLocation(**location), **fields)
