"""Content of files: reading, and atomic replacement. Standard library only (see `agent`)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from codehub.runtimes.files.channel import Channel
from codehub.runtimes.files.paths import (
    FileTree,
    Place,
    etag_of,
    facts_of,
    require_regular,
)
from codehub.runtimes.files.protocol import (
    MAX_DATA,
    FileCode,
    FileRefused,
    OpenRequest,
    ReadRequest,
    WriteRequest,
    to_fields,
)

_TEMPORARY = b".codehub-upload-"
_SYNC_BYTES = 128 << 20
"""How much is written before the disk has to follow: the last fsync of a huge file would take long."""
_LOCK_SECONDS = 5.0
_LOCK_POLL_SECONDS = 0.005
_NO_TEMPORARY_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""How filesystems without O_TMPFILE refuse it."""


class OpenedFile:
    """The file that a client reads, piece by piece."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def open(self, tree: FileTree, request: OpenRequest, channel: Channel) -> None:
        self.close()
        with tree.resolve(request.path, follow=True) as place:
            self._descriptor = place.open_file()
        facts = facts_of(b"", os.fstat(self._descriptor))
        channel.send_message(facts=to_fields(facts))

    def read(self, request: ReadRequest, channel: Channel) -> None:
        """Send exactly the requested bytes: a file that grows is cut, one that shrinks an error."""
        if self._descriptor is None:
            raise FileRefused(FileCode.INVALID, "no file is open")
        send_content(self._descriptor, request.offset, request.length, channel)
        channel.send_end()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def send_content(descriptor: int, offset: int, length: int, channel: Channel) -> None:
    buffer = memoryview(bytearray(MAX_DATA))
    end = offset + length
    while offset < end:
        count = os.preadv(descriptor, [buffer[: min(MAX_DATA, end - offset)]], offset)
        if count == 0:
            raise FileRefused(FileCode.CHANGED, "the file became shorter while it was read")
        channel.send_data(buffer[:count])
        offset += count


def write_file(tree: FileTree, request: WriteRequest, channel: Channel) -> None:
    """Replace a file, or make one, when all its data has arrived. Readers see the old or the new."""
    with tree.resolve(request.path, follow=True) as place:
        place.require_name()
        present = _check_conditions(place, request)
        mode = request.mode if request.mode is not None else _default_mode(present)
        with TemporaryFile(place) as temporary:
            channel.request_data()
            for data in channel.incoming():
                temporary.write(data)
            temporary.finish(mode & 0o7777)
            with locked(place.parent):
                present = _check_conditions(place, request)
                temporary.move_to_place(replace=not request.must_not_exist)
        sync_directory(place.parent)
        facts = facts_of(b"", place.lstat())
        channel.send_message(facts=to_fields(facts), created=present is None)


def _check_conditions(place: Place, request: WriteRequest) -> os.stat_result | None:
    """Return the facts of the present file, if there is one; raise FileRefused if it must not be."""
    present = place.lstat_or_none()
    if present is not None:
        require_regular(present)
        if request.must_not_exist:
            raise FileRefused(FileCode.CHANGED, "the file exists already")
    require_match(present, request.if_match)
    return present


def require_match(present: os.stat_result | None, etags: list[str] | None) -> None:
    if etags is None:
        return
    if present is None:
        raise FileRefused(FileCode.CHANGED, "the file does not exist")
    if "*" not in etags and etag_of(present) not in etags:
        raise FileRefused(FileCode.CHANGED, "the file has changed: read it again")


def _default_mode(present: os.stat_result | None) -> int:
    return 0o666 & ~current_umask() if present is None else stat.S_IMODE(present.st_mode)


def current_umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


class TemporaryFile:
    """File that gets its name when it is complete.

    It has none before that, so that nothing is left of it, however the agent ends. Where the
    filesystem does not offer this, it has a temporary name in the same directory.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._name = new_name()
        self._is_named = False
        self._unsynced = 0
        self._descriptor = self._open()

    def __enter__(self) -> TemporaryFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if self._is_named:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._place.parent)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_BYTES:
            os.fdatasync(self._descriptor)
            self._unsynced = 0

    def finish(self, mode: int, mtime_ns: int | None = None, *, durable: bool = True) -> None:
        os.fchmod(self._descriptor, mode)
        if mtime_ns is not None:
            os.utime(self._descriptor, ns=(mtime_ns, mtime_ns))
        if durable:
            os.fsync(self._descriptor)

    def move_to_place(self, *, replace: bool) -> None:
        if not replace:
            self._link(self._place.name)
            return
        if not self._is_named:
            self._link(self._name)
            self._is_named = True
        self._rename()

    def _open(self) -> int:
        with_name = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(
                b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=self._place.parent
            )
            if Path(f"/proc/self/fd/{descriptor}").exists():
                return descriptor
            os.close(descriptor)
        except OSError as error:
            if error.errno not in _NO_TEMPORARY_FILES:
                raise
        descriptor = os.open(self._name, with_name, 0o600, dir_fd=self._place.parent)
        self._is_named = True
        return descriptor

    def _link(self, name: bytes) -> None:
        parent = self._place.parent
        try:
            if self._is_named:
                os.link(self._name, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
            else:
                os.link(_link_to(self._descriptor), name, dst_dir_fd=parent, follow_symlinks=True)
        except FileExistsError as error:
            raise FileRefused(FileCode.CHANGED, "the file exists already") from error

    def _rename(self) -> None:
        parent = self._place.parent
        os.rename(self._name, self._place.name, src_dir_fd=parent, dst_dir_fd=parent)
        self._is_named = False


def _link_to(descriptor: int) -> bytes:
    return b"/proc/self/fd/%d" % descriptor


def new_name() -> bytes:
    return _TEMPORARY + secrets.token_hex(8).encode()


@contextlib.contextmanager
def locked(directory: int) -> Iterator[None]:
    """Keep other agents from changing files in a directory between a check and a change."""
    descriptor = open_for_reading(directory)
    try:
        if descriptor is not None:
            _lock(descriptor)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise FileRefused(FileCode.FAILED, "a process keeps the directory locked") from None
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            return


def sync_directory(directory: int) -> None:
    descriptor = open_for_reading(directory)
    if descriptor is not None:
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_for_reading(directory: int) -> int | None:
    """Open the directory of a place, or return None if its owner may not read it."""
    try:
        return os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    except PermissionError:
        return None
