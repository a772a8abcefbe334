"""Python SDK of CodeHub: `Client` blocks, `AsyncClient` has the same methods for asyncio.

    with Client() as client:
        workspace = client.workspaces.create("build").wait_until("RUNNING")
        for chunk in workspace.exec(["make"]):
            sys.stdout.buffer.write(chunk.data)

It imports nothing of the server.
"""

from codehub.client.aio.client import AsyncClient
from codehub.client.aio.execs import AsyncExec
from codehub.client.aio.files import AsyncFiles
from codehub.client.aio.ports import AsyncPort
from codehub.client.aio.terminals import AsyncTerminal
from codehub.client.aio.workspaces import AsyncWorkspace
from codehub.client.errors import (
    ApiError,
    CodehubError,
    CommandKilled,
    ConfigurationError,
    Conflict,
    ConnectionFailed,
    FileChanged,
    Forbidden,
    Gone,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    UnexpectedAnswer,
    WorkspaceFailed,
)
from codehub.client.models import (
    Chunk,
    Completed,
    LogChunk,
    TerminalEnded,
    TerminalEvent,
    TerminalOutput,
    TerminalSkipped,
    TerminalWriter,
)
from codehub.client.sync.client import Client
from codehub.client.sync.execs import Exec
from codehub.client.sync.files import Files
from codehub.client.sync.ports import Port
from codehub.client.sync.terminals import Terminal
from codehub.client.sync.workspaces import Workspace

__all__ = [
    "ApiError", "AsyncClient", "AsyncExec", "AsyncFiles", "AsyncPort", "AsyncTerminal", "AsyncWorkspace",
    "Chunk", "Client", "CodehubError", "CommandKilled", "Completed", "ConfigurationError", "Conflict",
    "ConnectionFailed", "Exec", "FileChanged", "Files", "Forbidden", "Gone", "InvalidRequest",
    "LogChunk", "NotFound", "Port", "PreconditionFailed", "RangeNotSatisfiable", "ServerError",
    "Terminal", "TerminalEnded", "TerminalEvent", "TerminalOutput", "TerminalSkipped", "TerminalWriter",
    "TimedOut", "TooManyRequests", "Unauthorized", "UnexpectedAnswer", "Workspace", "WorkspaceFailed",
]  # fmt: skip
