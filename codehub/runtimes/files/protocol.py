"""The protocol between a file agent and its client (ADR 0036). Standard library only (see `agent`).

Both send frames: one byte for the kind, four for the length of the payload, and the payload. The
agent greets with a message. The client then sends requests, each after the answer to the one before:

    list, search     messages, each with a batch of entries or matches; END with the rest
    open             a message with facts; the file stays open for `read`
    read             DATA, END
    write, upload    a message as soon as data may come; then DATA and END of the client; a message
    download         a message; DATA, END
    the others       a message

ERROR takes the place of any frame of the agent and ends the answer. ALIVE may precede any: the agent
works on, but has nothing to send yet.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from codehub.runtimes.files.names import percent_decode, percent_encode

_T = TypeVar("_T")

MESSAGE, DATA, END, ERROR, ALIVE = b"M", b"D", b"E", b"X", b"A"
HEADER = struct.Struct(">cI")
MAX_MESSAGE = 64 << 10
MAX_DATA = 256 << 10
MAX_PAYLOAD = {MESSAGE: MAX_MESSAGE, DATA: MAX_DATA, END: MAX_MESSAGE, ERROR: MAX_MESSAGE, ALIVE: 0}
BATCH_BYTES = MAX_MESSAGE // 2
"""When a batch of entries is sent. One entry, with a path and a target, fits in the other half."""
GREETING = "file agent"
FILES_REQUEST = '{"files":1}\n'
"""The line by which a client of the exec broker requests a file agent."""

MAX_DEPTH = 32
MAX_ENTRIES = 10_000
MAX_MATCHES = 1_000
SEARCH_SECONDS = 20.0


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"
    """A FIFO, socket or device: it has no content for us."""


class FileCode(StrEnum):
    """Why an operation was refused."""

    NOT_FOUND = "not_found"
    DENIED = "denied"
    NOT_A_FILE = "not_a_file"
    NOT_A_DIRECTORY = "not_a_directory"
    EXISTS = "exists"
    NOT_EMPTY = "not_empty"
    CHANGED = "changed"
    """The file is not the one that the request expects."""
    NO_SPACE = "no_space"
    INVALID = "invalid"
    FAILED = "failed"


class FileRefused(Exception):  # noqa: N818 - a fact, not a fault
    """Refusal of an operation. The message is for the person who asked for it."""

    def __init__(self, code: FileCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class FileFacts:
    """One entry of a directory. `path` is relative to the listed one, and empty for that itself."""

    path: bytes
    kind: FileKind
    size: int
    mode: int
    mtime_ns: int
    etag: str
    target: bytes = b""
    """Of a symbolic link."""


@dataclass(frozen=True)
class SearchMatch:
    path: bytes
    kind: FileKind
    line: int = 0
    """From 1; 0 in a search by names."""
    text: bytes = b""


@dataclass(frozen=True)
class ListRequest:
    path: bytes
    depth: int = 1
    limit: int = 1000


@dataclass(frozen=True)
class OpenRequest:
    path: bytes


@dataclass(frozen=True)
class ReadRequest:
    """Of the opened file."""

    offset: int
    length: int


@dataclass(frozen=True)
class WriteRequest:
    path: bytes
    mode: int | None = None
    """None: that of the file which it replaces, else by the umask."""
    if_match: list[str] | None = None
    """The ETags of which the present file has one; `*` is any."""
    must_not_exist: bool = False


@dataclass(frozen=True)
class DeleteRequest:
    path: bytes
    recursive: bool = False
    if_match: list[str] | None = None


@dataclass(frozen=True)
class MoveRequest:
    path: bytes
    to: bytes
    overwrite: bool = False


@dataclass(frozen=True)
class DirectoryRequest:
    path: bytes
    parents: bool = False
    mode: int | None = None


@dataclass(frozen=True)
class SearchRequest:
    path: bytes
    query: bytes
    contents: bool
    limit: int = 100


@dataclass(frozen=True)
class DownloadRequest:
    path: bytes


@dataclass(frozen=True)
class UploadRequest:
    path: bytes


Request = (
    ListRequest
    | OpenRequest
    | ReadRequest
    | WriteRequest
    | DeleteRequest
    | MoveRequest
    | DirectoryRequest
    | SearchRequest
    | DownloadRequest
    | UploadRequest
)
_OPERATIONS: dict[str, type[Request]] = {
    "list": ListRequest,
    "open": OpenRequest,
    "read": ReadRequest,
    "write": WriteRequest,
    "delete": DeleteRequest,
    "move": MoveRequest,
    "directory": DirectoryRequest,
    "search": SearchRequest,
    "download": DownloadRequest,
    "upload": UploadRequest,
}
_NAMES = {kind: name for name, kind in _OPERATIONS.items()}


def to_fields(fact: object) -> dict[str, Any]:
    """Return the fields of a dataclass for JSON, with bytes percent-encoded."""
    raw = vars(fact)
    return {name: percent_encode(value) if isinstance(value, bytes) else value for name, value in raw.items()}


def from_fields(kind: type[_T], raw: dict[str, Any]) -> _T:
    types = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    return kind(
        **{name: percent_decode(value) if types[name] == "bytes" else value for name, value in raw.items()}
    )


def write_request(request: Request) -> bytes:
    return json.dumps({"op": _NAMES[type(request)], **to_fields(request)}).encode()


def read_request(payload: bytes) -> Request:
    raw = json.loads(payload)
    return from_fields(_OPERATIONS[raw.pop("op")], raw)
