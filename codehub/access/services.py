"""Dependencies that the handlers of one process share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Depends
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.requests import HTTPConnection

from codehub.access.archive_store import ReadableArchives
from codehub.access.open_readers import OpenReaders
from codehub.access.workspace_watchers import WorkspaceWatchers
from codehub.asgi.credential_lookup import CredentialLookup
from codehub.asgi.credential_revocation import CredentialRevocations
from codehub.concurrency_limits import ConcurrencyLimit
from codehub.database.credentials import Credential
from codehub.domain.user_limits import Limits
from codehub.runtimes.command_runtime import CommandRuntime
from codehub.runtimes.files.client import FileRuntime
from codehub.runtimes.port_runtime import PortRuntime
from codehub.settings import Settings

MAX_ALIVE: Final = 256
"""Commands of a user that may run at a time."""


@dataclass(frozen=True)
class AccessServices:
    settings: Settings
    engine: AsyncEngine
    commands: CommandRuntime
    credential_lookup: CredentialLookup
    credential_revocations: CredentialRevocations
    readers: OpenReaders
    queries_per_user: ConcurrencyLimit
    """Leaves connections to PostgreSQL to other users."""
    answers_per_user: ConcurrencyLimit
    """Leaves memory to other users."""
    starts_per_user: ConcurrencyLimit
    """Leaves threads to other users: a slow container keeps the start of a command waiting."""
    files: FileRuntime
    ports: PortRuntime
    workspace_watchers: WorkspaceWatchers
    agents_per_user: ConcurrencyLimit
    agents_per_workspace: ConcurrencyLimit
    """File agents under way: each is a process in its workspace."""
    archives: ReadableArchives
    downloads_per_user: ConcurrencyLimit
    """Leaves memory to other users: a download holds some megabytes for as long as its client reads."""
    input_seen: dict[tuple[str, bool], float] = field(default_factory=dict)
    """When input to each workspace, by a program or not, last counted as its use, on the monotonic clock."""
    terminal_writers: dict[str, object] = field(default_factory=dict)
    """The client that writes to each terminal."""

    @property
    def limits(self) -> Limits:
        settings = self.settings
        return Limits(
            settings.limits_max_running_per_user,
            settings.limits_max_running_global,
            settings.limits_max_workspaces_per_user,
            settings.limits_max_archive_bytes_per_user,
        )

    @asynccontextmanager
    async def transaction(self, caller: Credential) -> AsyncIterator[AsyncConnection]:
        """Begin a transaction for a call of a user."""
        async with self.queries_per_user.slot(caller.user_id), self.engine.begin() as conn:
            yield conn


def _services(connection: HTTPConnection) -> AccessServices:
    services: AccessServices = connection.app.state.services
    return services


Shared = Annotated[AccessServices, Depends(_services)]
