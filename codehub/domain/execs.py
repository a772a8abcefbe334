"""Commands that programs run in workspaces: their rows, and the rules of their states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from codehub.domain.allowed_changes import check_alive, check_idle, is_in_error
from codehub.domain.problems import InvalidState, OperationInProgress
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace

KEY_LIFETIME: Final = timedelta(days=1)
"""How long the same key answers with the same command."""
KEYS_PER_WORKSPACE: Final = 5000
"""Commands with a key within that time. Their rows stay, so their number is limited."""
START_WITHIN: Final = timedelta(seconds=60)
"""Until when a command whose row exists may start. Later it counts as lost."""
UNSEEN_FOR: Final = timedelta(minutes=5)
"""How long a running command must be missing from the runtime, in every look, to count as lost."""
UNREADABLE_FOR: Final = timedelta(days=1)
"""The same for a command whose record is damaged: it may well run, but keeps nothing awake."""
KEPT_PER_WORKSPACE: Final = 200
"""Ended commands. The oldest are forgotten."""
KEPT_BYTES_PER_WORKSPACE: Final = 1 << 30
"""Output of ended commands, likewise."""


class ExecState(StrEnum):
    """State of a command's row. `starting` is shown as `running`."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    KILLED = "killed"
    LOST = "lost"

    @property
    def is_alive(self) -> bool:
        return self in ALIVE


ALIVE: Final = (ExecState.STARTING, ExecState.RUNNING)


@dataclass(frozen=True)
class Exec:
    """Row of a command. Its variables are in no row."""

    id: str
    workspace_id: str
    actor_id: str
    actor_name: str
    by_token: bool
    command: Sequence[str]
    cwd: str
    tty: bool
    timeout_seconds: float | None
    key: str | None
    body_hash: bytes | None
    state: ExecState
    reason: str | None
    exit_code: int | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    seen_at: datetime
    """When it last kept its workspace awake: a terminal does so only by what it writes."""
    missing_since: datetime | None
    """The first of the latest looks in which the runtime did not report it."""
    stdout_bytes: int
    stderr_bytes: int
    dropped_bytes: int
    output_removed: bool
    command_omitted: bool = False
    """Whether `command` was not read, because it may be long."""


@dataclass(frozen=True)
class ExecObservation:
    """What the runtime reports of a command."""

    state: ExecState
    started_at: datetime
    ended_at: datetime | None
    exit_code: int | None
    reason: str | None
    stdout_bytes: int
    stderr_bytes: int
    dropped_bytes: int


def check_runs_commands(workspace: Workspace) -> None:
    """Raise a Problem unless a command can start in the workspace now."""
    check_alive(workspace)
    if is_in_error(workspace):
        raise InvalidState("This workspace is in ERROR. Recover it first.")
    check_idle(workspace)
    if workspace.request is not None:
        raise OperationInProgress("A recovery of this workspace is about to begin. Try again in a moment.")
    if workspace.phase is not Phase.RUNNING:
        raise InvalidState(f"This workspace is {workspace.phase}. Start it first, or pass `wake`.")
    if workspace.desired_state is not DesiredState.RUNNING:
        raise InvalidState("This workspace is about to stop. Start it again, or pass `wake`.")


def is_ready_for_commands(workspace: Workspace) -> bool:
    """Return whether a workspace runs, and is to go on running."""
    runs = workspace.phase is Phase.RUNNING and workspace.desired_state is DesiredState.RUNNING
    return runs and workspace.operation is Operation.NONE and workspace.request is None


def refreshed(
    row: Exec, found: ExecObservation | None, now: datetime, *, is_unreadable: bool = False
) -> Mapping[str, object]:
    """Return the columns of a living command's row to change, given what the runtime reports.

    A command that the runtime does not know may be about to start, or its disk is not mounted. It
    counts as lost after a while. If its record is unreadable, nothing is known of it.
    """
    if found is not None:
        return {
            "state": found.state,
            "started_at": found.started_at,
            "ended_at": (found.ended_at or now) if not found.state.is_alive else None,
            "exit_code": found.exit_code,
            "reason": found.reason,
            "seen_at": now if _keeps_awake(row, found) else row.seen_at,
            "missing_since": None,
            "stdout_bytes": found.stdout_bytes,
            "stderr_bytes": found.stderr_bytes,
            "dropped_bytes": found.dropped_bytes,
        }
    if row.state is ExecState.STARTING and not is_unreadable:
        return _lost("NotStarted", now) if now - row.created_at > START_WITHIN else {}
    if row.missing_since is None:
        return {"missing_since": now}
    limit = UNREADABLE_FOR if is_unreadable else UNSEEN_FOR
    return _lost("NotFound", now) if now - row.missing_since > limit else {}


def _lost(reason: str, now: datetime) -> Mapping[str, object]:
    return {"state": ExecState.LOST, "ended_at": now, "reason": reason}


def _keeps_awake(row: Exec, found: ExecObservation) -> bool:
    """Return whether a command keeps its workspace awake: a terminal does so only by what it writes."""
    if not found.state.is_alive:
        return False
    return not row.tty or row.state is ExecState.STARTING or found.stdout_bytes != row.stdout_bytes
