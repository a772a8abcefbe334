"""Workspaces: find, create, change, and wait for them."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from codehub.client.aio.calls import AsyncCalls
from codehub.client.aio.downloads import save, stream_content
from codehub.client.aio.execs import AsyncExec
from codehub.client.aio.files import AsyncFiles
from codehub.client.aio.io import run_blocking, sleep
from codehub.client.aio.leases import AsyncLeases
from codehub.client.aio.ports import AsyncPort
from codehub.client.errors import CodehubError, Conflict, NotFound, TimedOut, WorkspaceFailed
from codehub.client.local_files import Progress, target_of
from codehub.client.models import (
    Archive,
    ArchiveList,
    Completed,
    ExecInfo,
    ExecList,
    LogChunk,
    TimelineEntry,
    TimelineList,
    WorkspaceInfo,
    WorkspacePage,
)
from codehub.client.requests import CALL_SECONDS, CONNECT_SECONDS, Request, get, query_of, segment
from codehub.client.retries import is_passing
from codehub.client.workspace_rules import check_port, looks_like_id, port_url, seconds_for, wait_is_over

PAGE = 200
WAIT_SECONDS = 600.0
WAKE_SECONDS = 45.0
LOG_SILENCE_SECONDS = 900.0
"""An IDE may write nothing for long. A connection that is dead is found out this late."""


class AsyncWorkspace:
    """A workspace, as last seen (`info`), and what can be done with it."""

    def __init__(self, calls: AsyncCalls, info: WorkspaceInfo) -> None:
        self._calls = calls
        self._path = f"/workspaces/{segment(info.id, 'workspace')}"
        self.info = info
        self.files = AsyncFiles(calls, self._path)
        self.leases = AsyncLeases(calls, self._path)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def phase(self) -> str:
        """PENDING, ARCHIVED, STANDBY, RUNNING, ERROR, DELETING or DELETED, as last seen."""
        return self.info.phase

    @property
    def url(self) -> str:
        """The address of its IDE."""
        return self.info.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.id} {self.phase}>"

    def port_url(self, port: int, path: str = "") -> str:
        """Return the address of a port of the workspace. Its owner's browser can open it."""
        return port_url(self.info.url, port, path)

    async def refresh(self) -> WorkspaceInfo:
        """Read the workspace."""
        self.info = await self._calls.fetch(WorkspaceInfo, get(self._path))
        return self.info

    async def wait_until(self, phase: str, timeout: float = WAIT_SECONDS) -> "AsyncWorkspace":
        """Wait until the workspace is in the phase, and at rest.

        Raise WorkspaceFailed if it goes into ERROR, TimedOut after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        delay = 0.1
        while not await self._is_in(phase):
            left = deadline - time.monotonic()
            if left <= 0:
                doing = "nothing" if self.info.is_at_rest else self.info.operation
                raise TimedOut(
                    f"{self.name} is not {phase} after {timeout:g} s. It is {self.phase}, and does {doing}."
                )
            await sleep(min(delay, left))
            delay = min(delay * 1.5, 2.0)
        return self

    async def _is_in(self, phase: str) -> bool:
        try:
            await self.refresh()
        except NotFound:
            if phase == "DELETED":
                return True
            raise
        if self.phase == "ERROR" and phase != "ERROR":
            message = self.info.error_message or "CodeHub gave no reason."
            raise WorkspaceFailed(f"{self.name} is in ERROR: {message}", self.info.error_reason)
        return wait_is_over(self.info, phase)

    async def wait_until_restored(self, timeout: float = WAIT_SECONDS) -> "AsyncWorkspace":
        """Wait until the archive that `restore` was given is back, which begins with archiving the home."""
        deadline = time.monotonic() + timeout
        while await self._is_restoring():
            if time.monotonic() > deadline:
                raise TimedOut(f"{self.name} is not restored after {timeout:g} s. It is {self.phase}.")
            await sleep(0.5)
        return self

    async def _is_restoring(self) -> bool:
        at_rest = await self._is_in("STANDBY")
        return self.info.archive_to_restore is not None or not at_rest

    async def start(self) -> "AsyncWorkspace":
        """Start it, from its archive if need be. Use wait_until("RUNNING") to wait for it."""
        return await self.update(desired_state="RUNNING")

    async def stop(self) -> "AsyncWorkspace":
        """Stop it. Its home stays."""
        return await self.update(desired_state="STANDBY")

    async def archive(self) -> "AsyncWorkspace":
        """Stop it, and move its home into an archive."""
        return await self.update(desired_state="ARCHIVED")

    async def restore(self, archive_op_id: str | None = None) -> "AsyncWorkspace":
        """Bring its home back from its archive; or from an older one, after archiving the present home."""
        if archive_op_id is None:
            return await self.update(desired_state="STANDBY")
        return await self._post("restore", {"archive_op_id": archive_op_id})

    async def update(self, **changes: Any) -> "AsyncWorkspace":
        """Change name, description, memo, standby_ttl_seconds, archive_ttl_seconds or desired_state."""
        request = Request("PATCH", self._path, json=changes, is_repeatable=True)
        self.info = await self._calls.fetch(WorkspaceInfo, request)
        return self

    async def delete(self) -> None:
        """Move it to the trash, from where `undelete` brings it back for some days."""
        await self._calls.send(Request("DELETE", self._path, is_repeatable=True))

    async def delete_for_good(self, confirm: str) -> None:
        """Delete it without an archive. `confirm` is its name. Nothing brings it back."""
        query = query_of(without_archive=True, confirm=confirm)
        await self._calls.send(Request("DELETE", self._path, query, is_repeatable=True))

    async def undelete(self) -> "AsyncWorkspace":
        """Bring it back from the trash."""
        return await self._post("undelete", {})

    async def recover(self, source: str | None = None, archive_op_id: str | None = None) -> "AsyncWorkspace":
        """End ERROR. `source` is `archive` or `empty` if the home is lost."""
        chosen = {"from": source, "archive_op_id": archive_op_id}
        return await self._post(
            "recover", {name: value for name, value in chosen.items() if value is not None}
        )

    async def cancel(self) -> "AsyncWorkspace":
        """End the operation under way."""
        return await self._post("cancel", {})

    async def extend(self, seconds: int) -> "AsyncWorkspace":
        """Keep it running this much longer."""
        return await self._post("extend", {"seconds": seconds})

    async def _post(self, action: str, body: Mapping[str, Any]) -> "AsyncWorkspace":
        self.info = await self._calls.fetch(
            WorkspaceInfo, Request("POST", f"{self._path}/{action}", json=body)
        )
        return self

    async def timeline(self) -> list[TimelineEntry]:
        """Return what happened to it, newest first."""
        return list((await self._calls.fetch(TimelineList, get(f"{self._path}/timeline"))).items)

    async def archives(self) -> list[Archive]:
        """Return its archives, newest first."""
        return list((await self._calls.fetch(ArchiveList, get(f"{self._path}/archives"))).items)

    async def logs(self, lines: int = 200) -> bytes:
        """Return the last lines that its IDE has written."""
        return (await self._calls.send(get(f"{self._path}/logs", lines=lines))).body

    async def follow_logs(self, lines: int = 200) -> AsyncGenerator[LogChunk, None]:
        """Yield what its IDE writes, after the last lines, until the workspace stops.

        If the connection breaks, it goes on with the last lines again, which `is_repeated` says.
        """
        query = query_of(lines=lines, follow=True)
        request = Request("GET", f"{self._path}/logs", query, seconds=LOG_SILENCE_SECONDS, is_repeatable=True)
        backoff = self._calls.reconnects()
        is_repeated = False
        while True:
            try:
                async with self._calls.stream(request) as answer:
                    async for data in answer.pieces:
                        yield LogChunk(data, is_repeated)
                        is_repeated = False
                        backoff.restart()
                return
            except CodehubError as problem:
                if not is_passing(problem):
                    raise
                delay = backoff.delay(problem)
            is_repeated = True
            await sleep(delay)

    async def connect_port(self, port: int, *, wake: bool | str = False) -> AsyncPort:
        """Connect to a TCP port of the workspace. Nothing of HTTP is in between."""
        check_port(port)
        query = query_of(wake=wake or None)
        seconds = CONNECT_SECONDS + seconds_for(wake, WAKE_SECONDS)
        path = f"{self._path}/ports/{port}/connect"
        return AsyncPort(
            await self._calls.transport.open_websocket(Request("GET", path, query, seconds=seconds))
        )

    async def download_archive(
        self, local: str | Path, archive_op_id: str | None = None, *, progress: Progress | None = None
    ) -> Path:
        """Download an archive (`home.tar.zst`): the current one, unless an older one is named."""
        target = await run_blocking(partial(target_of, Path(local), "home.tar.zst"))
        path, query = f"{self._path}/archive", query_of(archive_op_id=archive_op_id)

        def make_request(headers: dict[str, str]) -> Request:
            return Request("GET", path, query, headers, is_repeatable=True)

        await save(stream_content(self._calls, "the archive", make_request, progress), target)
        return target

    async def stats(self) -> dict[str, Any]:
        """Return what it uses of CPU, memory and disk, as the API answers."""
        answer = await self._calls.send(get(f"{self._path}/stats"))
        return {**answer.json()}

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        tty: tuple[int, int] | None = None,
        stdin: bool = False,
        timeout_seconds: float | None = None,
        wake: bool | str = False,
        wake_timeout_seconds: float = 45.0,
        key: str | None = None,
    ) -> AsyncExec:
        """Start a command, and return while it runs.

        A text is run by `sh -lc`. `tty` is rows and columns of a terminal. `stdin` must be True if input
        will be sent. `wake` starts the workspace first; "restore" restores it as well. With a `key`, the
        call is safe to repeat: within a day, the same key answers with the same command.
        """
        body: dict[str, Any] = {
            "command": command if isinstance(command, str) else list(command), "cwd": cwd,
            "env": dict(env or {}), "tty": None if tty is None else {"rows": tty[0], "cols": tty[1]},
            "stdin": stdin or tty is not None, "timeout_seconds": timeout_seconds,
            "wake": wake, "wake_timeout_seconds": wake_timeout_seconds, "key": key,
        }  # fmt: skip
        seconds = CALL_SECONDS + seconds_for(wake, wake_timeout_seconds)
        path = f"{self._path}/execs"
        request = Request("POST", path, json=body, seconds=seconds, is_repeatable=key is not None)
        return self._exec(await self._calls.fetch(ExecInfo, request))

    async def run(
        self,
        command: Sequence[str] | str,
        *,
        input: bytes | None = None,  # noqa: A002 - as in subprocess.run
        timeout: float | None = None,
        **options: Any,
    ) -> Completed:
        """Run a command to its end, and return its output and exit code. `options` are those of `exec`."""
        command_ = await self.exec(command, stdin=input is not None, **options)
        return await command_.communicate(input, timeout)

    async def execs(self) -> list[AsyncExec]:
        """Return its commands, newest first."""
        found = await self._calls.fetch(ExecList, get(f"{self._path}/execs"))
        return [self._exec(info) for info in found.items]

    async def get_exec(self, exec_id: str) -> AsyncExec:
        """Return a command by its id, such as one that another client has started."""
        path = f"{self._path}/execs/{segment(exec_id, 'exec')}"
        return self._exec(await self._calls.fetch(ExecInfo, get(path)))

    def _exec(self, info: ExecInfo) -> AsyncExec:
        return AsyncExec(self._calls, f"{self._path}/execs/{segment(info.id, 'exec')}", info)


class AsyncWorkspaces:
    """The caller's workspaces."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls

    async def create(
        self,
        name: str,
        *,
        description: str = "",
        image: str | None = None,
        standby_ttl_seconds: int | None = None,
        archive_ttl_seconds: int | None = None,
        desired_state: str = "RUNNING",
    ) -> AsyncWorkspace:
        """Create a workspace. It starts meanwhile: use wait_until("RUNNING") to wait for it."""
        body = {
            "name": name, "description": description, "image_ref": image, "desired_state": desired_state,
            "standby_ttl_seconds": standby_ttl_seconds, "archive_ttl_seconds": archive_ttl_seconds,
        }  # fmt: skip
        return self._workspace(
            await self._calls.fetch(WorkspaceInfo, Request("POST", "/workspaces", json=body))
        )

    async def list(
        self, *, phase: str | None = None, query: str = "", trash: bool = False
    ) -> Sequence[AsyncWorkspace]:
        """Return the caller's workspaces; with `trash`, the deleted ones."""
        found: dict[str, AsyncWorkspace] = {}
        offset = 0
        while True:
            request = get(
                "/workspaces", limit=PAGE, offset=offset, phase=phase, q=query or None, trash=trash or None
            )
            page = await self._calls.fetch(WorkspacePage, request)
            found |= {info.id: self._workspace(info) for info in page.items}
            offset += len(page.items)
            if not page.items or offset >= page.total:
                return [*found.values()]

    async def get(self, workspace_id: str) -> AsyncWorkspace:
        """Return a workspace by its id."""
        path = f"/workspaces/{segment(workspace_id, 'workspace')}"
        return self._workspace(await self._calls.fetch(WorkspaceInfo, get(path)))

    async def find(self, name_or_id: str, *, trash: bool = False) -> AsyncWorkspace:
        """Return a workspace by its id, or by its name if only one has it. `trash`: a deleted one."""
        if looks_like_id(name_or_id) and not trash:
            try:
                return await self.get(name_or_id)
            except NotFound:  # it may be a name after all
                pass
        every = await self.list(trash=trash)
        found = [each for each in every if name_or_id in (each.id, each.name)]
        if not found:
            raise NotFound(404, "WORKSPACE_NOT_FOUND", f"You have no workspace {name_or_id!r}.")
        if len(found) > 1:
            ids = ", ".join(each.id for each in found)
            raise Conflict(
                409, "AMBIGUOUS", f"Several workspaces have the name {name_or_id!r}. Use an id: {ids}."
            )
        return found[0]

    def _workspace(self, info: WorkspaceInfo) -> AsyncWorkspace:
        return AsyncWorkspace(self._calls, info)
