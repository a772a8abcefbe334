"""Level and phase of a workspace, derived from its conditions."""

from datetime import datetime

from codehub.domain.conditions import Conditions, holds
from codehub.domain.error_policy import is_terminal
from codehub.domain.states import ConditionName, ErrorReason, Level, Phase


def level_of(conditions: Conditions) -> Level:
    """Return the level that a workspace's resources have reached."""
    if holds(conditions, ConditionName.VOLUME_READY):
        ready = holds(conditions, ConditionName.CONTAINER_READY)
        return Level.RUNNING if ready else Level.STANDBY
    if holds(conditions, ConditionName.ARCHIVE_READY):
        return Level.ARCHIVED
    return Level.PENDING


def judge(
    conditions: Conditions,
    deleted_at: datetime | None,
    error: ErrorReason | None,
    grace_waived_at: datetime | None,
) -> Phase:
    """Return the phase that people see. The first match wins.

    A deleted workspace with a terminal error, or without a grace period, is DELETED although its
    volume exists: the volume only waits for the purge.
    """
    if deleted_at is not None:
        container = holds(conditions, ConditionName.CONTAINER_EXISTS)
        only_waits = is_terminal(error) or grace_waived_at is not None
        volume = holds(conditions, ConditionName.VOLUME_READY) and not only_waits
        return Phase.DELETING if container or volume else Phase.DELETED
    if is_terminal(error) or not holds(conditions, ConditionName.HEALTHY):
        return Phase.ERROR
    return Phase(level_of(conditions).value)
