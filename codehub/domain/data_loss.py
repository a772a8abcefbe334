"""A home that was there and is gone is never papered over: ERROR, and its owner chooses."""

from codehub.domain.conditions import holds
from codehub.domain.error_policy import Failure
from codehub.domain.observed_conditions import MISSING, is_home_lost
from codehub.domain.states import ConditionName, ErrorReason
from codehub.domain.workspace import Workspace

_LOST_HOME = (
    "The home directory was there and is gone, and CodeHub did not remove it. "
    "If its disk was not mounted, mount it: once CodeHub sees the home, you can recover with it. "
    "Otherwise recover from an archive, or with an empty home."
)


def home_loss(workspace: Workspace) -> Failure | None:
    if not is_home_lost(workspace):
        return None
    if holds(workspace.conditions, ConditionName.CONTAINER_EXISTS):
        return Failure(ErrorReason.ContainerWithoutVolume, f"The container is still there. {_LOST_HOME}")
    return Failure(ErrorReason.DataLost, _LOST_HOME)


def archive_loss(workspace: Workspace) -> Failure | None:
    """A missing archive is a loss while no home exists, and a warning while one does."""
    missing = workspace.conditions[ConditionName.ARCHIVE_READY].reason == MISSING
    if (
        not missing
        or workspace.home_ctx is not None
        or holds(workspace.conditions, ConditionName.VOLUME_READY)
    ):
        return None
    words = (
        f"The archive {workspace.archive_key} is not in the store. If the store was moved, bring it back "
        "and recover; else recover from another archive, or with an empty home."
    )
    return Failure(ErrorReason.DataLost, words)
