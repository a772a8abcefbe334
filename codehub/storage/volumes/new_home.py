"""Initial content of a home."""

import os
from collections.abc import Mapping
from pathlib import Path

from codehub.host.durable_files import fsync_path
from codehub.storage.volumes.workspace_directory import make_private_directory

_DIRECTORY_MODE, _FILE_MODE = 0o755, 0o644
"""The modes that the workspace's umask gives. The home itself is private."""


def make_new_home(path: Path, uid: int | None, files: Mapping[str, str]) -> None:
    """Make a private directory with these files, durably, and give it to the workspace's user.

    The user gets the directory last. Until then the user cannot enter it, and so not redirect
    CodeHub by a symbolic link.
    """
    make_private_directory(path, None)
    made = [path]
    for name, content in files.items():
        for parent in reversed(Path(name).parents[:-1]):
            if path / parent not in made:
                (path / parent).mkdir()
                (path / parent).chmod(_DIRECTORY_MODE)
                made.append(path / parent)
        _write(path / name, content.encode())
        made.append(path / name)
    for entry in reversed(made):
        if uid is not None and os.geteuid() == 0:
            os.chown(entry, uid, uid, follow_symlinks=False)
        fsync_path(entry)


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        os.fchmod(fd, _FILE_MODE)
