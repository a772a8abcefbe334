"""Tools for files. No tool overwrites a change of somebody else."""

import asyncio
import posixpath
import random
from typing import Annotated, Final, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from codehub.client import AsyncFiles, Conflict, NotFound, PreconditionFailed
from codehub.client.file_rules import link_target
from codehub.client.models import FileInfo
from codehub.mcp.arguments import Path, Workspace
from codehub.mcp.texts import LineWindow, ReplacementError, fitting, replace_exactly
from codehub.mcp.workspace_finder import WorkspaceFinder

MOST_READ: Final = 64 << 20
"""Bytes of a file up to the last line that is asked for."""
MOST_EDITED: Final = 8 << 20
LISTED: Final = 200
MOST_LISTED: Final = 10_000
MATCHES: Final = 50
MOST_MATCHES: Final = 1000
_ATTEMPTS: Final = 5
_EDIT_ATTEMPTS: Final = 20
_LONGEST_PAUSE: Final = 0.5
_MOST_LINKS: Final = 40


class FileTools:
    """Tools that read and change files of running workspaces."""

    def __init__(self, finder: WorkspaceFinder) -> None:
        self._finder = finder

    async def read_file(
        self,
        path: Path,
        workspace: Workspace = "",
        first_line: Annotated[int, Field(ge=1)] = 1,
        max_lines: Annotated[int, Field(ge=1, le=2000)] = 1000,
    ) -> str:
        """Read lines of a text file, at most 30000 bytes at once. Returns the etag for write_file."""
        files = await self._files(workspace)
        for _ in range(_ATTEMPTS):
            place, facts = await _file(files, path)
            window = await _read_window(files, place, LineWindow(first_line, max_lines))
            if (await files.stat(place)).etag == facts.etag:
                return _shown_window(path, facts, window)
        raise ToolError(f"{path} keeps changing while it is read. Try again later.")

    async def write_file(
        self,
        path: Path,
        content: str,
        workspace: Workspace = "",
        etag: Annotated[
            str,
            Field(pattern='^["0-9a-f-]*$', description="Of the file to replace, from read_file."),
        ] = "",
        mode: Annotated[str, Field(pattern="^([0-7]{3,4})?$", description="Such as 755.")] = "",
    ) -> str:  # fmt: skip
        """Write a whole file, and make its directories. Without etag, the file must not exist."""
        files = await self._files(workspace)
        quoted = f'"{etag.strip(chr(34))}"' if etag else None
        try:
            written = await _write(files, path, content, quoted, mode)
        except PreconditionFailed as problem:
            if quoted:
                raise
            raise ToolError(
                f"{problem.code}: {path} exists. Use edit_file to change it, or read_file, and pass its etag."
            ) from problem
        return f"Wrote {path}: {written.size} bytes, etag {written.etag.strip(chr(34))}"

    async def edit_file(
        self,
        path: Path,
        old_text: Annotated[str, Field(description="It must be in the file exactly once.")],
        new_text: str,
        workspace: Workspace = "",
        replace_all: bool = False,
    ) -> str:
        """Replace a text in a file. Other parts that somebody changes meanwhile keep their change."""
        files = await self._files(workspace)
        for _ in range(_EDIT_ATTEMPTS):
            place, facts = await _file(files, path)
            if facts.size > MOST_EDITED:
                raise ToolError(
                    f"{path} has {facts.size} bytes, more than edit_file takes. Use run_command with sed."
                )
            try:
                content, count = replace_exactly(
                    await files.read(place), old_text.encode(), new_text.encode(), every=replace_all
                )
                # The ETag is older than the content: if the file changed in between, this write fails.
                written = await files.write(place, content, if_match=facts.etag)
            except ReplacementError as problem:
                raise ToolError(f"{path}: {problem}") from problem
            except PreconditionFailed:
                await asyncio.sleep(random.uniform(0.0, _LONGEST_PAUSE))  # noqa: S311 - spreads writers
                continue
            return f"Replaced {count} in {path}: {written.size} bytes, etag {written.etag.strip(chr(34))}"
        raise ToolError(f"{path} keeps changing. Nothing was written. Try again later.")

    async def list_files(
        self,
        path: Path = "",
        workspace: Workspace = "",
        depth: Annotated[int, Field(ge=1, le=32, description="1: only the directory itself.")] = 1,
        offset: Annotated[int, Field(ge=0, lt=MOST_LISTED - LISTED, description="How many to skip.")] = 0,
    ) -> str:
        """List a directory, 200 entries at once: kind, size in bytes, path below the directory."""
        files = await self._files(workspace)
        found = await files.list(path, depth=depth, limit=offset + LISTED)
        every = [f"{_kind(each)}  {each.size}  {_name(each)}" for each in found.entries[offset:]]
        lines = fitting(every)
        if found.truncated or len(lines) < len(every):
            end = offset + len(lines)
            lines.append(f"[More, or a directory that cannot be read: list_files with offset={end}]")
        return "\n".join(lines) or f"Nothing, of {len(found.entries)} entries of {path or 'the home'}."

    async def search_files(
        self,
        query: Annotated[str, Field(min_length=1, description="A text, not a pattern.")],
        path: Path = "",
        workspace: Workspace = "",
        where: Literal["contents", "names"] = "contents",
        offset: Annotated[int, Field(ge=0, le=MOST_MATCHES - MATCHES, description="How many to skip.")] = 0,
    ) -> str:
        """Find a text in the contents or names of files below a directory, 50 matches at once."""
        files = await self._files(workspace)
        found = await files.search(query, path, contents=where == "contents", limit=offset + MATCHES)
        every = [
            each.path if each.line is None else f"{each.path}:{each.line}: {each.text or ''}"
            for each in found.matches[offset:]
        ]
        lines = fitting(every)
        if found.truncated or len(lines) < len(every):
            end = offset + len(lines)
            lines.append(f"[More, or not all was searched: narrow the path, or set offset={end}]")
        return "\n".join(lines) or f"Nothing, of {len(found.matches)} matches."

    async def _files(self, workspace: str) -> AsyncFiles:
        return (await self._finder.find(workspace)).files


