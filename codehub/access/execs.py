"""`/workspaces/{id}/execs`: start, list and forget commands."""

from dataclasses import replace
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Response
from pydantic import Field

from codehub.access import exec_starter
from codehub.access.answers import Answer
from codehub.access.exec_refresher import refresh_row
from codehub.access.exec_views import ExecList, ExecView, exec_view
from codehub.access.permissions import (
    ExecId,
    WorkspaceId,
    find_exec,
    find_own,
    find_own_exec,
    find_visible,
)
from codehub.access.services import AccessServices, Shared
from codehub.access.waker import wake
from codehub.asgi.callers import ReadCaller, UseCaller
from codehub.asgi.fields import NO_NUL, RequestBody, documented
from codehub.clock import utc_now
from codehub.database import exec_gate, exec_queries
from codehub.database.credentials import Credential
from codehub.domain.exec_environment import check_environment
from codehub.domain.execs import Exec
from codehub.domain.problems import InvalidState, ValidationFailed
from codehub.domain.waking import DEFAULT_WAIT_SECONDS, MOST_WAIT_SECONDS, Wake
from codehub.domain.workspace import Workspace
from codehub.runtimes.command_runtime import CommandForgotten, ControlFailed, ExecRequest, TerminalSize
from codehub.runtimes.command_runtime import ExecState as RecordedState
from codehub.settings import Settings

router = APIRouter(prefix="/workspaces/{workspace_id}/execs", tags=["execs"])

