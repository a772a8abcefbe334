"""Files of Docker workspaces, through agents that enter their containers (ADR 0036)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from codehub.runtimes.docker import file_forkserver
from codehub.runtimes.docker.commands import DockerCommands
from codehub.runtimes.docker.container_config import HOME
from codehub.runtimes.docker.container_process import ContainerProcess
from codehub.runtimes.docker.file_request import FileAgentRequest
from codehub.runtimes.exec_request import CommandRefused
from codehub.runtimes.files.client import FileSession, FilesUnavailable
from codehub.runtimes.files.connection import READ_LIMIT
from codehub.runtimes.open_files import open_files
from codehub.runtimes.process import seccomp
from codehub.runtimes.process.cgroup_caps import groups_of
from codehub.runtimes.process.forkserver_client import ForkServerClient
from codehub.runtimes.seccomp import machine

_FORK_SERVER = ForkServerClient(file_forkserver.__name__)


@dataclass(frozen=True)
class DockerFiles:
    """`FileRuntime` of the Docker runtime."""

    commands: DockerCommands

    @contextlib.asynccontextmanager
    async def open_files(self, workspace_id: str) -> AsyncIterator[FileSession]:
        """Start a file agent in a workspace, for as long as the context lasts."""
        if os.geteuid() != 0:
            raise FilesUnavailable(
                "files of Docker workspaces are only offered by a CodeHub that runs as root, which can enter "
                "their containers: run `codehub` as root, or use a command"
            )
        request, connection = await asyncio.to_thread(self._start, workspace_id)
        opened = await asyncio.open_unix_connection(sock=connection, limit=READ_LIMIT)
        async with FileSession.begin(opened, request.to_line()) as session:
            yield session

    def _start(self, workspace_id: str) -> tuple[FileAgentRequest, socket.socket]:
        try:
            request = _request(self.commands.find_container(workspace_id))
            return request, _FORK_SERVER.connect()
        except CommandRefused as error:
            raise FilesUnavailable(str(error)) from error
        except OSError as error:
            reason = error.strerror or type(error).__name__  # without paths and processes of the host
            raise FilesUnavailable(f"the workspace cannot be entered: {reason}") from error


def _request(container: ContainerProcess) -> FileAgentRequest:
    """Describe how to enter a container: as the user of its first process, and with no more rights."""
    init = container.init
    uid = _user_of(init.pid)
    if uid == 0:
        raise FilesUnavailable("the workspace runs as root, which CodeHub does not become in it")
    filter_program = b"" if (known := machine()) is None else seccomp.program(known)
    return FileAgentRequest(
        init, uid, HOME, groups_of(init.pid), base64.b64encode(filter_program).decode(), open_files()
    )


def _user_of(pid: int) -> int:
    """Return the effective user of a process, as the host sees it."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
        line = next(line for line in status if line.startswith("Uid:"))
    return int(line.split()[2])
