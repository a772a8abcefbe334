"""Conditions: observed facts with a reason and the time they last changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from codehub.domain.states import ConditionName


@dataclass(frozen=True)
class Condition:
    status: bool
    reason: str
    message: str
    last_transition_time: datetime


Conditions = Mapping[ConditionName, Condition]


def initial_conditions(now: datetime) -> dict[ConditionName, Condition]:
    """Return the conditions of a workspace that was never observed."""
    return {name: Condition(name is ConditionName.HEALTHY, "NotObserved", "", now) for name in ConditionName}


def updated_condition(
    old: Conditions, name: ConditionName, status: bool, reason: str, message: str, now: datetime
) -> Condition:
    """Return the condition after an observation. Its time changes only with its status."""
    before = old[name]
    if before.status == status:
        if (before.reason, before.message) == (reason, message):
            return before
        return Condition(status, reason, message, before.last_transition_time)
    return Condition(status, reason, message, now)


def holds(conditions: Conditions, name: ConditionName) -> bool:
    return conditions[name].status
