"""Loss of a home or an archive: the workspace goes to ERROR, and its owner chooses the recovery."""

from codehub.domain.conditions import holds
from codehub.domain.error_policy import Failure
from codehub.domain.observed_conditions import MISSING, is_home_lost
from codehub.domain.states import ConditionName, ErrorReason
from codehub.domain.workspace import Workspace

_LOST_HOME = (
    "The home directory is missing, and CodeHub did not remove it. "
    "If its disk is not mounted, mount it, then recover with the home. "
    "Otherwise recover from an archive, or with an empty home."
)


def home_loss(workspace: Workspace) -> Failure | None:
    """Return the failure if the home is lost, else None."""
    if not is_home_lost(workspace):
        return None
    if holds(workspace.conditions, ConditionName.CONTAINER_EXISTS):
        return Failure(ErrorReason.ContainerWithoutVolume, f"The container still exists. {_LOST_HOME}")
    return Failure(ErrorReason.DataLost, _LOST_HOME)


def archive_loss(workspace: Workspace) -> Failure | None:
    """Return the failure if the archive is missing and no home exists, else None."""
    missing = workspace.conditions[ConditionName.ARCHIVE_READY].reason == MISSING
    if (
        not missing
        or workspace.home_ctx is not None
        or holds(workspace.conditions, ConditionName.VOLUME_READY)
    ):
        return None
    message = (
        f"The archive {workspace.archive_key} is not in the store. If the store was moved, restore "
        "its location, then recover the workspace. Otherwise recover from another archive, or with an "
        "empty home."
    )
    return Failure(ErrorReason.DataLost, message)
