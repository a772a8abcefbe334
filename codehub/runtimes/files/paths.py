"""Paths inside a workspace, followed one directory at a time. Standard library only (see `agent`).

/proc is never entered: its links lead to whatever the agent, or another process, has open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from codehub.runtimes.files.protocol import FileCode, FileFacts, FileKind, FileRefused

_MAX_LINKS = 40
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO that takes the place of the file between the check and this would block without O_NONBLOCK.
_CONTENT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
ITSELF = b"."
"""The name of a place that has no other: the path ends with the root, or with `..`."""
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}


@dataclass(frozen=True)
class Place:
    """A name in an open directory. Nothing needs to have that name."""

    parent: int
    name: bytes

    def lstat(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.parent, follow_symlinks=False)

    def lstat_or_none(self) -> os.stat_result | None:
        try:
            return self.lstat()
        except FileNotFoundError:
            return None

    def require_name(self) -> None:
        if self.name == ITSELF:
            raise FileRefused(FileCode.INVALID, "this directory cannot be replaced, moved or removed")

    def open_file(self) -> int:
        """Open a regular file for reading. Nothing else is opened."""
        require_regular(self.lstat())
        descriptor = os.open(self.name, _CONTENT, dir_fd=self.parent)
        try:
            require_regular(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


class FileTree:
    """The files of a workspace. Relative paths start in its home."""

    def __init__(self, home: bytes, proc: str = "/proc") -> None:
        self._home = home
        self._forbidden = _devices(proc)

    @contextlib.contextmanager
    def resolve(self, path: bytes, *, follow: bool) -> Iterator[Place]:
        """Find the place of a path. `follow`: if that is a symbolic link, find where it leads."""
        walk = _Walk(self, path)
        try:
            yield walk.run(follow=follow)
        finally:
            walk.close()

    @contextlib.contextmanager
    def directory(self, path: bytes) -> Iterator[int]:
        """Open the directory to which a path leads, for reading."""
        with self.resolve(path, follow=True) as place:
            descriptor = self.open_directory(place.parent, place.name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open_directory(self, parent: int, name: bytes) -> int:
        """Open a directory for reading, but not through a symbolic link."""
        return self._checked(os.open(name, _DIRECTORY, dir_fd=parent))

    def enter(self, parent: int, name: bytes) -> int:
        """Open a directory as a place for names, which needs no right to read it."""
        return self._checked(os.open(name, _PLACE, dir_fd=parent))

    def start(self, path: bytes) -> int:
        return os.open(b"/" if path.startswith(b"/") else self._home, os.O_PATH | os.O_DIRECTORY)

    def require_not_home(self, facts: os.stat_result) -> None:
        """Refuse the home and the directories that hold it, by any of their names."""
        if not stat.S_ISDIR(facts.st_mode):
            return
        if (facts.st_dev, facts.st_ino) in self._identities_up_from_home():
            raise FileRefused(
                FileCode.INVALID, "this directory is the home or holds it, and cannot be moved or removed"
            )

    def _identities_up_from_home(self) -> Iterator[tuple[int, int]]:
        at = os.open(self._home, os.O_PATH | os.O_DIRECTORY)
        try:
            previous = None
            while (identity := _identity(at)) != previous:
                yield identity
                above = os.open(b"..", _PLACE, dir_fd=at)
                os.close(at)
                at, previous = above, identity
        finally:
            os.close(at)

    def _checked(self, descriptor: int) -> int:
        if os.fstat(descriptor).st_dev in self._forbidden:
            os.close(descriptor)
            raise FileRefused(FileCode.DENIED, "/proc is not offered here: read it with a command")
        return descriptor


class _Walk:
    """Resolution of one path, as the kernel would do it."""

    def __init__(self, tree: FileTree, path: bytes) -> None:
        self._tree = tree
        self._parts = deque(_parts(path))
        self._links = 0
        self._at = tree.start(path)

    def run(self, *, follow: bool) -> Place:
        while self._parts:
            name = self._parts.popleft()
            is_last = not self._parts
            if name == b"..":
                self._enter(name)
            elif is_last and not follow:
                return Place(self._at, name)
            elif self._replace_link(name):
                continue
            elif is_last:
                return Place(self._at, name)
            else:
                self._enter(name)
        return Place(self._at, ITSELF)

    def close(self) -> None:
        os.close(self._at)

    def _enter(self, name: bytes) -> None:
        entered = self._tree.enter(self._at, name)
        os.close(self._at)
        self._at = entered

    def _replace_link(self, name: bytes) -> bool:
        """If the name is a symbolic link, put its target in its place."""
        try:
            target = os.readlink(name, dir_fd=self._at)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return False
            raise
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        self._parts.extendleft(reversed(_parts(target)))
        if target.startswith(b"/"):
            os.close(self._at)
            self._at = self._tree.start(target)
        return True


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def _identity(descriptor: int) -> tuple[int, int]:
    facts = os.fstat(descriptor)
    return facts.st_dev, facts.st_ino


def _devices(proc: str) -> frozenset[int]:
    try:
        return frozenset({Path(proc).stat().st_dev})
    except OSError:
        return frozenset()


def require_regular(facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        kind = kind_of(facts)
        what = "a directory" if kind is FileKind.DIRECTORY else "no regular file"
        raise FileRefused(FileCode.NOT_A_FILE, f"this is {what}: only regular files have content")


def kind_of(facts: os.stat_result) -> FileKind:
    return _KINDS.get(stat.S_IFMT(facts.st_mode), FileKind.OTHER)


def etag_of(facts: os.stat_result) -> str:
    """Return an ETag. Every change of content, mode or name of a file changes its ctime."""
    return f"{facts.st_ino:x}-{facts.st_size:x}-{facts.st_mtime_ns:x}-{facts.st_ctime_ns:x}"


def facts_of(path: bytes, facts: os.stat_result, target: bytes = b"") -> FileFacts:
    return FileFacts(
        path,
        kind_of(facts),
        facts.st_size,
        stat.S_IMODE(facts.st_mode),
        facts.st_mtime_ns,
        etag_of(facts),
        target,
    )


def facts_at(place: Place, path: bytes = b"") -> FileFacts:
    facts = place.lstat()
    target = b""
    if stat.S_ISLNK(facts.st_mode):
        with contextlib.suppress(OSError):  # another file has taken its place
            target = os.readlink(place.name, dir_fd=place.parent)
    return facts_of(path, facts, target)


def is_unreachable(error: OSError) -> bool:
    """Return whether an entry is no longer what it was when its directory was read."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
