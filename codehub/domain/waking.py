"""Waking a workspace for a call that needs it running."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from codehub.domain.allowed_changes import check_alive, is_in_error
from codehub.domain.execs import check_runs_commands, is_ready_for_commands
from codehub.domain.problems import InvalidState
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace

DEFAULT_WAIT_SECONDS: Final = 45
MOST_WAIT_SECONDS: Final = 55


class Wake(StrEnum):
    """How far a call may wake its workspace."""

    NO = "false"
    START = "true"
    RESTORE = "restore"


class WakeAction(StrEnum):
    READY = "ready"
    REQUEST_START = "request_start"
    WAIT = "wait"


@dataclass(frozen=True)
class WakeStep:
    """What to do next, and what the caller waits for."""

    action: WakeAction
    sentence: str = ""


def next_wake_step(workspace: Workspace, wake: Wake) -> WakeStep:
    """Return the next step until the workspace runs, or raise the Problem that stands in the way."""
    check_alive(workspace)
    if is_ready_for_commands(workspace):
        return WakeStep(WakeAction.READY)
    if wake is Wake.NO:
        check_runs_commands(workspace)
    if is_in_error(workspace) and workspace.request is None and workspace.operation is Operation.NONE:
        raise InvalidState("This workspace is in ERROR. Recover it first.")
    if workspace.operation is not Operation.NONE:
        return WakeStep(WakeAction.WAIT, f"{workspace.operation} is under way")
    if workspace.request is not None:
        return WakeStep(WakeAction.WAIT, "a recovery is about to begin")
    if workspace.desired_state is DesiredState.RUNNING:
        return WakeStep(WakeAction.WAIT, f"it is {workspace.phase}, and its start is about to begin")
    if workspace.phase in (Phase.ARCHIVED, Phase.PENDING) and wake is not Wake.RESTORE:
        raise InvalidState(
            f'This workspace is {workspace.phase}. Start it first, or pass `"wake": "restore"`.'
        )
    return WakeStep(WakeAction.REQUEST_START, "its start was requested")
