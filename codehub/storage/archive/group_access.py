"""Read access of a group to a store in a directory (ADR 0040).

The group may enter the directories and read the files, and change nothing. The installation marker
tells whether a store is shared: what is written later gets the same permissions, by every process
that writes there, whatever it knows of the settings. Directories pass their group on (setgid).
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from codehub.storage.installation_marker import MARKER

PRIVATE_FILE_MODE: Final = 0o600
SHARED_FILE_MODE: Final = 0o640
_SHARED_DIRECTORY_MODE: Final = 0o2750
_GROUP_WRITES: Final = 0o020


class GroupInUse(Exception):  # noqa: N818 - a fact, not a fault
    """Directory whose permissions name another group, which may rely on them."""

    def __init__(self, path: Path, group: int) -> None:
        super().__init__(f"{path} is open to the group {group}, which is left as it is")


def is_shared(root: Path) -> bool:
    """Return whether a group may read what is stored from now on."""
    try:
        return bool((root / MARKER).lstat().st_mode & stat.S_IRGRP)
    except FileNotFoundError:
        return False


def make_directory(path: Path, *, shared: bool) -> None:
    """Make a directory below the store, unless it exists."""
    try:
        path.mkdir()
    except FileExistsError:
        return
    if shared:
        with suppress(OSError):  # a file system without modes must not cost the archive
            path.chmod(_SHARED_DIRECTORY_MODE)


def share_with_group(root: Path, group: int) -> None:
    """Let a group read the store, also what earlier versions wrote there.

    Raise GroupInUse or OSError for the first entry that stays as it is. If this is the directory,
    nothing in it is changed. Otherwise the entries after it are shared.
    """
    _share(root, group)
    failure: Exception | None = None
    for path in (root / MARKER, *_entries_below(root)):  # the marker after the directory's group
        try:
            _share(path, group)
        except FileNotFoundError:  # removed meanwhile
            continue
        except (GroupInUse, OSError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
    if not is_shared(root):
        raise OSError(f"{root / MARKER} has a second name, as a killed start leaves it: remove that one")


def _share(path: Path, group: int) -> None:
    """Change one file or directory, and never what a link leads to."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(descriptor)
        mode = _shared_mode(facts)
        if mode is None or (facts.st_gid == group and stat.S_IMODE(facts.st_mode) == mode):
            return
        if not _may_change(facts, group):
            raise GroupInUse(path, facts.st_gid)
        os.fchown(descriptor, -1, group)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _may_change(facts: os.stat_result, group: int) -> bool:
    """Return whether nobody loses access by another group: it has no more than everyone has."""
    of_group, of_others = facts.st_mode >> 3 & 7, facts.st_mode & 7
    return facts.st_gid in (group, os.getegid()) or not of_group & ~of_others


def _shared_mode(facts: os.stat_result) -> int | None:
    """Return the permissions with those of the group; None for what a store does not contain."""
    mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISDIR(facts.st_mode):
        return (mode | _SHARED_DIRECTORY_MODE) & ~_GROUP_WRITES
    if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1:  # a link may lead to any file of root
        return (mode | SHARED_FILE_MODE) & ~_GROUP_WRITES
    return None


def _entries_below(root: Path) -> Iterator[Path]:
    for directory, directories, files in os.walk(root):
        yield from (Path(directory, name) for name in (*directories, *files))