MOST_ARGUMENTS: Final = 4096
MOST_COMMAND_BYTES: Final = 100 << 10
"""The kernel takes arguments of 128 KiB each; a login shell gets its command as one of them."""
_LONGEST_TIMEOUT: Final = 366 * 86_400
_Wait = Annotated[float, Field(ge=0, le=MOST_WAIT_SECONDS, allow_inf_nan=False)]
_VARIABLE_NAMES: Final = Field(json_schema_extra={"propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}})
"""Said here for the OpenAPI document, and checked with a better sentence by `check_environment`."""


class Terminal(RequestBody):
    rows: Annotated[int, Field(ge=1, le=1000)]
    cols: Annotated[int, Field(ge=1, le=1000)]

    @property
    def size(self) -> TerminalSize:
        return TerminalSize(self.rows, self.cols)


class NewCommand(RequestBody):
    """A command to start. A text is run by a login shell: `sh -lc`."""

    command: (
        Annotated[list[Annotated[str, NO_NUL]], Field(min_length=1, max_length=MOST_ARGUMENTS)]
        | Annotated[str, documented(r"^[^\u0000]*[^\u0000\s][^\u0000]*$")]
    )
    cwd: Annotated[str, Field(max_length=4096), NO_NUL] = ""
    """Relative to the home unless absolute."""
    env: Annotated[dict[str, Annotated[str, NO_NUL]], _VARIABLE_NAMES] = Field(default_factory=dict)
    """Variables besides those of the IDE's terminals. They are neither stored nor sent back."""
    tty: Terminal | None = None
    stdin: bool = True
    """Whether input will be sent. Otherwise the command finds its input closed."""
    timeout_seconds: Annotated[float, Field(gt=0, le=_LONGEST_TIMEOUT, allow_inf_nan=False)] | None = None
    wake: bool | Literal["restore"] = False
    wake_timeout_seconds: _Wait = DEFAULT_WAIT_SECONDS
    key: Annotated[str, Field(min_length=1, max_length=200), NO_NUL] | None = None
    """Within a day, the same key answers with the same command, so that a call can be repeated."""

    @property
    def how_to_wake(self) -> Wake:
        if isinstance(self.wake, str):
            return Wake.RESTORE
        return Wake.START if self.wake else Wake.NO

    def to_request(self, settings: Settings) -> ExecRequest:
        if isinstance(self.command, str) and not self.command.strip():
            raise ValidationFailed("command: it is empty.")
        command = ["/bin/sh", "-lc", self.command] if isinstance(self.command, str) else self.command
        _check_texts(command, self.cwd, self.key or "")
        check_environment(self.env)
        return ExecRequest(
            "",
            command,
            self.env,
            self.cwd,
            None if self.tty is None else self.tty.size,
            self.stdin,
            self.timeout_seconds,
            output_bytes=settings.exec_output_bytes,
            reserve_bytes=settings.disk_reserve_bytes,
        )


def _check_texts(command: list[str], cwd: str, key: str) -> None:
    for name, texts in (("command", command), ("cwd", [cwd]), ("key", [key])):
        if any("\0" in text for text in texts):
            raise ValidationFailed(f"{name}: must not contain NUL characters.")
        if any("\ud800" <= char <= "\udfff" for text in texts for char in text):
            raise ValidationFailed(f"{name}: must be valid Unicode.")
    if not command[0]:
        raise ValidationFailed("command: the program has no name.")
    size = sum(len(text.encode()) + 1 for text in command)
    if size > MOST_COMMAND_BYTES:
        raise ValidationFailed(
            f"command: it has {size} bytes; at most {MOST_COMMAND_BYTES} fit. Send the rest to its input."
        )


@router.post("", status_code=201)
async def start_command(
    workspace_id: WorkspaceId, body: NewCommand, caller: UseCaller, services: Shared, answer: Answer
) -> ExecView:
    """Start a command in a running workspace. With `wake`, a stopped one is started first."""
    request = body.to_request(services.settings)
    workspace = await _wake_unless_repeated(services, caller, workspace_id, body)
    row = await exec_starter.start(services, caller, workspace_id, request, body.key)
    await answer.begin()
    return exec_view(row, workspace, caller)


async def _wake_unless_repeated(
    services: AccessServices, caller: Credential, workspace_id: str, body: NewCommand
) -> Workspace:
    """Wake the workspace, unless the call repeats one whose command may have ended long ago."""
    if body.key is not None:
        async with services.transaction(caller) as conn:
            workspace = await find_own(conn, caller, workspace_id)
            if await exec_queries.has_key(conn, workspace_id, caller.user_id, body.key):
                return workspace
    return await wake(services, caller, workspace_id, body.how_to_wake, body.wake_timeout_seconds)


@router.get("")
async def list_commands(
    workspace_id: WorkspaceId, caller: ReadCaller, services: Shared, answer: Answer
) -> ExecList:
    """Return the newest commands, newest first. Long ones are named without what they run."""
    await answer.begin()
    async with services.transaction(caller) as conn:
        workspace = await find_visible(conn, caller, workspace_id)
        rows = await exec_queries.newest(conn, workspace_id)
    fresh = [await _refreshed_short(services, row) for row in rows]
    return ExecList(items=[exec_view(row, workspace, caller) for row in fresh])


async def _refreshed_short(services: AccessServices, row: Exec) -> Exec:
    """Refresh a row of a list. Another refresh at the same time returns the whole command."""
    fresh = await refresh_row(services.engine, services.commands, row)
    return replace(fresh, command=row.command, command_omitted=row.command_omitted)


@router.get("/{exec_id}")
async def get_command(
    workspace_id: WorkspaceId, exec_id: ExecId, caller: ReadCaller, services: Shared, answer: Answer
) -> ExecView:
    """Return a command: its state, its exit code and how much output it has."""
    await answer.begin()
    async with services.transaction(caller) as conn:
        workspace = await find_visible(conn, caller, workspace_id)
        row = await find_exec(conn, workspace_id, exec_id)
    return exec_view(await refresh_row(services.engine, services.commands, row), workspace, caller)


@router.delete("/{exec_id}", status_code=204)
async def forget_command(
    workspace_id: WorkspaceId, exec_id: ExecId, caller: UseCaller, services: Shared
) -> Response:
    """Kill a command, if it runs, and forget it."""
    async with services.transaction(caller) as conn:
        _, row = await find_own_exec(conn, caller, workspace_id, exec_id)
    await kill(services, row)
    async with services.transaction(caller) as conn:
        await exec_gate.forget(conn, row, exec_starter.actor_of(caller), now=utc_now())
    return Response(status_code=204)


async def kill(services: AccessServices, row: Exec) -> None:
    """Kill a command, and what it has left in the background. It is kept if it still runs."""
    try:
        await services.commands.kill_command(row.workspace_id, row.id, "Deleted")
    except CommandForgotten:
        return
    except ControlFailed as error:
        status = await services.commands.find_command(row.workspace_id, row.id)
        if status is not None and status.state is RecordedState.RUNNING:
            raise InvalidState(
                f"The command still runs, so it was not forgotten: {error}. Try again."
            ) from error
