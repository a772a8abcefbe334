"""What the server answers with. `raw`, where it exists, is the JSON object with all its fields."""

import os
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote_to_bytes

_RAW: Any = field(repr=False, compare=False)


def decoded(path: str, *, encoded: bool) -> str:
    """Return a path that may be percent-encoded as text."""
    return os.fsdecode(unquote_to_bytes(path)) if encoded else path


@dataclass(frozen=True)
class Owner:
    id: str
    username: str


@dataclass(frozen=True)
class Progress:
    bytes: int
    total: int | None
    files: int | None


@dataclass(frozen=True)
class Standby:
    """When a running workspace stops if nothing changes, and why not earlier."""

    at: datetime | None
    reason: str
    code: str


@dataclass(frozen=True)
class WorkspaceInfo:
    """A workspace at one moment."""

    id: str
    name: str
    description: str
    image_ref: str
    owner: Owner
    phase: str
    operation: str
    desired_state: str
    error_reason: str | None
    error_message: str | None
    progress: Progress | None
    has_archive: bool
    archive_to_restore: str | None
    url: str
    created_at: datetime
    updated_at: datetime
    last_access_at: datetime
    phase_changed_at: datetime
    standby: Standby | None
    archive_at: datetime | None
    keep_until: datetime | None
    standby_ttl_seconds: int | None
    archive_ttl_seconds: int | None
    deleted_at: datetime | None
    purge_at: datetime | None
    version: int
    raw: dict[str, Any] = _RAW
    memo: str = ""
    """Only of one workspace: lists have none."""

    @property
    def is_at_rest(self) -> bool:
        return self.operation == "NONE"


@dataclass(frozen=True)
class WorkspacePage:
    items: tuple[WorkspaceInfo, ...]
    total: int


@dataclass(frozen=True)
class TimelineEntry:
    at: datetime
    actor: str
    event: str
    message: str
    operation: str | None


@dataclass(frozen=True)
class Archive:
    archive_op_id: str
    created_at: datetime
    bytes: int
    current: bool


@dataclass(frozen=True)
class Image:
    name: str
    title: str
    default: bool


@dataclass(frozen=True)
class Lease:
    id: str
    reason: str
    actor: str
    created_at: datetime
    expires_at: datetime
    raw: dict[str, Any] = _RAW


@dataclass(frozen=True)
class ExecInfo:
    """A command at one moment."""

    id: str
    workspace_id: str
    state: str
    """`running`, `exited`, `killed` or `lost`."""
    exit_code: int | None
    """128 plus the signal's number if a signal ended it."""
    reason: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    stdout_bytes: int
    stderr_bytes: int
    dropped_bytes: int
    """Bytes of output that were lost because the server's disk was full."""
    output_removed: bool
    tty: bool
    timeout_seconds: float | None
    started_by: str
    command: tuple[str, ...] | None
    cwd: str | None
    raw: dict[str, Any] = _RAW

    @property
    def is_running(self) -> bool:
        return self.state == "running"


@dataclass(frozen=True)
class FileInfo:
    """A file, directory or link of a workspace."""

    path: str
    encoded: bool
    """Whether the name is not UTF-8, and so percent-encoded (`%` too)."""
    kind: str
    """`file`, `directory`, `symlink` or `other` (a FIFO, socket or device)."""
    size: int
    mode: str
    mtime: float
    etag: str
    target: str | None
    target_encoded: bool
    raw: dict[str, Any] = _RAW

    @property
    def plain_path(self) -> str:
        """The path to use in calls. Like in `os`, surrogates stand for bytes that are not UTF-8."""
        return decoded(self.path, encoded=self.encoded)


@dataclass(frozen=True)
class FileList:
    """A file, and what is below it. Paths of entries are relative to it."""

    path: str
    encoded: bool
    kind: str
    size: int
    mode: str
    mtime: float
    etag: str
    target: str | None
    target_encoded: bool
    entries: tuple[FileInfo, ...]
    truncated: bool
    """Whether there is more: behind the limit, or in a directory that the user may not read."""
    raw: dict[str, Any] = _RAW


@dataclass(frozen=True)
class SearchMatch:
    path: str
    encoded: bool
    kind: str
    line: int | None
    text: str | None


@dataclass(frozen=True)
class SearchResult:
    matches: tuple[SearchMatch, ...]
    truncated: bool
    raw: dict[str, Any] = _RAW


@dataclass(frozen=True)
class Token:
    """A token without its secret. `prefix` is its beginning."""

    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    workspaces: tuple[str, ...] | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    raw: dict[str, Any] = _RAW


@dataclass(frozen=True)
class NewToken(Token):
    """A token that was just made. No later call returns `token`, its secret."""

    token: str = field(repr=False, default="")


@dataclass(frozen=True)
class CallerToken:
    """The token that the client sends."""

    id: str
    name: str
    scopes: tuple[str, ...]
    workspaces: tuple[str, ...] | None
    expires_at: datetime | None


@dataclass(frozen=True)
class CallerUser:
    id: str
    username: str
    role: str


@dataclass(frozen=True)
class Session:
    """Whom the server takes the client for."""

    user: CallerUser
    token: CallerToken | None
    raw: dict[str, Any] = _RAW


@dataclass(frozen=True)
class User:
    id: str
    username: str
    role: str
    created_at: datetime
    service: bool
    raw: dict[str, Any] = _RAW


@dataclass(frozen=True)
class TokenList:
    items: tuple[Token, ...]


@dataclass(frozen=True)
class UserPage:
    items: tuple[User, ...]
    total: int


@dataclass(frozen=True)
class LeaseList:
    items: tuple[Lease, ...]


@dataclass(frozen=True)
class TimelineList:
    items: tuple[TimelineEntry, ...]


@dataclass(frozen=True)
class ArchiveList:
    items: tuple[Archive, ...]


@dataclass(frozen=True)
class ImageList:
    items: tuple[Image, ...]


@dataclass(frozen=True)
class ExecList:
    items: tuple[ExecInfo, ...]


@dataclass(frozen=True)
class Unpacked:
    """What an upload of a directory has written."""

    entries: int
    bytes: int


@dataclass(frozen=True)
class Chunk:
    """A piece of a command's output, as it comes.

    `skipped` is the number of bytes before it that are missing, because CodeHub no longer keeps them.
    """

    stream: str
    data: bytes
    offset: int
    skipped: int = 0


@dataclass(frozen=True)
class LogChunk:
    """Output of an IDE. `is_repeated`: after a break, this begins with the last lines again."""

    data: bytes
    is_repeated: bool = False


@dataclass(frozen=True)
class Completed:
    """A command that has ended, with its output.

    `skipped` is the number of bytes of output that are missing: no longer kept, or dropped because the
    server's disk was full.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    skipped: int


@dataclass(frozen=True)
class TerminalOutput:
    """Output of a terminal. `is_repeated`: after a break, this begins with the last screenful again."""

    data: bytes
    is_repeated: bool = False


@dataclass(frozen=True)
class TerminalWriter:
    """Whether this client's input counts. The newest client of a terminal writes."""

    writes: bool


@dataclass(frozen=True)
class TerminalSkipped:
    """Output before this offset was skipped: CodeHub no longer keeps it."""

    offset: int


@dataclass(frozen=True)
class TerminalEnded:
    """The command has ended. Nothing follows."""

    state: str
    exit_code: int | None


TerminalEvent = TerminalOutput | TerminalWriter | TerminalSkipped | TerminalEnded
