"""Directories that only one account may enter, and sockets with short enough paths."""

import hashlib
import os
import stat
from pathlib import Path

from codehub.embedded.server_account import EmbeddedError, ServerAccount
from codehub.host.atomic_files import replace_file
from codehub.host.durable_files import fsync_path

SOCKET_PATH_LIMIT = 107  # sun_path holds 108 bytes with its closing NUL


def make_dir(path: Path, mode: int, account: ServerAccount | None = None, group: int | None = None) -> Path:
    """Create a directory with this mode and owner.

    Reject a directory that belongs to someone else.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = path.lstat()
    owners = {os.geteuid()} if account is None else {os.geteuid(), account.uid}
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid not in owners:
        raise EmbeddedError(f"{path} is not a directory of ours: it belongs to user id {facts.st_uid}")
    path.chmod(mode)
    if account is not None:
        account.give(path, group)
    return path


def socket_dir(data_dir: Path, name: str, socket_name: str) -> Path:
    """Return `{data_dir}/run/{name}`, or a short directory if a socket's path were too long."""
    directory = data_dir / "run" / name
    if len(os.fsencode(directory / socket_name)) <= SOCKET_PATH_LIMIT:
        return directory
    return short_run_dir(data_dir) / name


def make_socket_dir(path: Path, account: ServerAccount, group: int | None = None) -> None:
    """Make a directory that only the account, root and the members of `group` may enter."""
    make_dir(path.parent, 0o711)
    make_dir(path, 0o700 if group is None else 0o710, account, group)


def socket_mode(group: int | None) -> str:
    """Return a socket's permissions: the directory decides which members of `group` reach it."""
    return "0700" if group is None else "0777"


def short_run_dir(data_dir: Path) -> Path:
    """Return a short directory that is always the same for one data directory."""
    digest = hashlib.sha256(os.fsencode(data_dir.absolute())).hexdigest()[:12]
    base = Path("/run") if os.geteuid() == 0 and os.access("/run", os.W_OK) else Path("/tmp")  # noqa: S108
    return base / f"codehub-{os.geteuid()}-{digest}"


def write_private(path: Path, text: str) -> None:
    """Write a secret durably and in one step, readable by its owner only."""
    staged = path.with_name(f".{path.name}.new")
    staged.unlink(missing_ok=True)
    replace_file(path, text.encode(), staged=staged, durable=True)
    fsync_path(path.parent, follow_symlinks=True)
