"""Predicates that partial indexes share with the queries that they serve.

PostgreSQL uses a partial index only if the query implies its predicate. A generic plan does not
know its parameters, so the predicates are literals in the SQL.
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
"""`domain.user_limits.counts_as_running`, as SQL."""


@dataclass(frozen=True)
class TtlPredicates:
    """Predicates of one TTL: its phase, and the columns of its start and of its own duration."""

    phase: Phase
    since: str
    seconds: str

    @property
    def has_default(self) -> str:
        return f"{self.is_idle} AND {self.seconds} IS NULL"

    @property
    def has_own(self) -> str:
        return f"{self.is_idle} AND {self.seconds} > 0"

    @property
    def own_deadline(self) -> str:
        """Expression without a time zone: immutable, so that it can be indexed."""
        return f"({self.since} AT TIME ZONE 'UTC') + make_interval(secs => {self.seconds})"

    @property
    def is_idle(self) -> str:
        return (
            f"phase = '{self.phase.value}' AND desired_state = '{self.phase.value}' "
            f"AND operation = '{Operation.NONE.value}' AND deleted_at IS NULL"
        )


STANDBY_TTL: Final = TtlPredicates(Phase.RUNNING, "last_access_at", "standby_ttl_seconds")
ARCHIVE_TTL: Final = TtlPredicates(Phase.STANDBY, "phase_changed_at", "archive_ttl_seconds")

WITHOUT_PERSON_SINCE: Final = "greatest(person_access_at, phase_changed_at)"
"""`domain.ttl.without_person_since`, or earlier in a row that has no use by a person."""
MAY_STAND_BY: Final = f"{STANDBY_TTL.is_idle} AND standby_ttl_seconds IS DISTINCT FROM 0"

ALIVE_EXECS = "execs.state IN ('starting', 'running')"
"""Commands that may run."""
