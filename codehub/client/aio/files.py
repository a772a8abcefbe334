"""Files of a running workspace. Paths are relative to its home unless absolute."""

import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from codehub.client.aio.calls import AsyncCalls
from codehub.client.aio.downloads import save, stream_content
from codehub.client.aio.io import in_thread, run_blocking, sleep
from codehub.client.decoding import decode
from codehub.client.errors import CodehubError, Conflict, NotFound
from codehub.client.file_rules import WakingOptions, link_target, path_fields, remote_name
from codehub.client.local_files import Progress, byte_pieces, file_pieces, target_of
from codehub.client.models import FileInfo, FileList, SearchResult, Unpacked
from codehub.client.requests import CALL_SECONDS, Request, query_of
from codehub.client.retries import is_passing
from codehub.client.trees import tar_pieces, tree_size, unpack

MOST_SPOOLED_BYTES = 8 << 20
MOST_LINKS = 40


class AsyncFiles:
    """The files of a workspace. `waking` returns the same files, of a workspace that is started first."""

    def __init__(self, calls: AsyncCalls, path: str, waking: WakingOptions = WakingOptions()) -> None:
        self._calls = calls
        self._workspace_path = path
        self._path = f"{path}/files"
        self._waking = waking

    def waking(self, wake: bool | str = True, timeout_seconds: float = 45.0) -> "AsyncFiles":
        """Return the files for calls that start the workspace first; "restore" restores it as well."""
        return AsyncFiles(self._calls, self._workspace_path, WakingOptions(wake, timeout_seconds))

    async def stat(self, path: str) -> FileInfo:
        """Return the facts of a file, directory or link."""
        return await self._calls.fetch(FileInfo, self._request("GET", "", path, depth=0))

    async def list(self, path: str = "", *, depth: int = 1, limit: int = 1000) -> FileList:
        """Return what is below a directory. `truncated` says that there is more."""
        return await self._calls.fetch(FileList, self._request("GET", "", path, depth=depth, limit=limit))

    async def search(
        self, query: str, path: str = "", *, contents: bool = False, limit: int = 100
    ) -> SearchResult:
        """Find a text in the names of files; with `contents`, in the lines of text files."""
        where = "contents" if contents else "names"
        parameters: dict[str, Any] = {"q": query, "in": where, "limit": limit}
        request = self._request("GET", "/search", path, **parameters)
        return await self._calls.fetch(SearchResult, request)

    async def read(self, path: str) -> bytes:
        """Return the content of a file."""
        content = bytearray()
        async for piece in self.stream(path):
            content += piece
        return bytes(content)

    def stream(self, path: str, progress: Progress | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file in pieces. If the connection breaks, it goes on where it was.

        Raise FileChanged if the file changes meanwhile.
        """

        def make_request(headers: dict[str, str]) -> Request:
            return self._request("GET", "/content", path, headers=headers)

        return stream_content(self._calls, path, make_request, progress)

    async def write(
        self,
        path: str,
        data: bytes | str,
        *,
        mode: str | None = None,
        if_match: str | None = None,
        new: bool = False,
        progress: Progress | None = None,
    ) -> FileInfo:
        """Replace a file at once, or make it. A text is written as UTF-8.

        `mode` is such as "755". `if_match` is an ETag that the file must have; `new` means that it must not
        exist. Otherwise Conflict or PreconditionFailed is raised.
        """
        content = data.encode() if isinstance(data, str) else data
        make = partial(byte_pieces, content)
        return await self._put(path, make, len(content), mode, if_match, new=new, progress=progress)

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, a link or an empty directory; with `recursive`, any directory."""
        await self._calls.send(self._request("DELETE", "/content", path, recursive=recursive or None))

    async def move(self, path: str, to: str, *, overwrite: bool = False) -> FileInfo:
        """Move or rename."""
        body = {**path_fields(path), **path_fields(to, "to"), "overwrite": overwrite}
        return await self._calls.fetch(FileInfo, self._post("/move", body))

    async def make_directory(self, path: str, *, parents: bool = False, mode: str | None = None) -> FileInfo:
        """Make a directory; with `parents`, those on its way too, and it may exist."""
        body = {**path_fields(path), "parents": parents, "mode": mode}
        return await self._calls.fetch(FileInfo, self._post("/directory", body))

    async def upload(self, local: str | Path, path: str, *, progress: Progress | None = None) -> None:
        """Copy a file or directory of this machine into the workspace.

        A file replaces one at `path`, or goes into a directory there. The content of a directory is added
        to the directory `path`, which is made if it is missing.
        """
        source = Path(local)
        if await run_blocking(source.is_dir):
            await self._upload_tree(source, path, progress)
            return
        facts = await run_blocking(source.stat)
        mode = f"{facts.st_mode & 0o777:03o}"
        make = partial(file_pieces, source, facts.st_size)
        where = await self._place_of(path, source.name)
        await self._put(where, make, facts.st_size, mode, None, new=False, progress=progress)

    async def download(self, path: str, local: str | Path, *, progress: Progress | None = None) -> Path:
        """Copy a file or directory of the workspace to this machine, and return where it is.

        A file replaces one at `local`, or goes into a directory there. The content of a directory is added
        to the directory `local`, which is made if it is missing. Half a file is never left behind.
        """
        place, facts = await self._followed(path)
        if facts.kind == "directory":
            return await self._download_tree(place, Path(local), progress)
        target = await run_blocking(partial(target_of, Path(local), remote_name(path)))
        await save(self.stream(path, progress), target, int(facts.mode, 8))
        return target

    async def upload_tar(self, pieces: Callable[[], Iterator[bytes]], path: str) -> Unpacked:
        """Unpack a tar archive, neither compressed nor sparse, into a directory."""
        body = partial(self._body, pieces, None, None)
        answer = await self._calls.send(self._request("PUT", "/tar", path, seconds=600.0), body)
        return decode(Unpacked, answer.json())

    async def _upload_tree(self, source: Path, path: str, progress: Progress | None) -> None:
        total = await run_blocking(partial(tree_size, source)) if progress is not None else None
        await self.make_directory(path, parents=True)
        body = partial(self._body, partial(tar_pieces, source), total, progress)
        await self._calls.send(self._request("PUT", "/tar", path, seconds=600.0), body)

    async def _download_tree(self, path: str, local: Path, progress: Progress | None) -> Path:
        """Download an archive as a whole, and unpack it then: one that broke off changes nothing."""
        await run_blocking(partial(local.mkdir, exist_ok=True))
        with tempfile.SpooledTemporaryFile(MOST_SPOOLED_BYTES) as archive:
            backoff = self._calls.reconnects()
            while True:
                archive.seek(0)
                archive.truncate()
                try:
                    async with self._calls.stream(self._request("GET", "/tar", path)) as answer:
                        async for piece in answer.pieces:
                            await run_blocking(partial(archive.write, piece))
                            if progress is not None:
                                progress(archive.tell(), None)
                    break
                except CodehubError as problem:
                    if not is_passing(problem):
                        raise
                    delay = backoff.delay(problem)
                await sleep(delay)
            archive.seek(0)
            await run_blocking(partial(unpack, archive, local))  # type: ignore[arg-type]
        return local

    async def _followed(self, path: str) -> tuple[str, FileInfo]:
        """Return where a path leads, and the facts of that, which is no link."""
        for _ in range(MOST_LINKS):
            facts = await self.stat(path)
            if facts.kind != "symlink":
                return path, facts
            path = link_target(path, facts)
        raise Conflict(409, "CONFLICT", f"{path} is a link that leads through too many others.")

    async def _place_of(self, path: str, name: str) -> str:
        """Return where an upload of a file goes: into a directory, if one is there."""
        if path in ("", ".") or path.endswith("/"):
            return f"{path}{name}" if path.endswith("/") else name
        try:
            _, facts = await self._followed(path)
        except NotFound:
            return path
        return f"{path}/{name}" if facts.kind == "directory" else path

    async def _put(
        self,
        path: str,
        make: Callable[[], Iterator[bytes]],
        size: int,
        mode: str | None,
        if_match: str | None,
        *,
        new: bool,
        progress: Progress | None,
    ) -> FileInfo:
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        if if_match is not None:
            headers["If-Match"] = if_match
        if new:
            headers["If-None-Match"] = "*"
        is_repeatable = if_match is None and not new
        request = self._request(
            "PUT", "/content", path, headers=headers, seconds=600.0, is_repeatable=is_repeatable, mode=mode
        )
        answer = await self._calls.send(request, partial(self._body, make, size, progress))
        return decode(FileInfo, answer.json())

    async def _body(
        self, make: Callable[[], Iterator[bytes]], total: int | None, progress: Progress | None
    ) -> AsyncIterator[bytes]:
        sent = 0
        async for piece in in_thread(make()):
            yield piece
            sent += len(piece)
            if progress is not None:
                progress(sent, total)

    def _request(
        self,
        method: str,
        action: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        seconds: float = CALL_SECONDS,
        is_repeatable: bool = True,
        **query: Any,
    ) -> Request:
        parameters = {**query_of(**query), **path_fields(path), **self._waking.query()}
        return Request(
            method, self._path + action, parameters, headers or {}, seconds=seconds + self._waking.seconds,
            is_repeatable=is_repeatable,
        )  # fmt: skip

    def _post(self, action: str, body: dict[str, Any]) -> Request:
        seconds = CALL_SECONDS + self._waking.seconds
        return Request("POST", self._path + action, self._waking.query(), json=body, seconds=seconds)
