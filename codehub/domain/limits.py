"""How many workspaces may run at once. Exact: counted and decided under one lock."""

from dataclasses import dataclass

from codehub.domain.conditions import holds
from codehub.domain.errors import is_terminal
from codehub.domain.problems import RunningLimitExceeded
from codehub.domain.states import ConditionName, DesiredState
from codehub.domain.workspace import Workspace


@dataclass(frozen=True)
class Limits:
    per_user: int
    everyone: int


@dataclass(frozen=True)
class Usage:
    """Workspaces that count, the one in question left out."""

    user: int
    everyone: int


def counts(workspace: Workspace) -> bool:
    """Whether a workspace counts against the limits: it shall run, or it still has a container.

    One that failed for good shall run again as soon as its recovery is asked for.
    """
    failed = is_terminal(workspace.error_reason) and workspace.request is None
    shall_run = workspace.desired_state is DesiredState.RUNNING and not failed
    return shall_run or holds(workspace.conditions, ConditionName.CONTAINER_EXISTS)


def admit(usage: Usage, limits: Limits) -> None:
    """Raise RunningLimitExceeded unless one more workspace may run."""
    if usage.user >= limits.per_user:
        raise RunningLimitExceeded(
            f"You already run {usage.user} of {limits.per_user} workspaces. Stop one first."
        )
    if usage.everyone >= limits.everyone:
        raise RunningLimitExceeded(
            f"All {limits.everyone} places of this installation are taken. Try again when one is free."
        )
