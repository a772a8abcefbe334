"""Changes that a workspace accepts in its present state.

Each check raises a Problem for people to read.
"""

from enum import StrEnum

from codehub.domain.archive_keys import archive_key
from codehub.domain.conditions import holds
from codehub.domain.error_policy import is_terminal
from codehub.domain.judge import level_of
from codehub.domain.problems import InvalidState, OperationInProgress, ValidationFailed, WorkspaceNotFound
from codehub.domain.states import CANCELLABLE, ConditionName, DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import RecoverSource, Workspace

_LOSSES = (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)


class RecoveryOption(StrEnum):
    """Way to recover from ERROR: check again, keep the home, restore an archive, or start empty."""

    LOOK_AGAIN = "look_again"
    HOME = "home"
    ARCHIVE = "archive"
    EMPTY = "empty"


REQUESTABLE_STATES = (DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED)


def check_alive(workspace: Workspace) -> None:
    if workspace.deleted_at is not None:
        raise WorkspaceNotFound


def check_idle(workspace: Workspace) -> None:
    if workspace.operation is not Operation.NONE:
        raise OperationInProgress(
            f"{workspace.operation} is under way for this workspace. Wait until it ends, or cancel it."
        )


def is_in_error(workspace: Workspace) -> bool:
    return workspace.phase is Phase.ERROR or is_terminal(workspace.error_reason)


def check_desired_state(workspace: Workspace, desired: DesiredState) -> bool:
    """Return whether the request changes the desired state.

    A request that changes nothing is allowed.
    """
    check_alive(workspace)
    if desired not in REQUESTABLE_STATES:
        raise ValidationFailed("desired_state must be RUNNING, STANDBY or ARCHIVED.")
    if workspace.desired_state is desired:
        return False
    check_idle(workspace)
    if workspace.archive_to_restore is not None:
        raise OperationInProgress("An archive of this workspace is about to be restored. Wait, or cancel it.")
    if workspace.request is not None:
        raise OperationInProgress("A recovery of this workspace is about to begin. Try again in a moment.")
    if is_in_error(workspace):
        raise InvalidState("This workspace is in ERROR. Recover it first.")
    return True


def check_may_hold(workspace: Workspace) -> None:
    """Check that a command or a lease can keep it awake: it runs, and nothing is about to stop it."""
    check_alive(workspace)
    runs = workspace.phase is Phase.RUNNING and workspace.desired_state is DesiredState.RUNNING
    if not runs or workspace.operation is not Operation.NONE:
        raise InvalidState("This workspace is not running. Start it first, and wait until it runs.")


def check_restore(workspace: Workspace, archive_op_id: str) -> bool:
    """Return whether a request to restore an archive changes anything (ADR 0038)."""
    check_alive(workspace)
    if workspace.archive_to_restore == archive_op_id:
        return False
    check_idle(workspace)
    if workspace.request is not None:
        raise OperationInProgress("Another request for this workspace is about to begin. Wait until it ends.")
    if is_in_error(workspace):
        raise InvalidState("This workspace is in ERROR. Recover it first.")
    if DesiredState.RUNNING in (workspace.phase.value, workspace.desired_state):
        raise InvalidState("This workspace runs. Stop it first, then restore the archive.")
    at_rest = workspace.phase in (Phase.STANDBY, Phase.ARCHIVED)
    if not at_rest or workspace.desired_state.value != workspace.phase.value:
        raise InvalidState("An archive can be restored only while the workspace is stopped or archived.")
    return True


def may_stop_for_disk(workspace: Workspace) -> bool:
    """Return whether the disk watchdog may stop it: it runs, and no operation or request is under way."""
    runs = workspace.phase is Phase.RUNNING and workspace.desired_state is DesiredState.RUNNING
    idle = workspace.operation is Operation.NONE and workspace.request is None
    return runs and idle and workspace.deleted_at is None


def check_delete(workspace: Workspace) -> None:
    check_alive(workspace)
    check_idle(workspace)


