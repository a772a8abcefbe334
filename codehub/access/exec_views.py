"""Commands as the API shows them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel

from codehub.database.credentials import Credential
from codehub.domain.execs import Exec, ExecState
from codehub.domain.scopes import Scope
from codehub.domain.workspace import Workspace

Shown = Literal["running", "exited", "killed", "lost"]
_SHOWN: Final[Mapping[ExecState, Shown]] = {
    ExecState.STARTING: "running",
    ExecState.RUNNING: "running",
    ExecState.EXITED: "exited",
    ExecState.KILLED: "killed",
    ExecState.LOST: "lost",
}


class ExecView(BaseModel):
    """A command. Only its workspace's owner, with a credential that may use it, sees what it runs."""

    id: str
    workspace_id: str
    state: Shown
    exit_code: int | None
    """128 plus the signal's number if a signal ended it."""
    reason: str | None
    """Why CodeHub ended it, such as Timeout or WorkspaceStopped, or why it is lost."""
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    stdout_bytes: int
    stderr_bytes: int
    dropped_bytes: int
    """Bytes of output that were lost because the disk was full."""
    output_removed: bool
    tty: bool
    timeout_seconds: float | None
    started_by: str
    command: Sequence[str] | None
    command_omitted: bool
    """Whether `command` is missing because it is long. Read the command itself to get it."""
    cwd: str | None


class ExecList(BaseModel):
    items: list[ExecView]


def exec_view(row: Exec, workspace: Workspace, caller: Credential) -> ExecView:
    shows_command = workspace.owner_id == caller.user_id and Scope.USE in caller.scopes
    return ExecView(
        id=row.id,
        workspace_id=row.workspace_id,
        state=_SHOWN[row.state],
        exit_code=row.exit_code,
        reason=row.reason,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        stdout_bytes=row.stdout_bytes,
        stderr_bytes=row.stderr_bytes,
        dropped_bytes=row.dropped_bytes,
        output_removed=row.output_removed,
        tty=row.tty,
        timeout_seconds=row.timeout_seconds,
        started_by=row.actor_name,
        command=list(row.command) if shows_command and not row.command_omitted else None,
        command_omitted=shows_command and row.command_omitted,
        cwd=row.cwd if shows_command else None,
    )
