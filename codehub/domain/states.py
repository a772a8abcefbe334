"""The words of the state machine: phases, levels, operations, wishes, reasons."""

from enum import StrEnum


class Phase(StrEnum):
    """What people see. Derived from conditions by `judge`, never set by hand."""

    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    ERROR = "ERROR"
    DELETING = "DELETING"
    DELETED = "DELETED"


class Level(StrEnum):
    """What the resources amount to, lowest first."""

    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {Level.PENDING: 0, Level.ARCHIVED: 5, Level.STANDBY: 10, Level.RUNNING: 20}


class DesiredState(StrEnum):
    """Where the owner, or a TTL, wants the workspace. PENDING is only the rest after a cancel."""

    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    DELETED = "DELETED"


class Operation(StrEnum):
    """The one step under way for a workspace."""

    NONE = "NONE"
    PROVISIONING = "PROVISIONING"
    CREATE_EMPTY_ARCHIVE = "CREATE_EMPTY_ARCHIVE"
    RESTORING = "RESTORING"
    STARTING = "STARTING"
    STOPPING = "STOPPING"
    ARCHIVING = "ARCHIVING"
    DELETING = "DELETING"

    @property
    def makes_archive(self) -> bool:
        return self in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE)

    @property
    def has_jobs(self) -> bool:
        """Whether storage jobs do its work."""
        return self.makes_archive or self is Operation.RESTORING

    @property
    def moves_home(self) -> bool:
        return self in (Operation.PROVISIONING, Operation.RESTORING, Operation.ARCHIVING)


CANCELLABLE = frozenset(
    {Operation.PROVISIONING, Operation.RESTORING, Operation.STARTING, Operation.ARCHIVING}
)


class ErrorReason(StrEnum):
    """Why a workspace is, or may soon be, in ERROR."""

    Timeout = "Timeout"
    DataLost = "DataLost"
    ImagePullFailed = "ImagePullFailed"
    ContainerWithoutVolume = "ContainerWithoutVolume"
    ArchiveCorrupted = "ArchiveCorrupted"
    ActionFailed = "ActionFailed"
    Unreachable = "Unreachable"
    RetryExceeded = "RetryExceeded"


class ConditionName(StrEnum):
    VOLUME_READY = "storage.volume_ready"
    ARCHIVE_READY = "storage.archive_ready"
    CONTAINER_EXISTS = "infra.container_exists"
    CONTAINER_READY = "infra.container_ready"
    HEALTHY = "policy.healthy"


class Role(StrEnum):
    USER = "user"
    ADMIN = "admin"
