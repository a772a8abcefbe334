"""How many workspaces a user may have, and how many may run at once.

Both limits are exact: workspaces are counted and admitted under one lock.
"""

from dataclasses import dataclass
from typing import Final

from codehub.domain.conditions import holds
from codehub.domain.disk import size_text
from codehub.domain.error_policy import is_terminal
from codehub.domain.problems import ArchiveLimitExceeded, RunningLimitExceeded, WorkspaceLimitExceeded
from codehub.domain.states import ConditionName, DesiredState
from codehub.domain.workspace import Workspace

MAX_WORKSPACES_PER_USER: Final = 200


@dataclass(frozen=True)
class Limits:
    per_user: int
    everyone: int
    workspaces_per_user: int = MAX_WORKSPACES_PER_USER
    archive_bytes_per_user: int = 0
    """0 stands for no limit."""


@dataclass(frozen=True)
class Usage:
    """Workspaces that count, the one in question left out."""

    user: int
    everyone: int


@dataclass(frozen=True)
class WorkspaceCounts:
    """Workspaces of one user: living ones, and deleted ones that can still be undeleted."""

    living: int
    trash: int


def admit_workspace(owned: WorkspaceCounts, limits: Limits) -> None:
    """Raise WorkspaceLimitExceeded unless the user may have one more living workspace.

    The trash has no limit while there is room for twice as many in all. Without this second bound,
    creating and deleting in turn would fill the database; with the trash counted in full, deleting
    would make no room.
    """
    most = limits.workspaces_per_user
    if owned.living >= most:
        raise WorkspaceLimitExceeded(
            f"You have {owned.living} of {most} workspaces. Delete one that you no longer need first."
        )
    if owned.living + owned.trash >= 2 * most:
        raise WorkspaceLimitExceeded(
            f"You have {owned.living} workspaces and {owned.trash} in the trash; the limit for both together "
            f"is {2 * most}. Restore one from the trash, or wait until the oldest have left the trash."
        )


def admit_archives(taken: int, limits: Limits) -> None:
    """Raise ArchiveLimitExceeded unless a user with so many bytes of archives may have another workspace.

    Nothing else asks: a limit that kept a home from being archived, or deleted, would endanger it.
    """
    most = limits.archive_bytes_per_user
    if most and taken >= most:
        raise ArchiveLimitExceeded(
            f"Your archives take {size_text(taken)} of {size_text(most)}. Delete workspaces that you no "
            "longer need: their archives go with the trash, or at once if you delete without an archive."
        )


def admit_undeleted(owned: WorkspaceCounts, limits: Limits) -> None:
    """Raise WorkspaceLimitExceeded unless a workspace may return from the trash."""
    admit_workspace(WorkspaceCounts(owned.living, 0), limits)


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
