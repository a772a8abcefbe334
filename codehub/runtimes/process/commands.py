"""Commands of the process runtime, started through the exec broker of each workspace (ADR 0033)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from codehub.runtimes.exec_request import CommandRefused, ExecRequest
from codehub.runtimes.process import exec_broker
from codehub.runtimes.process.log_reader import open_logs
from codehub.runtimes.process.state_directory import LOG
from codehub.runtimes.recorded_commands import RecordedCommands


class ProcessCommands(RecordedCommands):
    """`CommandRuntime` of the process runtime."""

    def broker_socket(self, workspace_id: str) -> Path:
        return self.workspace_directory(workspace_id) / exec_broker.SOCKET

    def read_logs(
        self, workspace_id: str, lines: int, until: asyncio.Event
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Yield the output of the container, also after it was deleted."""
        return open_logs(self.workspace_directory(workspace_id), lines, until)

    async def has_logs(self, workspace_id: str) -> bool:
        return await asyncio.to_thread((self.workspace_directory(workspace_id) / LOG).exists)

    async def start_command(self, workspace_id: str, request: ExecRequest) -> None:
        """Start a command in a running container, at most once for each `exec_id`."""
        self.directory(workspace_id, request.exec_id)  # refuses an id that is no file name
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.broker_socket(workspace_id)))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise CommandRefused(
                "this workspace runs no commands: it has stopped, or an older version of CodeHub started it; "
                "restart it to run commands"
            ) from error
        try:
            writer.write(request.to_json().encode() + b"\n")
            report = (await reader.read()).decode()
        except OSError:  # the keeper has closed the connection
            report = ""
        finally:
            writer.close()
        if report not in (exec_broker.STARTED, exec_broker.DUPLICATE):
            raise CommandRefused("the workspace stopped before the command started")
