"""WebSocket `/workspaces/{id}/execs/{exec_id}/attach`: a terminal, for several readers and one writer.

    to the client     bytes are output; a text is JSON: {"writer": bool} when that changes,
                      {"offset": N} where output was skipped, and at the end {"state", "exit_code"}
    from the client   bytes are input; a text is JSON: {"rows": N, "cols": N}

The newest writer of this process takes over from the one before, which goes on reading. The output
begins with the last screenful.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Query, Response, WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from codehub.access.exec_refresher import refresh_row
from codehub.access.exec_streams import record_input
from codehub.access.execs import Terminal
from codehub.access.permissions import ExecId, WorkspaceId, check_credential, find_own_exec
from codehub.access.services import AccessServices, Shared
from codehub.access.websockets import (
    NORMAL,
    REVOKED,
    UPGRADE_RESPONSES,
    close,
    run_until_one_ends,
    upgrade_required,
)
from codehub.asgi.callers import UseCaller
from codehub.database.credentials import Credential
from codehub.domain.execs import Exec
from codehub.domain.problems import Gone, InvalidState
from codehub.domain.states import Phase
from codehub.runtimes.command_runtime import STDOUT, CommandForgotten, ControlFailed

logger = structlog.get_logger(__name__)
router = APIRouter(prefix="/workspaces/{workspace_id}/execs/{exec_id}", tags=["execs"])

SCREEN_BYTES: Final = 64 << 10
"""The output that is repeated. A large screen with colours takes a quarter of it."""
INPUT_MESSAGES: Final = 16
_EXPECTED: Final = (WebSocketDisconnect, RuntimeError, CommandForgotten, ControlFailed)
"""Errors of a client or a command that has gone."""


class _Attachment:
    """One client of a terminal."""

    def __init__(
        self,
        websocket: WebSocket,
        services: AccessServices,
        caller: Credential,
        row: Exec,
        ended: asyncio.Event,
    ) -> None:
        """`ended` is set when the credential ends, or this process."""
        self._websocket = websocket
        self._services = services
        self._caller = caller
        self._row = row
        self._ended = ended
        self._input: asyncio.Queue[bytes] = asyncio.Queue(INPUT_MESSAGES)
        self._sending = asyncio.Lock()
        self._writes = False
        self._lost = asyncio.Event()

    async def serve(self, *, writes: bool) -> None:
        """Serve until the command ends, the client goes, or its credential is revoked."""
        with contextlib.ExitStack() as stack:
            if writes:
                stack.callback(self._stop_writing)
                self._take_over()
            await self._serve_until_end()

    async def _serve_until_end(self) -> None:
        errors = await run_until_one_ends(
            (self._send_output(), self._receive(), self._ended.wait()),
            beside=(self._pass_input(), self._report_loss()),
        )
        for error in errors:
            if not isinstance(error, _EXPECTED):
                logger.error("a terminal failed", exec_id=self._row.id, exc_info=error)
        await close(self._websocket, REVOKED if self._ended.is_set() else NORMAL)

    def _take_over(self) -> None:
        before = self._services.terminal_writers.get(self._row.id)
        self._services.terminal_writers[self._row.id] = self
        self._writes = True
        if isinstance(before, _Attachment):
            before.lose_writer()

    def lose_writer(self) -> None:
        """Stop writing at once. The client learns of it when it reads: the next writer waits for nothing."""
        self._writes = False
        self._lost.set()

    async def _report_loss(self) -> None:
        await self._lost.wait()
        await self._tell(writer=False)

    def _stop_writing(self) -> None:
        if self._services.terminal_writers.get(self._row.id) is self:
            del self._services.terminal_writers[self._row.id]

    async def _tell(self, **facts: object) -> None:
        async with self._sending:
            await self._websocket.send_text(json.dumps(facts))

    async def _send_output(self) -> None:
        row, commands = self._row, self._services.commands
        if self._writes:
            await self._tell(writer=True)
        position = await self._send_screen()
        pieces = commands.follow_output(row.workspace_id, row.id, STDOUT, position)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if piece.offset != position:
                    await self._tell(offset=piece.offset)
                async with self._sending:
                    await self._websocket.send_bytes(piece.data)
                position = piece.offset + len(piece.data)
        fresh = await refresh_row(self._services.engine, commands, row)
        await self._tell(state=fresh.state.value, exit_code=fresh.exit_code)

    async def _send_screen(self) -> int:
        """Repeat the last screenful from the beginning of a line; return the offset behind it."""
        row, commands = self._row, self._services.commands
        status = await commands.find_command(row.workspace_id, row.id)
        start = 0 if status is None else max(0, status.stdout_bytes - SCREEN_BYTES)
        piece = await commands.read_output(row.workspace_id, row.id, STDOUT, start, SCREEN_BYTES)
        begins = piece.data.find(b"\n") + 1 if start else 0
        if piece.data[begins:]:
            async with self._sending:
                await self._websocket.send_bytes(piece.data[begins:])
        return piece.offset + len(piece.data)

    async def _receive(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if message.get("bytes"):
                if self._writes:
                    await self._input.put(message["bytes"])
            elif message.get("text"):
                await self._resize(message["text"])

    async def _resize(self, text: str) -> None:
        """Change the size of the terminal, if this client writes. Other texts are ignored."""
        if not self._writes:
            return
        with contextlib.suppress(ValidationError, ControlFailed, CommandForgotten):
            size = Terminal.model_validate_json(text).size
            await self._services.commands.resize_terminal(self._row.workspace_id, self._row.id, size)

    async def _pass_input(self) -> None:
        """Pass input on until the command has ended, which ends the output too."""
        with contextlib.suppress(ControlFailed, CommandForgotten):
            await self._services.commands.send_input(
                self._row.workspace_id, self._row.id, self._chunks(), close=False
            )

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            data = await self._input.get()
            await record_input(self._services, self._caller, self._row.workspace_id)
            yield data


@router.get("/attach", status_code=101, responses=UPGRADE_RESPONSES)
async def attach_without_upgrade(
    workspace_id: WorkspaceId,
    exec_id: ExecId,
    caller: UseCaller,
    services: Shared,
    readonly: Annotated[bool, Query()] = False,
) -> Response:
    """Attach to the terminal of a command, by WebSocket. Without an upgrade the answer is 426."""
    return await upgrade_required(services, caller, workspace_id)


@router.websocket("/attach")
async def attach(
    websocket: WebSocket,
    workspace_id: WorkspaceId,
    exec_id: ExecId,
    caller: UseCaller,
    services: Shared,
    readonly: Annotated[bool, Query()] = False,
) -> None:
    """Attach to the terminal of a command."""
    ended = asyncio.Event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(services.readers.register(caller.user_id, ended.set))
        stack.enter_context(services.credential_revocations.watch(caller, ended.set))
        async with services.transaction(caller) as conn:
            workspace, row = await find_own_exec(conn, caller, workspace_id, exec_id)
            await check_credential(conn, caller)  # an earlier end was not watched for
        if not row.tty:
            raise InvalidState("This command has no terminal. Read its output, and send to its input.")
        if row.output_removed or workspace.phase is Phase.ARCHIVED:
            raise Gone("The output of this command is no longer kept.")
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            await _Attachment(websocket, services, caller, row, ended).serve(writes=not readonly)
