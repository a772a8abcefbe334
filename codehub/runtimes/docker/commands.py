"""Commands in containers of a Docker Engine, each with a monitor of our own (ADR 0035)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import structlog

from codehub.runtimes.docker import exec_forkserver, exec_note
from codehub.runtimes.docker.container_config import Label, name_of
from codehub.runtimes.docker.container_process import ContainerProcess
from codehub.runtimes.docker.engine_http import EngineGone, EngineHttp
from codehub.runtimes.docker.logs import LogSource, open_logs
from codehub.runtimes.docker.monitor_request import MonitorRequest
from codehub.runtimes.exec_directory import ExecDirectory, ExecState, RecordCorrupted
from codehub.runtimes.exec_request import CommandRefused, ExecRequest
from codehub.runtimes.process.cgroup_caps import find_cgroups
from codehub.runtimes.process.forkserver_client import ForkServerClient
from codehub.runtimes.recorded_commands import RecordedCommands

logger = structlog.get_logger(__name__)

_NOT_FOUND = 404
_POLL_SECONDS = 0.02
_FORK_SERVER = ForkServerClient(exec_forkserver.__name__)


@dataclass(frozen=True)
class DockerCommands(RecordedCommands):
    """`CommandRuntime` of the Docker runtime."""

    url: str
    installation_id: str

    def warm_up(self) -> None:
        """Do what the first command would wait for."""
        _FORK_SERVER.warm_up()

    async def start_command(self, workspace_id: str, request: ExecRequest) -> None:
        """Start a command in a running container, at most once for each `exec_id`."""
        directory = self.directory(workspace_id, request.exec_id)  # refuses an id that is no file name
        await asyncio.to_thread(self._start, workspace_id, directory, request)

    def _start(self, workspace_id: str, directory: ExecDirectory, command: ExecRequest) -> None:
        container = self.find_container(workspace_id)
        self._create_workspace_directory(workspace_id)
        request = MonitorRequest(self.url, container, str(directory.path), _groups(), command)
        try:
            report = _FORK_SERVER.send(request.to_json())
        except OSError as error:
            reason = error.strerror or type(error).__name__  # without paths and processes of the host
            raise CommandRefused(f"no process for the command could be started: {reason}") from error
        if report.startswith(exec_forkserver.REFUSED):
            raise CommandRefused(report.removeprefix(exec_forkserver.REFUSED))
        if report not in (exec_forkserver.STARTED, exec_forkserver.DUPLICATE):
            raise CommandRefused("the start of the command was interrupted")

    def read_logs(
        self, workspace_id: str, lines: int, until: asyncio.Event
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Yield the output of the container. In standby there is none."""
        return open_logs(LogSource(self.url, lambda: self.inspect(workspace_id)), lines, until)

    async def has_logs(self, workspace_id: str) -> bool:
        return True

    def find_container(self, workspace_id: str) -> ContainerProcess:
        """Return a running container; raise CommandRefused if there is none, or none that we see."""
        try:
            container = self.inspect_running(workspace_id)
        except OSError as error:
            raise CommandRefused(f"{error}; no command was started") from error
        if container is None:
            raise CommandRefused("this workspace runs no commands: it has stopped, or has not started yet")
        process = ContainerProcess.of(str(container["Id"]), int(container["State"]["Pid"]))
        if process is None:
            raise CommandRefused(
                "CodeHub does not see the processes of the Docker engine, so it could not end a command: "
                "run it in the same PID namespace (`--pid host` for a container)"
            )
        return process

    def inspect_running(self, workspace_id: str) -> Mapping[str, Any] | None:
        """Return what the engine shows of a running container. Raise OSError if the engine fails."""
        found = self.inspect(workspace_id)
        return found if found is not None and found["State"]["Running"] else None

    def inspect(self, workspace_id: str) -> Mapping[str, Any] | None:
        """Return what the engine shows of a container of this installation, or None without one."""
        found = EngineHttp(self.url).request("GET", f"/containers/{name_of(workspace_id)}/json")
        if found.status == _NOT_FOUND:
            return None
        if not found.succeeded:
            raise EngineGone(f"the Docker engine did not show the workspace: {found.message}")
        labels = found.json()["Config"]["Labels"] or {}
        own = {Label.INSTALLATION: self.installation_id, Label.WORKSPACE: workspace_id}
        return found.json() if labels | own == labels else None

    def _create_workspace_directory(self, workspace_id: str) -> None:
        """Create the directory for a workspace's commands, for this user and the access part's group."""
        path = self.workspace_directory(workspace_id)
        self.prepare(None)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o7 | 0o050)

    async def terminate(self, workspace_id: str, within: float) -> None:
        """Ask all commands of a workspace to end, and wait for that."""
        monitors = await asyncio.to_thread(self._terminate, workspace_id)
        await _until_ended(monitors, within)

    async def wait(self, workspace_id: str, within: float) -> None:
        """Wait until the end of all commands of a workspace is recorded."""
        await _until_ended(await asyncio.to_thread(self._running, workspace_id), within)

    def _terminate(self, workspace_id: str) -> list[ExecDirectory]:
        running = self._running(workspace_id)
        for directory in running:
            record = directory.read_record()
            if record is not None and record.state is ExecState.RUNNING:
                record.monitor.send(signal.SIGTERM)
        return running

    def _running(self, workspace_id: str) -> list[ExecDirectory]:
        return [each for each in self._noted(self.workspace_directory(workspace_id)) if _is_running(each)]

    async def end_orphans(self) -> None:
        """End the commands whose monitors were killed."""
        await asyncio.to_thread(self._end_orphans)

    def _end_orphans(self) -> None:
        for workspace in self.root.iterdir() if self.root.exists() else ():
            for directory in self._noted(workspace):
                try:
                    self._end_orphan(directory)
                except OSError as error:
                    logger.warning("a command without a monitor may run on", error=str(error))

    def _end_orphan(self, directory: ExecDirectory) -> None:
        note = exec_note.read(directory)
        if note is not None and not _is_running(directory):
            note.end_processes(EngineHttp(self.url))
            exec_note.remove(directory)

    async def forget_command(self, workspace_id: str, exec_id: str) -> None:
        await asyncio.to_thread(self._end_orphan, self.directory(workspace_id, exec_id))
        await super().forget_command(workspace_id, exec_id)

    def _noted(self, workspace: Path) -> Iterator[ExecDirectory]:
        """Yield the commands of a workspace that are not known to have ended."""
        if workspace.is_dir():
            found = [ExecDirectory(path) for path in workspace.iterdir()]
            yield from (directory for directory in found if exec_note.read(directory) is not None)


def _is_running(directory: ExecDirectory) -> bool:
    try:
        record = directory.read_record()
    except RecordCorrupted:
        return False
    return record is not None and record.state is ExecState.RUNNING


async def _until_ended(directories: list[ExecDirectory], within: float) -> None:
    until = time.monotonic() + within
    while time.monotonic() < until:
        directories = [each for each in directories if await asyncio.to_thread(_is_running, each)]
        if not directories:
            return
        await asyncio.sleep(_POLL_SECONDS)


@cache
def _groups() -> tuple[str, ...]:
    return find_cgroups().keeper_groups if os.geteuid() == 0 else ()
