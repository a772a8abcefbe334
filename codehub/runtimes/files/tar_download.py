"""Download of a directory tree as a tar stream in GNU format. Standard library only (see `agent`)."""

from __future__ import annotations

import os
import tarfile

from codehub.runtimes.files.channel import Channel
from codehub.runtimes.files.content import send_content
from codehub.runtimes.files.listing import Scanner, Visit
from codehub.runtimes.files.paths import FileTree, facts_at, is_unreachable, kind_of
from codehub.runtimes.files.protocol import DownloadRequest, FileCode, FileKind, FileRefused

MAX_DEPTH = 200
_WHOLE_BYTES = 1 << 20
"""Files up to this size are read before their header is sent, so they may change at any time."""
_PENDING_BYTES = 256 << 10


def download(tree: FileTree, request: DownloadRequest, channel: Channel) -> None:
    """Send what is below a directory, or one file. What is no file, directory or link is left out."""
    sender = _TarSender(channel)
    scanner = Scanner(tree, channel)
    with tree.resolve(request.path, follow=True) as place:
        facts = place.lstat()
        if kind_of(facts) is not FileKind.DIRECTORY:
            descriptor = place.open_file()
            os.close(descriptor)
            channel.send_message(ready=True)
            sender.add(Visit(place, place.name, facts))
        else:
            top = tree.open_directory(place.parent, place.name)
            try:
                channel.send_message(ready=True)
                for visit in scanner.walk(top, MAX_DEPTH, _fail):
                    channel.send_alive()
                    sender.add(visit)
            finally:
                os.close(top)
    sender.end()
    channel.send_end()


def _fail(path: bytes, error: OSError) -> None:
    """End the download: a tar stream that misses a directory would look complete."""
    name = path.decode(errors="replace")
    raise FileRefused(FileCode.DENIED, f"the directory {name!r} cannot be read: {error.strerror}")


class _TarSender:
    """Writer of tar entries. Small ones are sent together."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pending = bytearray()

    def add(self, visit: Visit) -> None:
        try:
            match visit.kind:
                case FileKind.DIRECTORY:
                    self._put(_header(visit, tarfile.DIRTYPE))
                case FileKind.SYMLINK:
                    target = facts_at(visit.place).target
                    if target:
                        self._put(_header(visit, tarfile.SYMTYPE, target=target))
                case FileKind.FILE:
                    self._add_file(visit)
        except FileNotFoundError:
            pass  # removed since its directory was read
        except OSError as error:
            if not is_unreachable(error):
                _fail(visit.path, error)

    def end(self) -> None:
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._flush()

    def _add_file(self, visit: Visit) -> None:
        try:
            descriptor = visit.place.open_file()
        except FileRefused:  # another kind of file has taken its place
            return
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            size = os.fstat(descriptor).st_size
            if size <= _WHOLE_BYTES:
                self._add_small(visit, file.read(size) if size else b"")
                return
            self._put(_header(visit, tarfile.REGTYPE, size))
            self._flush()
            send_content(descriptor, 0, size, self._channel)
            self._put(_padding(size))

    def _add_small(self, visit: Visit, content: bytes) -> None:
        self._put(_header(visit, tarfile.REGTYPE, len(content)))
        self._put(content)
        self._put(_padding(len(content)))

    def _put(self, data: bytes) -> None:
        self._pending += data
        if len(self._pending) >= _PENDING_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._channel.send_data(bytes(self._pending))
        self._pending.clear()


def _header(visit: Visit, kind: bytes, size: int = 0, target: bytes = b"") -> bytes:
    info = tarfile.TarInfo(_text(visit.path))
    info.type = kind
    info.size = size
    info.linkname = _text(target)
    info.mode = visit.facts.st_mode & 0o7777
    info.mtime = visit.facts.st_mtime_ns // 1_000_000_000
    info.uid, info.gid = visit.facts.st_uid, visit.facts.st_gid
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
