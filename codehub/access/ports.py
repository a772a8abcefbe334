"""WebSocket `/workspaces/{id}/ports/{port}/connect`: bytes to and from a TCP port in a workspace.

Each binary message is a piece of the bytes, and an empty one is the end of its direction, as a half-
closed TCP connection is. The WebSocket closes when both directions have ended.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Depends, Path, Response, WebSocket, WebSocketDisconnect

from codehub.access.exec_streams import record_input
from codehub.access.file_requests import Waking, WakingQuery
from codehub.access.permissions import WorkspaceId, check_credential
from codehub.access.services import AccessServices, Shared
from codehub.access.waker import wake
from codehub.access.websockets import (
    FAILED,
    GOING_AWAY,
    NORMAL,
    PROTOCOL_ERROR,
    RESTART,
    REVOKED,
    UNSUPPORTED,
    UPGRADE_RESPONSES,
    close,
    run_until_one_ends,
    upgrade_required,
)
from codehub.asgi.callers import UseCaller
from codehub.asgi.uvicorn_protocol import transport_of
from codehub.database.credentials import Credential
from codehub.domain.ports import parse_port
from codehub.domain.problems import InvalidState, NotFound, UpstreamUnavailable, sentence
from codehub.domain.states import Phase
from codehub.domain.workspace import Workspace
from codehub.runtimes.port_runtime import PortClosed, PortsUnavailable

logger = structlog.get_logger(__name__)
router = APIRouter(prefix="/workspaces/{workspace_id}/ports", tags=["ports"])

PIECE_BYTES: Final = 64 << 10
CHECK_SECONDS: Final = 20.0
"""While an app takes no input, its client is not read from, so a client that goes is looked for."""
FLUSH_SECONDS: Final = 5.0
"""Time in which an app must take what a client has sent before it closed."""


def _port(port: Annotated[str, Path()]) -> int:
    if (number := parse_port(port)) is None:
        raise NotFound("A port is a number from 1 to 65535, in plain digits.")
    return number


Port = Annotated[int, Depends(_port)]


class _End:
    """The first reason for which a WebSocket closes."""

    def __init__(self) -> None:
        self.code = NORMAL
        self.reason = ""
        self._event = asyncio.Event()

    def set(self, code: int, reason: str) -> None:
        if not self._event.is_set():
            self.code, self.reason = code, reason
            self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


class _Connection:
    """One client of a port."""

    def __init__(
        self,
        websocket: WebSocket,
        services: AccessServices,
        caller: Credential,
        workspace_id: str,
        app: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        end: _End,
    ) -> None:
        self._websocket = websocket
        self._services = services
        self._caller = caller
        self._workspace_id = workspace_id
        self._reader, self._writer = app
        self._end = end
        self._input_ended = False
        self._output_ended = False

    async def serve(self) -> None:
        """Relay until both directions have ended, the client goes, or the end is set."""
        try:
            errors = await run_until_one_ends((self._end.wait(), self._receive()), beside=(self._send(),))
        finally:
            self._close_app()
        for error in errors:
            if not isinstance(error, WebSocketDisconnect | RuntimeError | OSError):
                logger.error("a connection to a port failed", exc_info=error)
                self._end.set(FAILED, "CodeHub failed to relay it")
        await close(self._websocket, self._end.code, self._end.reason)

    def _close_app(self) -> None:
        """Close the app's side: at once, or after it has taken what a client sent that has closed."""
        if self._end.code != NORMAL:
            self._writer.transport.abort()
        else:
            self._writer.transport.close()
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._writer.transport.abort)

    async def _send(self) -> None:
        """Pass output on, as fast as the client reads it."""
        try:
            while data := await self._reader.read(PIECE_BYTES):
                await self._websocket.send_bytes(data)
        except OSError:
            self._end.set(FAILED, "the app reset the connection")
            return
        self._output_ended = True
        await self._websocket.send_bytes(b"")
        self._check_ended()

    async def _receive(self) -> None:
        """Pass input on, as fast as the app takes it."""
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                self._end.set(UNSUPPORTED, "send the bytes in binary messages")
            elif self._input_ended:
                self._end.set(PROTOCOL_ERROR, "an empty message has ended the input before")
            elif data:
                await record_input(self._services, self._caller, self._workspace_id)
                if not await self._write(data):
                    return
            else:
                self._end_input()

    def _end_input(self) -> None:
        self._input_ended = True
        with contextlib.suppress(OSError):  # the app is gone, which the other direction reports
            self._writer.write_eof()
        self._check_ended()

    async def _write(self, data: bytes) -> bool:
        """Write input; return False if the client is gone."""
        try:
            self._writer.write(data)
            while True:
                try:
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._writer.drain()
                        return True
                except TimeoutError:
                    transport = transport_of(self._websocket.scope)
                    if transport is not None and transport.is_closing():
                        return False
        except OSError:
            if self._output_ended:
                self._end.set(NORMAL, "the app has closed the connection")
            else:
                self._end.set(FAILED, "the app reset the connection")
            return True

    def _check_ended(self) -> None:
        if self._input_ended and self._output_ended:
            self._end.set(NORMAL, "")


@router.get("/{port}/connect", status_code=101, responses=UPGRADE_RESPONSES)
async def connect_without_upgrade(
    workspace_id: WorkspaceId, port: Port, caller: UseCaller, services: Shared, waking: WakingQuery
) -> Response:
    """Connect to a TCP port in a workspace, by WebSocket. Without an upgrade the answer is 426."""
    return await upgrade_required(services, caller, workspace_id)


@router.websocket("/{port}/connect")
async def connect(
    websocket: WebSocket,
    workspace_id: WorkspaceId,
    port: Port,
    caller: UseCaller,
    services: Shared,
    waking: WakingQuery,
) -> None:
    """Connect to a TCP port in a workspace."""
    end = _End()
    with _ending(services, caller, end):
        app = await _open(services, caller, workspace_id, port, waking)
        with services.workspace_watchers.watch(
            workspace_id, _has_stopped, lambda: end.set(GOING_AWAY, "the workspace has stopped")
        ):
            try:
                await websocket.accept()
            except BaseException:
                app[1].transport.abort()
                raise
            await _Connection(websocket, services, caller, workspace_id, app, end).serve()


@contextlib.contextmanager
def _ending(services: AccessServices, caller: Credential, end: _End) -> Iterator[None]:
    """Count the connection from its beginning, and end it with its credential and this process."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            services.readers.register(caller.user_id, lambda: end.set(RESTART, "the service restarts"))
        )
        stack.enter_context(
            services.credential_revocations.watch(
                caller, lambda: end.set(REVOKED, "the credential has ended")
            )
        )
        yield


async def _open(
    services: AccessServices, caller: Credential, workspace_id: str, port: int, waking: Waking
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Wake the workspace, and connect to the port while the client can still get an error."""
    await wake(services, caller, workspace_id, waking.how, waking.within)
    async with services.transaction(caller) as conn:
        await check_credential(conn, caller)  # an earlier end was not watched for
    try:
        connection = await services.ports.connect(workspace_id, port)
    except PortsUnavailable as error:
        raise InvalidState(sentence(str(error))) from error
    except PortClosed as error:
        raise UpstreamUnavailable(sentence(str(error))) from error
    return await asyncio.open_connection(sock=connection, limit=PIECE_BYTES)


def _has_stopped(workspace: Workspace) -> bool:
    return workspace.phase is not Phase.RUNNING
