"""Files as the API shows them."""

from typing import Literal

from pydantic import BaseModel

from codehub.runtimes.files.client import FileList, SearchResult, Unpacked
from codehub.runtimes.files.names import to_text
from codehub.runtimes.files.protocol import FileFacts, FileKind, SearchMatch

Kind = Literal["file", "directory", "symlink", "other"]
_NANOSECONDS = 1_000_000_000


class FileView(BaseModel):
    """A file, directory or link of a workspace."""

    path: str
    encoded: bool
    """Whether the path is not UTF-8, and so percent-encoded (`%` too). Send it as `path_encoded`."""
    kind: Kind
    """`other` is a FIFO, a socket or a device, which has no content."""
    size: int
    mode: str
    """In octal digits, such as 0644."""
    mtime: float
    """Seconds since 1970."""
    etag: str
    """As it stands in headers, with quotes."""
    target: str | None
    """Of a symbolic link."""
    target_encoded: bool


class FileListView(FileView):
    """A file, and what is below it, sorted. Paths of entries are relative to it."""

    entries: list[FileView]
    truncated: bool
    """Whether there is more than `limit` allows."""


class SearchMatchView(BaseModel):
    path: str
    encoded: bool
    kind: Kind
    line: int | None
    """From 1. Only in a search of contents."""
    text: str | None
    """The line, or the part of it around the match, with U+FFFD for what is not UTF-8."""


class SearchView(BaseModel):
    """Matches, in no order. Paths are relative to the searched one."""

    matches: list[SearchMatchView]
    truncated: bool
    """Whether there may be more: the limit or the time was reached, or a directory is unreadable."""


class UnpackedView(BaseModel):
    """What an upload has unpacked."""

    entries: int
    bytes: int


def quoted(etag: str) -> str:
    return f'"{etag}"'


def _kind(kind: FileKind) -> Kind:
    match kind:
        case FileKind.FILE:
            return "file"
        case FileKind.DIRECTORY:
            return "directory"
        case FileKind.SYMLINK:
            return "symlink"
        case FileKind.OTHER:
            return "other"


def file_view(facts: FileFacts, path: bytes | None = None) -> FileView:
    """Describe a file. `path` is given for the one that the call names."""
    text, encoded = to_text(facts.path if path is None else path)
    target, target_encoded = to_text(facts.target)
    return FileView(
        path=text,
        encoded=encoded,
        kind=_kind(facts.kind),
        size=facts.size,
        mode=f"{facts.mode:04o}",
        mtime=facts.mtime_ns / _NANOSECONDS,
        etag=quoted(facts.etag),
        target=target if facts.kind is FileKind.SYMLINK else None,
        target_encoded=target_encoded,
    )


def list_view(listed: FileList, path: bytes) -> FileListView:
    return FileListView(
        **dict(file_view(listed.facts, path)),
        entries=[file_view(entry) for entry in listed.entries],
        truncated=listed.truncated,
    )


def search_view(result: SearchResult) -> SearchView:
    return SearchView(matches=[_match_view(match) for match in result.matches], truncated=result.truncated)


def unpacked_view(unpacked: Unpacked) -> UnpackedView:
    return UnpackedView(entries=unpacked.entries, bytes=unpacked.bytes)


def _match_view(match: SearchMatch) -> SearchMatchView:
    text, encoded = to_text(match.path)
    is_line = match.line > 0
    return SearchMatchView(
        path=text,
        encoded=encoded,
        kind=_kind(match.kind),
        line=match.line if is_line else None,
        text=match.text.decode(errors="replace") if is_line else None,
    )