async def _file(files: AsyncFiles, path: str) -> tuple[str, FileInfo]:
    """Return where a path leads, and the facts of the file there."""
    place = path
    for _ in range(_MOST_LINKS):
        facts = await files.stat(place)
        if facts.kind == "file":
            return place, facts
        if facts.kind != "symlink":
            raise ToolError(f"{path} is not a file, but: {facts.kind}. Use list_files or run_command.")
        place = link_target(place, facts)
    raise Conflict(409, "CONFLICT", f"{path} is a link that leads through too many others.")


async def _read_window(files: AsyncFiles, path: str, window: LineWindow) -> LineWindow:
    pieces = files.stream(path)
    try:
        async for piece in pieces:
            if b"\0" in piece:
                raise ToolError(f"{path} is not a text file. Use run_command, such as with xxd or file.")
            window.add(piece)
            if window.is_full:
                break
            if window.consumed > MOST_READ:
                raise ToolError(f"These lines of {path} are too far behind. Use run_command with sed -n.")
    finally:
        await pieces.aclose()
    window.finish()
    return window


def _shown_window(path: str, facts: FileInfo, window: LineWindow) -> str:
    tag = facts.etag.strip('"')
    if not window.lines:
        return f"{path}: {facts.size} bytes, {window.lines_seen} lines: none at {window.first}, etag {tag}"
    last = window.next_line - 1
    head = f"{path}: {facts.size} bytes, lines {window.first} to {last}, etag {tag}"
    if window.consumed < facts.size:
        head += f". For more: first_line={window.next_line}"
    return f"{head}\n{b''.join(window.lines).decode(errors='replace')}"


async def _write(files: AsyncFiles, path: str, content: str, etag: str | None, mode: str) -> FileInfo:
    try:
        return await files.write(path, content, if_match=etag, new=etag is None, mode=mode or None)
    except NotFound:
        parent = posixpath.dirname(path.rstrip("/"))
        if etag is not None or not parent:
            raise
        await files.make_directory(parent, parents=True)
        return await files.write(path, content, new=True, mode=mode or None)


def _kind(entry: FileInfo) -> str:
    return f"{entry.kind} -> {entry.target}" if entry.target else entry.kind


def _name(entry: FileInfo) -> str:
    return f"{entry.path} (percent-encoded: not UTF-8)" if entry.encoded else entry.path
