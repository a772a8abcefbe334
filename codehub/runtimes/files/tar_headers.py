"""Reader of the headers of a tar stream: ustar, GNU and pax. Standard library only (see `agent`).

`tarfile` parses each block. Its own reader of streams would take a header of any size into memory.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass

from codehub.runtimes.files.names import LONGEST_PATH
from codehub.runtimes.files.protocol import FileCode, FileRefused

_MAX_EXTENSION = 1 << 20
"""Bytes of a pax header or a long name."""
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_KINDS = (*_FILES, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
_IGNORED = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
_PAX_GLOBAL, _PAX = tarfile.XGLTYPE, (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)


@dataclass(frozen=True)
class TarEntry:
    path: bytes
    kind: bytes
    """REGTYPE, DIRTYPE, SYMTYPE, LNKTYPE or, to be left out, FIFOTYPE."""
    size: int
    mode: int
    mtime_ns: int
    target: bytes


class Extensions:
    """What the headers before an entry's own say about it."""

    def __init__(self) -> None:
        self.path: bytes | None = None
        self.target: bytes | None = None
        self.size: int | None = None
        self.mtime_ns: int | None = None


def next_entry(read: Callable[[int], bytes]) -> TarEntry | None:
    """Read the headers of the next entry, or return None at the end of the archive: a block of zeros.

    Without it, the program that wrote the archive may have ended early.
    """
    extensions = Extensions()
    while True:
        block = read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            raise malformed("it is incomplete, because it ends without a block of zeros")
        if not block.strip(b"\0"):
            return None
        info = _parse(block)
        if info.type in (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, _PAX_GLOBAL):
            _read_extension(info, _content(info, read), extensions)
        else:
            return _entry(info, extensions)


def padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _parse(block: bytes) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError as error:
        raise malformed(f"a header cannot be read ({error})") from error
    if info.size < 0:
        raise malformed("an entry has a negative size")
    return info


def _content(info: tarfile.TarInfo, read: Callable[[int], bytes]) -> bytes:
    if info.size > _MAX_EXTENSION:
        raise malformed(f"a header has {info.size} bytes")
    content = read(padded(info.size))
    if len(content) < padded(info.size):
        raise malformed("it ends in the middle of a header")
    return content[: info.size]


def _read_extension(info: tarfile.TarInfo, content: bytes, extensions: Extensions) -> None:
    if info.type == tarfile.GNUTYPE_LONGNAME:
        extensions.path = content.partition(b"\0")[0]
    elif info.type == tarfile.GNUTYPE_LONGLINK:
        extensions.target = content.partition(b"\0")[0]
    elif info.type != _PAX_GLOBAL:
        _read_pax(content, extensions)


def _read_pax(content: bytes, extensions: Extensions) -> None:
    """Read records of `length key=value\\n`."""
    position = 0
    try:
        while position < len(content):
            space = content.index(b" ", position, position + 12)
            end = position + int(content[position:space])
            key, _, value = content[space + 1 : end - 1].partition(b"=")
            if end <= space or end > len(content):
                raise ValueError("a record has a wrong length")
            _apply(key, value, extensions)
            position = end
    except ValueError as error:
        raise malformed(f"a pax header cannot be read ({error})") from error


def _apply(key: bytes, value: bytes, extensions: Extensions) -> None:
    match key:
        case b"path":
            extensions.path = value
        case b"linkpath":
            extensions.target = value
        case b"size":
            extensions.size = int(value)
        case b"mtime":
            seconds, _, fraction = value.partition(b".")
            extensions.mtime_ns = int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, b"0"))
        case _ if key.startswith(b"GNU.sparse."):
            raise malformed("it has sparse files: pack it without --sparse")


def _entry(info: tarfile.TarInfo, extensions: Extensions) -> TarEntry:
    path = _bytes(info.name) if extensions.path is None else extensions.path
    if info.type not in (*_KINDS, *_IGNORED):
        raise malformed(f"{path[:200]!r} is an entry of an unknown type")
    size = info.size if extensions.size is None else extensions.size
    if info.type not in _FILES:
        size = 0
    if size < 0 or len(path) > LONGEST_PATH:
        raise malformed("an entry has an impossible size or path")
    return TarEntry(
        path,
        _kind(info, path),
        size,
        info.mode & 0o7777,
        int(info.mtime) * 1_000_000_000 if extensions.mtime_ns is None else extensions.mtime_ns,
        _bytes(info.linkname) if extensions.target is None else extensions.target,
    )


def _kind(info: tarfile.TarInfo, path: bytes) -> bytes:
    if info.type in _FILES:
        return tarfile.DIRTYPE if path.endswith(b"/") else tarfile.REGTYPE
    return tarfile.FIFOTYPE if info.type in _IGNORED else info.type


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def malformed(message: str) -> FileRefused:
    return FileRefused(FileCode.INVALID, f"the tar archive cannot be unpacked: {message}")
