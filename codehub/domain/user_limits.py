"""Limits on workspaces of a user, on running workspaces, and on archives.

The numbers are exact: workspaces are counted and admitted under one lock.
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
    """0 means no limit."""


@dataclass(frozen=True)
class Usage:
    """Number of other workspaces that count against the limits."""

    user: int
    everyone: int


@dataclass(frozen=True)
class WorkspaceCounts:
    """Workspaces of one user: existing ones, and those in the trash."""

    living: int
    trash: int


def admit_workspace(counts: WorkspaceCounts, limits: Limits) -> None:
    """Raise WorkspaceLimitExceeded unless the user may have one more workspace.

    Existing workspaces and the trash together may be twice as many. If the trash were not counted,
    creating and deleting in turn would fill the database. If it counted in full, deleting would
    free no slot.
    """
    most = limits.workspaces_per_user
    if counts.living >= most:
        raise WorkspaceLimitExceeded(
            f"You have {counts.living} of {most} workspaces. Delete one that you no longer need first."
        )
    if counts.living + counts.trash >= 2 * most:
        raise WorkspaceLimitExceeded(
            f"You have {counts.living} workspaces and {counts.trash} in the trash; the limit for both "
            f"together is {2 * most}. Restore one from the trash instead, or wait until the oldest have left "
            "the trash."
        )


def admit_archives(taken: int, limits: Limits) -> None:
    """Raise ArchiveLimitExceeded unless a user with `taken` bytes of archives may create another.

    The limit applies to nothing else. If it stopped archiving or deleting, it would endanger homes.
    """
    most = limits.archive_bytes_per_user
    if most and taken >= most:
        raise ArchiveLimitExceeded(
            f"Your archives take {size_text(taken)} of {size_text(most)}. Delete workspaces that you no "
            "longer need: their archives go with the trash, or at once if you delete without an archive."
        )


def admit_undeleted(counts: WorkspaceCounts, limits: Limits) -> None:
    """Raise WorkspaceLimitExceeded unless a workspace may return from the trash."""
    admit_workspace(WorkspaceCounts(counts.living, 0), limits)


def counts_as_running(workspace: Workspace) -> bool:
    """Return whether a workspace counts as running: it is to run, or it still has a container.

    A workspace in ERROR is to run again as soon as its recovery is requested.
    """
    failed = is_terminal(workspace.error_reason) and workspace.request is None
    is_to_run = workspace.desired_state is DesiredState.RUNNING and not failed
    return is_to_run or holds(workspace.conditions, ConditionName.CONTAINER_EXISTS)


def admit_running(usage: Usage, limits: Limits) -> None:
    """Raise RunningLimitExceeded unless one more workspace may run."""
    if usage.user >= limits.per_user:
        raise RunningLimitExceeded(
            f"You already run {usage.user} of {limits.per_user} workspaces. Stop one first."
        )
    if usage.everyone >= limits.everyone:
        raise RunningLimitExceeded(
            f"All users together already run {limits.everyone} workspaces, the most that this installation "
            "allows. Try again when one has stopped."
        )
