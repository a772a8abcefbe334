"""From conditions to the level and the phase."""

from datetime import datetime

from codehub.domain.conditions import Conditions, holds
from codehub.domain.error_policy import is_terminal
from codehub.domain.states import ConditionName, ErrorReason, Level, Phase


def level_of(conditions: Conditions) -> Level:
    """What the resources amount to."""
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
    """What people see; the first match wins.

    A deleted workspace with a terminal error, or without a grace period, keeps its volume, which only waits
    for the purge: it is DELETED.
    """
    if deleted_at is not None:
        container = holds(conditions, ConditionName.CONTAINER_EXISTS)
        only_waits = is_terminal(error) or grace_waived_at is not None
        volume = holds(conditions, ConditionName.VOLUME_READY) and not only_waits
        return Phase.DELETING if container or volume else Phase.DELETED
    if is_terminal(error) or not holds(conditions, ConditionName.HEALTHY):
        return Phase.ERROR
    return Phase(level_of(conditions).value)
