"""Data directory: its creation, the check of its content, and the claims of its storage."""

from pathlib import Path

import structlog

from codehub.cli.errors import CommandError
from codehub.coordinator.storage_claims import Claims, claim_storage
from codehub.domain.storage_root import StorageRoot
from codehub.embedded.private_paths import make_dir, write_private
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.errors import Unobservable
from codehub.storage.installation_marker import check_directory
from codehub.storage.jobs.spec import StorageLocation

logger = structlog.get_logger(__name__)

INSTALLATION_ID = "installation-id"
ENTRIES = {
    "archives", "execs", "installation-id", "jobs", "logs", "lost+found", "postgres", "postgres.new",
    "postgres.password", "postgres.reserve", "postgres.reserve.inodes", "redis", "run", "runtime", "volumes",
    ".postgres.password.new", ".postgres.reserve.new", ".postgres.reserve.inodes.new", ".installation-id.new",
}  # fmt: skip


def is_new(data_dir: Path) -> bool:
    """Return whether the data directory is missing or empty."""
    path = data_dir.expanduser()
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def prepare(data_dir: Path) -> Path:
    """Create the data directory and return its path. Reject a directory with other content."""
    path = data_dir.expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise CommandError(f"{path} is not a directory")
    if path.exists() and (unknown := {entry.name for entry in path.iterdir()} - ENTRIES):
        raise CommandError(
            f"{path} holds {', '.join(sorted(unknown)[:3])}, which is not CodeHub's: "
            "choose an empty or new directory with --data-dir"
        )
    path = path.resolve()
    make_dir(path, 0o711)
    make_dir(path / "run", 0o711)
    make_dir(path / "logs", 0o700)
    make_dir(path / "jobs", 0o700)
    make_dir(path / "runtime", 0o711)
    return path


def installation_id(data_dir: Path) -> str | None:
    """Return the installation id that the data directory records, or None."""
    try:
        return (data_dir / INSTALLATION_ID).read_text().strip()
    except FileNotFoundError:
        return None


def installation_mismatch(data_dir: Path, known: str, database_id: str) -> str:
    """Return the error message for a data directory and a database of different installations."""
    return (
        f"{data_dir} belongs to installation {known}, but the database to {database_id}: "
        "they are not of one CodeHub"
    )


async def claim_or_check_storage(data_dir: Path, location: StorageLocation, claims: Claims) -> None:
    """Claim volumes and archives at the first start, and only check them at later starts.

    An empty directory after the first start is a disk that is not mounted, so it is never claimed
    again. The database records the claims. Earlier versions recorded them only by the file in the
    data directory. That file is written last, so a first start that was killed is repeated.
    """
    database_id = location.installation_id
    known = installation_id(data_dir)
    if known is not None and known != database_id:
        raise CommandError(installation_mismatch(data_dir, known, database_id))
    if known is not None:
        for root in StorageRoot:
            await claims.record(root)
    await claim_storage(claims, location, create=True)
    if known is None:
        write_private(data_dir / INSTALLATION_ID, f"{database_id}\n")
    try:
        check_directory(location.volumes_root, database_id)
        await ArchiveStore(location.archive_url, database_id).check()
    except Unobservable as problem:
        logger.warning("storage is missing; CodeHub does not touch its content", problem=str(problem))
