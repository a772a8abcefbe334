"""`/workspaces/{id}/execs/{exec_id}/...`: output, input, signals and the size of a command's terminal."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import PlainValidator, WithJsonSchema
from starlette.requests import ClientDisconnect

from codehub.access.byte_stream import BYTES, ByteStream, StreamCut
from codehub.access.exec_refresher import refresh_row
from codehub.access.execs import Terminal
from codehub.access.permissions import ExecId, WorkspaceId, find_own_exec
from codehub.access.services import AccessServices, Shared
from codehub.access.upload import unless_ended
from codehub.asgi.callers import UseCaller
from codehub.asgi.fields import RequestBody
from codehub.clock import utc_now
from codehub.database import exec_gate
from codehub.database.credentials import Credential
from codehub.domain.execs import Exec
from codehub.domain.problems import Gone, InvalidState, RangeNotSatisfiable, ValidationFailed, sentence
from codehub.domain.states import Phase
from codehub.domain.workspace import Workspace
from codehub.runtimes.command_runtime import STDOUT, CommandForgotten, ControlFailed, OutputPiece

router = APIRouter(prefix="/workspaces/{workspace_id}/execs/{exec_id}", tags=["execs"])

PIECE_BYTES: Final = 256 << 10
USE_EVERY: Final = 30.0
"""Seconds between two records of input as a use of the workspace."""
_REMOVED: Final = "The output of this command is no longer kept."
Stream = Literal["stdout", "stderr"]
Offset = Annotated[int, Query(ge=0, le=1 << 62)]


SIGNALS: Final = {
    name.removeprefix("SIG"): number.value for name, number in signal.Signals.__members__.items()
}


def _signal_number(value: object) -> int:
    if isinstance(value, str):
        number = SIGNALS.get(value.removeprefix("SIG"))
    else:
        number = value if type(value) is int and 1 <= value <= 64 else None
    if number is None:
        raise ValueError("must be a number from 1 to 64, or a name such as INT")
    return number


_SIGNAL_SCHEMA: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 64},
        {"type": "string", "enum": [f"{prefix}{name}" for prefix in ("", "SIG") for name in sorted(SIGNALS)]},
    ]
}


class SignalToSend(RequestBody):
    """A signal, by its number or its name, such as INT or SIGINT."""

    signal: Annotated[int, PlainValidator(_signal_number), WithJsonSchema(_SIGNAL_SCHEMA)]


@router.get(
    "/output",
    response_class=Response,
    responses={200: BYTES},
)
async def read_output(
    workspace_id: WorkspaceId,
    exec_id: ExecId,
    caller: UseCaller,
    services: Shared,
    stream: Stream = "stdout",
    offset: Offset = 0,
    follow: bool = False,
) -> Response:
    """Send output from an offset, or from the next byte that is kept: `Codehub-Offset` names it.

    With `follow`, the response ends with the command. An incomplete response means that output
    was skipped, or that the service restarts: repeat the call from the offset that you have reached.
    """
    workspace, row = await _find(services, caller, workspace_id, exec_id)
    services.readers.check(caller.user_id)
    end = await _end_of_output(services, workspace, row, stream)
    if offset > end:
        raise RangeNotSatisfiable(f"offset: the output has {end} bytes so far.")
    try:
        first = await services.commands.read_output(workspace_id, exec_id, stream, offset, PIECE_BYTES)
    except CommandForgotten as error:
        raise Gone(_REMOVED) from error
    start = first.offset if first.data else offset
    if follow:
        pieces: AsyncIterator[bytes] = _followed(services, row, stream, start)
    else:
        pieces = _until(services, row, stream, start, max(end, start))
    return ByteStream(pieces, services, caller, {"Codehub-Offset": str(start)})


async def _find(
    services: AccessServices, caller: Credential, workspace_id: str, exec_id: str
) -> tuple[Workspace, Exec]:
    async with services.transaction(caller) as conn:
        return await find_own_exec(conn, caller, workspace_id, exec_id)


async def _end_of_output(services: AccessServices, workspace: Workspace, row: Exec, stream: Stream) -> int:
    if row.output_removed or workspace.phase is Phase.ARCHIVED:
        raise Gone(_REMOVED)
    status = await services.commands.find_command(row.workspace_id, row.id)
    if status is None and not row.state.is_alive:
        raise Gone(_REMOVED)
    if status is None:
        return 0
    return status.stdout_bytes if stream == STDOUT else status.stderr_bytes


async def _until(
    services: AccessServices, row: Exec, stream: Stream, start: int, end: int
) -> AsyncIterator[bytes]:
    """Yield the output between two offsets."""
    position = start
    while position < end:
        most = min(PIECE_BYTES, end - position)
        try:
            piece = await services.commands.read_output(row.workspace_id, row.id, stream, position, most)
        except CommandForgotten as error:
            raise StreamCut from error
        if not piece.data:
            return
        _check_continues(piece, position)
        yield piece.data
        position += len(piece.data)


async def _followed(
    services: AccessServices, row: Exec, stream: Stream, start: int
) -> AsyncGenerator[bytes, None]:
    """Yield the output from an offset until the command has ended, and then save how it ended."""
    position = start
    pieces = services.commands.follow_output(row.workspace_id, row.id, stream, start)
    async with contextlib.aclosing(pieces):
        try:
            async for piece in pieces:
                _check_continues(piece, position)
                yield piece.data
                position += len(piece.data)
        except (CommandForgotten, ControlFailed) as error:
            raise StreamCut from error
    await refresh_row(services.engine, services.commands, row)


def _check_continues(piece: OutputPiece, position: int) -> None:
    """Cut the stream at a gap. The client asks again, and is told where the next kept byte is."""
    if piece.offset != position:
        raise StreamCut


@router.post("/stdin", status_code=204)
async def send_input(
    workspace_id: WorkspaceId,
    exec_id: ExecId,
    request: Request,
    caller: UseCaller,
    services: Shared,
    close: bool = False,
) -> Response:
    """Send the body to the command's input, as fast as the command takes it.

    With `close`, the input ends after a whole body. A body that is cut off leaves it open.
    """
    _, row = await _find(services, caller, workspace_id, exec_id)
    await record_input(services, caller, workspace_id)
    work = services.commands.send_input(workspace_id, row.id, request.stream(), close=close)
    with answering_problems():
        await unless_ended(request, services, caller, work)
    return Response(status_code=204)


@router.post("/signal", status_code=204)
async def send_signal(
    workspace_id: WorkspaceId, exec_id: ExecId, body: SignalToSend, caller: UseCaller, services: Shared
) -> Response:
    """Send a signal to the process group of the command."""
    _, row = await _find(services, caller, workspace_id, exec_id)
    with answering_problems():
        await services.commands.signal_command(workspace_id, row.id, body.signal)
    return Response(status_code=204)


@router.post("/resize", status_code=204)
async def resize(
    workspace_id: WorkspaceId, exec_id: ExecId, body: Terminal, caller: UseCaller, services: Shared
) -> Response:
    """Change the size of the command's terminal."""
    _, row = await _find(services, caller, workspace_id, exec_id)
    if not row.tty:
        raise InvalidState("This command has no terminal.")
    with answering_problems():
        await services.commands.resize_terminal(workspace_id, row.id, body.size)
    return Response(status_code=204)


@contextlib.contextmanager
def answering_problems() -> Iterator[None]:
    """Turn what a command's monitor refuses into a response."""
    try:
        yield
    except ControlFailed as error:
        raise InvalidState(sentence(str(error))) from error
    except CommandForgotten as error:
        raise InvalidState("The command has ended.") from error
    except ClientDisconnect as error:  # nobody reads this response
        raise ValidationFailed("The client closed the connection.") from error


async def record_input(services: AccessServices, caller: Credential, workspace_id: str) -> None:
    """Count input as a use of the workspace, at most every half minute."""
    now = asyncio.get_running_loop().time()
    user = workspace_id, caller.is_token  # a use by a person counts for more
    if now - services.input_seen.get(user, -USE_EVERY) < USE_EVERY:
        return
    if len(services.input_seen) > 10_000:
        services.input_seen.clear()
    services.input_seen[user] = now
    async with services.transaction(caller) as conn:
        await exec_gate.record_use(conn, workspace_id, by_person=not caller.is_token, now=utc_now())
