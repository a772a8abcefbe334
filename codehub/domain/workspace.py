"""A workspace as the database last recorded it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from codehub.domain.conditions import Conditions
from codehub.domain.observation import Generation, Progress
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase


class RequestKind(StrEnum):
    RECOVER = "recover"
    CANCEL = "cancel"
    RESTORE = "restore"


class RecoverSource(StrEnum):
    ARCHIVE = "archive"
    EMPTY = "empty"


@dataclass(frozen=True)
class PendingRequest:
    """Request to recover, to cancel, or to restore an archive, waiting for the controller."""

    kind: RequestKind
    actor: str
    source: RecoverSource | None = None
    archive_op_id: str | None = None


@dataclass(frozen=True)
class Workspace:
    """Row of a workspace without its memo, which only the API needs."""

    id: str
    number: int
    owner_id: str
    name: str
    description: str
    image_ref: str
    instance_backend: str
    storage_backend: str
    home_store_key: str
    standby_ttl_seconds: int | None
    archive_ttl_seconds: int | None
    awake_cpu_percent: int | None
    """CPU use above which it stays awake, in percent of one core. None: the default. 0: none."""
    desired_state: DesiredState
    deleted_at: datetime | None
    purged_at: datetime | None
    grace_waived_at: datetime | None
    """When a deletion without an archive and without a grace period was requested (ADR 0025)."""
    keep_until: datetime | None
    last_access_at: datetime
    """The last use, by a person or a program."""
    person_access_at: datetime | None
    """The last use by a person. None in rows that an older CodeHub wrote: then it is the last use."""
    holds_changed_at: datetime | None
    """When a command or lease that keeps it awake last began or ended."""
    request: PendingRequest | None
    conditions: Conditions
    observed_at: datetime | None
    phase: Phase
    phase_changed_at: datetime
    operation: Operation
    op_id: str | None
    op_started_at: datetime | None
    progress: Progress | None
    progress_at: datetime | None
    archive_op_id: str | None
    archive_key: str | None
    upstream: str | None
    error_count: int
    error_reason: ErrorReason | None
    error_message: str | None
    next_retry_at: datetime | None
    started_at: datetime | None
    home_ctx: Generation | None
    created_at: datetime
    updated_at: datetime
    version: int

    @property
    def archive_to_restore(self) -> str | None:
        """The archive_op_id that a pending request to restore names (ADR 0038)."""
        if self.request is None or self.request.kind is not RequestKind.RESTORE:
            return None
        return self.request.archive_op_id
