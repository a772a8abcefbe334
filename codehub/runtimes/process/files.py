"""Files of the process runtime's workspaces, through the exec broker of each (ADR 0036)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from codehub.runtimes.files.client import FileSession, FilesUnavailable
from codehub.runtimes.process.commands import ProcessCommands


@dataclass(frozen=True)
class ProcessFiles:
    """`FileRuntime` of the process runtime."""

    commands: ProcessCommands

    @contextlib.asynccontextmanager
    async def open_files(self, workspace_id: str) -> AsyncIterator[FileSession]:
        """Start a file agent in a workspace, for as long as the context lasts."""
        socket = self.commands.broker_socket(workspace_id)
        async with contextlib.AsyncExitStack() as stack:
            try:
                session = await stack.enter_async_context(FileSession.connect(str(socket)))
            except (FileNotFoundError, ConnectionRefusedError) as error:
                raise FilesUnavailable(
                    "this workspace offers no files: it has stopped, or an older version of CodeHub "
                    "started it; restart it to reach its files"
                ) from error
            yield session
