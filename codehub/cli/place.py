"""The data directory: made, recognised, and marked as this installation's."""

from pathlib import Path

from codehub import log
from codehub.cli.errors import CommandError
from codehub.embedded.paths import make_dir, write_private
from codehub.storage.archive_store import ArchiveStore
from codehub.storage.errors import Unobservable
from codehub.storage.installation import check_directory
from codehub.storage.volumes import LocalVolumes

INSTALLATION_ID = "installation-id"
PARTS = {
    "archives", "installation-id", "jobs", "logs", "lost+found", "postgres", "postgres.new",
    "postgres.password", "redis", "run", "runtime", "volumes", ".postgres.password.new",
    ".installation-id.new",
}  # fmt: skip


def prepare(data_dir: Path) -> Path:
    """The data directory with its private parts; refuses a directory that holds something else."""
    path = data_dir.expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise CommandError(f"{path} is not a directory")
    if path.exists() and (strangers := {entry.name for entry in path.iterdir()} - PARTS):
        raise CommandError(
            f"{path} holds {', '.join(sorted(strangers)[:3])}, which is not CodeHub's: "
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
    try:
        return (data_dir / INSTALLATION_ID).read_text().strip()
    except FileNotFoundError:
        return None


async def settle(data_dir: Path, database_id: str, archive_url: str) -> None:
    """Marks volumes and archives at the very first start; from then on they are only looked at.

    An empty directory after the first start is a disk that is not mounted, and must not be claimed anew. The
    file comes last, so that a first start that was killed is done again.
    """
    known = installation_id(data_dir)
    if known is not None and known != database_id:
        raise CommandError(
            f"{data_dir} belongs to installation {known}, but the database to {database_id}: "
            "they are not of one CodeHub"
        )
    archives = ArchiveStore(archive_url, database_id)
    if known is None:
        LocalVolumes(data_dir / "volumes", database_id).initialise()
        await archives.initialise()
        write_private(data_dir / INSTALLATION_ID, f"{database_id}\n")
        return
    try:
        check_directory(data_dir / "volumes", database_id)
        await archives.check()
    except Unobservable as problem:
        log.get("up").warning("a disk is not there; what it holds is left as it is", problem=str(problem))
