"""Installation marker: proof that a disk or store is mounted and belongs to this installation."""

from pathlib import Path

from codehub.host.durable_files import create_durably, make_directory, read_if_there
from codehub.storage.errors import Unobservable, from_os_error

MARKER = ".codehub-installation"
_NOT_CONTENT = {"lost+found"}


def marker_content(installation_id: str) -> bytes:
    """Return the content of the marker file."""
    return f"{installation_id}\n".encode()


def is_content(name: str) -> bool:
    """Return whether a file or object of this name means that a location is in use.

    The marker is not content, and neither is a partial marker that a killed claim left.
    """
    return name not in _NOT_CONTENT and not name.startswith(MARKER)


def check_marker(found: bytes | None, installation_id: str, location: str) -> None:
    """Raise Unobservable unless `found` is the marker of this installation."""
    if found is None:
        raise Unobservable(
            f"{location} has no {MARKER}: not mounted, or not CodeHub's; nothing in it is touched"
        )
    owner = found.decode("utf-8", "replace").strip()
    if owner != installation_id:
        raise Unobservable(
            f"{location} belongs to another CodeHub installation ({owner}); nothing in it is touched"
        )


def check_claim(found: bytes | None, installation_id: str, location: str) -> None:
    """Do as `check_marker`, for a location that this installation has just tried to claim."""
    if found is None:
        raise Unobservable(
            f"{location} is not empty and has no {MARKER}: "
            "CodeHub claims only an empty location; choose another"
        )
    try:
        check_marker(found, installation_id, location)
    except Unobservable as problem:
        raise Unobservable(
            f"{problem.message}. Connect to the database of that installation, or choose an empty location"
        ) from problem


def check_directory(root: Path, installation_id: str) -> None:
    """Raise Unobservable unless a directory has the marker of this installation."""
    check_marker(_read_marker(root), installation_id, str(root))


def claim_directory(root: Path, installation_id: str) -> None:
    """Mark an empty directory as this installation's, and check the marker of any other."""
    try:
        make_directory(root, 0o711)
        marked = (root / MARKER).exists()
        if not marked and not any(is_content(entry.name) for entry in root.iterdir()):
            create_durably(root / MARKER, marker_content(installation_id))
    except OSError as error:
        raise from_os_error(error, f"{root} cannot be claimed") from error
    check_claim(_read_marker(root), installation_id, str(root))


def _read_marker(root: Path) -> bytes | None:
    try:
        return read_if_there(root / MARKER)
    except OSError as error:
        raise Unobservable(f"{root} cannot be read: {error.strerror}") from error
