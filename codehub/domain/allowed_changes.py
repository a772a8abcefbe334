"""Which wishes a workspace accepts now. Each rule raises the Problem that a person reads."""

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
    """A way out of ERROR: look again, the home that is there, one of the archives, or an empty home."""

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


def in_error(workspace: Workspace) -> bool:
    return workspace.phase is Phase.ERROR or is_terminal(workspace.error_reason)


def check_desired_state(workspace: Workspace, desired: DesiredState) -> bool:
    """Whether the wish changes anything; asking for what is already wished changes nothing and is fine."""
    check_alive(workspace)
    if desired not in REQUESTABLE_STATES:
        raise ValidationFailed("desired_state must be RUNNING, STANDBY or ARCHIVED.")
    if workspace.desired_state is desired:
        return False
    check_idle(workspace)
    if workspace.request is not None:
        raise OperationInProgress("A recovery of this workspace is about to begin. Try again in a moment.")
    if in_error(workspace):
        raise InvalidState("This workspace is in ERROR. Recover it first.")
    return True


def may_stop_for_disk(workspace: Workspace) -> bool:
    """Whether the disk watchdog may stop it: it runs, is wanted RUNNING, and nothing is under way."""
    runs = workspace.phase is Phase.RUNNING and workspace.desired_state is DesiredState.RUNNING
    idle = workspace.operation is Operation.NONE and workspace.request is None
    return runs and idle and workspace.deleted_at is None


def check_delete(workspace: Workspace) -> None:
    check_alive(workspace)
    check_idle(workspace)


def check_delete_now(workspace: Workspace, confirmed_name: str) -> bool:
    """Whether a delete without archive and grace changes anything. It is confirmed by the name."""
    if workspace.purged_at is not None:
        raise WorkspaceNotFound
    if confirmed_name != workspace.name:
        raise ValidationFailed("confirm: must be the name of the workspace, exactly as it is written.")
    if workspace.grace_waived_at is not None:
        return False
    check_idle(workspace)
    return True


def check_undelete(workspace: Workspace) -> DesiredState:
    """Where an undeleted workspace comes back to: the level it stands at."""
    if workspace.deleted_at is None:
        raise InvalidState("This workspace is not deleted.")
    if workspace.purged_at is not None:
        raise WorkspaceNotFound
    check_idle(workspace)
    return DesiredState(level_of(workspace.conditions).value)


def check_recover(workspace: Workspace, source: RecoverSource | None, archive_op_id: str | None) -> None:
    check_alive(workspace)
    check_idle(workspace)
    if not in_error(workspace):
        raise InvalidState("This workspace is not in ERROR: there is nothing to recover.")
    if workspace.request is not None:
        raise OperationInProgress("A recovery was already asked for.")
    if source is RecoverSource.ARCHIVE and archive_op_id is None:
        raise ValidationFailed("Say which archive to restore: archive_op_id is missing.")
    if source is not RecoverSource.ARCHIVE and archive_op_id is not None:
        raise ValidationFailed('archive_op_id goes with "from": "archive" only.')
    ways = recovery_options(workspace)
    if source is None and not {RecoveryOption.LOOK_AGAIN, RecoveryOption.HOME} & set(ways):
        raise ValidationFailed(
            "The home of this workspace was lost. Choose what to restore: "
            '{"from": "archive", "archive_op_id": ...} or {"from": "empty"}.'
        )
    if source is not None and RecoveryOption.EMPTY not in ways:
        raise ValidationFailed("The home of this workspace is there: it will not be replaced.")


def recovery_options(workspace: Workspace) -> tuple[RecoveryOption, ...]:
    """What its owner can choose to bring a workspace out of ERROR; none while a choice is carried out."""
    busy = workspace.operation is not Operation.NONE or workspace.request is not None
    if workspace.deleted_at is not None or busy or not in_error(workspace):
        return ()
    if holds(workspace.conditions, ConditionName.VOLUME_READY):
        return (RecoveryOption.HOME if workspace.error_reason in _LOSSES else RecoveryOption.LOOK_AGAIN,)
    if home_is_lost(workspace):
        return (RecoveryOption.ARCHIVE, RecoveryOption.EMPTY)
    return (RecoveryOption.LOOK_AGAIN, RecoveryOption.ARCHIVE, RecoveryOption.EMPTY)


def home_is_lost(workspace: Workspace) -> bool:
    """Whether a recovery needs a choice of what to restore."""
    if workspace.error_reason not in _LOSSES:
        return False
    expected = ConditionName.VOLUME_READY if workspace.home_ctx else ConditionName.ARCHIVE_READY
    return not holds(workspace.conditions, expected)


def check_cancel(workspace: Workspace) -> None:
    check_alive(workspace)
    if workspace.operation not in CANCELLABLE:
        raise InvalidState("There is nothing that can be cancelled.")
    if workspace.operation is Operation.ARCHIVING and archive_committed(workspace):
        raise InvalidState(
            "The archive is already safe; only its volume is being removed. It cannot be cancelled."
        )


def archive_committed(workspace: Workspace) -> bool:
    """Whether the archive of the present claim is the workspace's archive already."""
    if workspace.archive_key is None or workspace.archive_op_id is None:
        return False
    return workspace.archive_key == archive_key(workspace.id, workspace.archive_op_id)
