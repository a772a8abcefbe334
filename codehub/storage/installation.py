"""The installation marker: proof that a disk or store is mounted, and ours."""

from pathlib import Path

from codehub.storage.durable import make_directory, read_if_there, write_durably
from codehub.storage.errors import Unobservable

MARKER = ".codehub-installation"
_NOT_CONTENT = {"lost+found"}


def compare(found: bytes | None, installation_id: str, place: str) -> None:
    """Raise Unobservable unless `found` is the marker of this installation."""
    if found is None:
        raise Unobservable(
            f"{place} has no {MARKER}: not mounted, or not CodeHub's; nothing in it is touched"
        )
    owner = found.decode("utf-8", "replace").strip()
    if owner != installation_id:
        words = f"{place} belongs to another CodeHub installation ({owner}); nothing in it is touched"
        raise Unobservable(words)


def check_directory(root: Path, installation_id: str) -> None:
    try:
        found = read_if_there(root / MARKER)
    except OSError as error:
        raise Unobservable(f"{root} cannot be read: {error.strerror}") from error
    compare(found, installation_id, str(root))


def initialise_directory(root: Path, installation_id: str) -> None:
    """Claim a directory that is new, that is empty. One that holds anything is only checked."""
    make_directory(root, 0o711)
    if all(entry.name in _NOT_CONTENT for entry in root.iterdir()):
        write_durably(root / MARKER, f"{installation_id}\n".encode())
    check_directory(root, installation_id)
