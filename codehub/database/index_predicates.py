"""Conditions that partial indexes share with the queries that they serve.

PostgreSQL takes a partial index only where the query implies its condition. A plan that is kept for whatever
parameters come knows nothing about them, so the words stand in the SQL itself.
"""

from dataclasses import dataclass
from typing import Final

from codehub.domain.error_policy import TERMINAL
from codehub.domain.states import ConditionName, DesiredState, Operation, Phase

FAILED: Final = f"phase = '{Phase.ERROR.value}'"
TRASH: Final = "deleted_at IS NOT NULL AND purged_at IS NULL"
WAIVED: Final = "grace_waived_at IS NOT NULL AND purged_at IS NULL"

_TERMINAL: Final = ", ".join(f"'{reason.value}'" for reason in sorted(TERMINAL))
COUNTED: Final = (
    f"(desired_state = '{DesiredState.RUNNING.value}' "
    f"AND (error_reason IS NULL OR error_reason NOT IN ({_TERMINAL}) OR request IS NOT NULL) "
    f"OR (conditions -> '{ConditionName.CONTAINER_EXISTS.value}' ->> 'status') = 'True')"
)
"""`domain.limits.counts`, for many rows."""


@dataclass(frozen=True)
class TtlPredicates:
    """One of the two TTLs: whom it is for, where it counts from, and where a workspace may override it."""

    phase: Phase
    since: str
    seconds: str

    @property
    def has_default(self) -> str:
        return f"{self._at_rest} AND {self.seconds} IS NULL"

    @property
    def has_own(self) -> str:
        return f"{self._at_rest} AND {self.seconds} > 0"

    @property
    def own_deadline(self) -> str:
        """Without a time zone: only so it is the same for every session, and can be indexed."""
        return f"({self.since} AT TIME ZONE 'UTC') + make_interval(secs => {self.seconds})"

    @property
    def _at_rest(self) -> str:
        return (
            f"phase = '{self.phase.value}' AND desired_state = '{self.phase.value}' "
            f"AND operation = '{Operation.NONE.value}' AND deleted_at IS NULL"
        )


STANDBY_TTL: Final = TtlPredicates(Phase.RUNNING, "last_access_at", "standby_ttl_seconds")
ARCHIVE_TTL: Final = TtlPredicates(Phase.STANDBY, "phase_changed_at", "archive_ttl_seconds")