def check_delete_now(workspace: Workspace, confirmed_name: str) -> bool:
    """Return whether a delete without archive and grace period changes anything (ADR 0025)."""
    if workspace.purged_at is not None:
        raise WorkspaceNotFound
    if confirmed_name != workspace.name:
        raise ValidationFailed("confirm: must be the name of the workspace, exactly as it is written.")
    if workspace.grace_waived_at is not None:
        return False
    check_idle(workspace)
    return True


def check_undelete(workspace: Workspace) -> DesiredState:
    """Return the desired state after an undelete: the level of the workspace."""
    if workspace.deleted_at is None:
        raise InvalidState("This workspace is not deleted.")
    if workspace.purged_at is not None:
        raise WorkspaceNotFound
    check_idle(workspace)
    return DesiredState(level_of(workspace.conditions).value)


def check_recover(workspace: Workspace, source: RecoverSource | None, archive_op_id: str | None) -> None:
    check_alive(workspace)
    check_idle(workspace)
    if not is_in_error(workspace):
        raise InvalidState("This workspace is not in ERROR: there is nothing to recover.")
    if workspace.request is not None:
        raise OperationInProgress("A recovery was already requested.")
    if source is RecoverSource.ARCHIVE and archive_op_id is None:
        raise ValidationFailed("Choose an archive to restore: archive_op_id is missing.")
    if source is not RecoverSource.ARCHIVE and archive_op_id is not None:
        raise ValidationFailed('archive_op_id is allowed only with "from": "archive".')
    options = recovery_options(workspace)
    if source is None and not {RecoveryOption.LOOK_AGAIN, RecoveryOption.HOME} & set(options):
        raise ValidationFailed(
            "The home of this workspace was lost. Choose what to restore: "
            '{"from": "archive", "archive_op_id": ...} or {"from": "empty"}.'
        )
    if source is not None and RecoveryOption.EMPTY not in options:
        raise ValidationFailed("The home of this workspace exists, so it cannot be replaced.")


def recovery_options(workspace: Workspace) -> tuple[RecoveryOption, ...]:
    """Return the owner's options to recover from ERROR; none while a recovery is under way."""
    busy = workspace.operation is not Operation.NONE or workspace.request is not None
    if workspace.deleted_at is not None or busy or not is_in_error(workspace):
        return ()
    if holds(workspace.conditions, ConditionName.VOLUME_READY):
        return (RecoveryOption.HOME if workspace.error_reason in _LOSSES else RecoveryOption.LOOK_AGAIN,)
    if home_is_lost(workspace):
        return (RecoveryOption.ARCHIVE, RecoveryOption.EMPTY)
    return (RecoveryOption.LOOK_AGAIN, RecoveryOption.ARCHIVE, RecoveryOption.EMPTY)


def home_is_lost(workspace: Workspace) -> bool:
    """Return whether a recovery needs a choice of what to restore."""
    if workspace.error_reason not in _LOSSES:
        return False
    expected = ConditionName.VOLUME_READY if workspace.home_ctx else ConditionName.ARCHIVE_READY
    return not holds(workspace.conditions, expected)


def check_cancel(workspace: Workspace) -> None:
    check_alive(workspace)
    if workspace.operation not in CANCELLABLE and workspace.archive_to_restore is None:
        raise InvalidState("There is nothing to cancel.")
    if workspace.operation is Operation.ARCHIVING and archive_committed(workspace):
        if archives_for_restore(workspace):
            return
        raise InvalidState(
            "This can no longer be cancelled: the archive is complete, and the volume is being removed."
        )


def archives_for_restore(workspace: Workspace) -> bool:
    """Return whether ARCHIVING prepares a restore: in standby, nothing else archives (ADR 0038).

    A cancel then costs nothing: the home stays, or comes back from the archive just made.
    """
    return workspace.operation is Operation.ARCHIVING and workspace.desired_state is DesiredState.STANDBY


def archive_committed(workspace: Workspace) -> bool:
    """Return whether the archive of the current claim is already the workspace's archive."""
    if workspace.archive_key is None or workspace.archive_op_id is None:
        return False
    return workspace.archive_key == archive_key(workspace.id, workspace.archive_op_id)
