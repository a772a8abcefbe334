"""Upload of a tar stream into a directory. Standard library only (see `agent`).

Nothing is written outside the directory: an entry's path is followed by descriptors, and never
through a symbolic link.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator

from codehub.runtimes.files.channel import Channel
from codehub.runtimes.files.content import TemporaryFile, new_name, sync_directory
from codehub.runtimes.files.paths import FileTree, Place
from codehub.runtimes.files.protocol import FileCode, FileRefused, UploadRequest
from codehub.runtimes.files.tar_headers import TarEntry, malformed, next_entry, padded

_MAX_DIRECTORIES = 200_000
_PIECE = 256 << 10


def upload(tree: FileTree, request: UploadRequest, channel: Channel) -> None:
    """Unpack a tar stream into a directory, which is made if it is missing."""
    with tree.resolve(request.path, follow=True) as place:
        with contextlib.suppress(FileExistsError):
            os.mkdir(place.name, dir_fd=place.parent)
        top = tree.enter(place.parent, place.name)
        try:
            unpacker = _Unpacker(tree, top)
            channel.request_data()
            unpacker.unpack(_Stream(channel.incoming()))
        finally:
            os.close(top)
    channel.send_message(entries=unpacker.entries, bytes=unpacker.bytes)


class _Stream:
    """Data of the client, as a file to read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer = b""

    def read(self, count: int) -> bytes:
        """Return `count` bytes, or fewer at the end."""
        found = []
        while count > 0 and (piece := self.read_some(count)):
            found.append(piece)
            count -= len(piece)
        return b"".join(found)

    def read_some(self, count: int) -> bytes:
        while not self._buffer:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._buffer = piece
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def discard_rest(self) -> None:
        for _ in self._pieces:
            pass


class _Unpacker:
    def __init__(self, tree: FileTree, top: int) -> None:
        self._tree = tree
        self._top = top
        self._directories: dict[bytes, TarEntry] = {}
        """Directories whose mode and time are set last: their entries would change or need them."""
        self.entries = 0
        self.bytes = 0

    def unpack(self, stream: _Stream) -> None:
        while (entry := next_entry(stream.read)) is not None:
            self._unpack(entry, stream)
            self.entries += 1
        stream.discard_rest()
        for path, entry in reversed(self._directories.items()):
            self._finish_directory(path, entry)
        sync_directory(self._top)

    def _unpack(self, entry: TarEntry, stream: _Stream) -> None:
        parts = parts_of(entry.path)
        if not parts:
            return  # the directory itself
        with self._parent(parts) as parent:
            place = Place(parent, parts[-1])
            match entry.kind:
                case tarfile.DIRTYPE:
                    self._make_directory(place, b"/".join(parts), entry)
                case tarfile.REGTYPE:
                    self._write_file(place, entry, stream)
                case tarfile.SYMTYPE:
                    self._make_link(place, lambda name: os.symlink(entry.target, name, dir_fd=parent))
                case tarfile.LNKTYPE:
                    self._make_hard_link(place, entry)

    @contextlib.contextmanager
    def _parent(self, parts: list[bytes]) -> Iterator[int]:
        """Open the directory of an entry, and make it if it is missing."""
        directory = os.dup(self._top)
        try:
            for name in parts[:-1]:
                below = self._enter(directory, name)
                os.close(directory)
                directory = below
            yield directory
        finally:
            os.close(directory)

    def _enter(self, directory: int, name: bytes) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=directory)
        return self._tree.enter(directory, name)

    def _make_directory(self, place: Place, path: bytes, entry: TarEntry) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(place.name, 0o700, dir_fd=place.parent)
        os.close(self._tree.enter(place.parent, place.name))
        if len(self._directories) >= _MAX_DIRECTORIES:
            raise malformed(f"it has more than {_MAX_DIRECTORIES} directories")
        self._directories[path] = entry

    def _finish_directory(self, path: bytes, entry: TarEntry) -> None:
        with self._parent([*path.split(b"/"), b"."]) as directory:
            os.utime(b".", ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=directory)
            os.chmod(b".", entry.mode, dir_fd=directory)

    def _write_file(self, place: Place, entry: TarEntry, stream: _Stream) -> None:
        _refuse_directory(place)
        with TemporaryFile(place) as file:
            left = entry.size
            while left > 0:
                data = stream.read_some(min(left, _PIECE))
                if not data:
                    raise malformed("it ends in the middle of a file")
                file.write(data)
                left -= len(data)
            stream.read(padded(entry.size) - entry.size)
            file.finish(entry.mode, entry.mtime_ns, durable=False)
            file.move_to_place(replace=True)
        self.bytes += entry.size

    def _make_hard_link(self, place: Place, entry: TarEntry) -> None:
        parts = parts_of(entry.target)
        if not parts:
            raise malformed(f"{entry.path[:200]!r} links to a directory")
        with self._parent(parts) as source:
            if not stat.S_ISREG(Place(source, parts[-1]).lstat().st_mode):
                raise malformed(f"{entry.path[:200]!r} links to what is no file")
            self._make_link(
                place,
                lambda name: os.link(
                    parts[-1], name, src_dir_fd=source, dst_dir_fd=place.parent, follow_symlinks=False
                ),
            )

    def _make_link(self, place: Place, make: Callable[[bytes], None]) -> None:
        """Make a link with a temporary name, then move it to its place."""
        _refuse_directory(place)
        temporary = new_name()
        make(temporary)
        try:
            os.rename(temporary, place.name, src_dir_fd=place.parent, dst_dir_fd=place.parent)
        finally:
            with contextlib.suppress(FileNotFoundError):  # it stays if both names are the same file
                os.unlink(temporary, dir_fd=place.parent)


def parts_of(path: bytes) -> list[bytes]:
    """Split a path of an entry; raise FileRefused if it could lead out of the directory."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if path.startswith(b"/") or b".." in parts or b"\0" in path:
        name = path[:200].decode(errors="replace")
        raise malformed(f"the path {name!r} leads out of the directory. Nothing was written there")
    return parts


def _refuse_directory(place: Place) -> None:
    facts = place.lstat_or_none()
    if facts is not None and stat.S_ISDIR(facts.st_mode):
        name = place.name.decode(errors="replace")
        raise FileRefused(FileCode.EXISTS, f"{name!r} is a directory, and the archive has a file there")
