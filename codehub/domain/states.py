"""Enums of the state machine: phases, levels, desired states, operations, error reasons."""

from enum import StrEnum


class Phase(StrEnum):
    """State of a workspace as people see it. `judge` derives it from the conditions."""

    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    ERROR = "ERROR"
    DELETING = "DELETING"
    DELETED = "DELETED"


class Level(StrEnum):
    """State of a workspace's resources, lowest first."""

    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"


class DesiredState(StrEnum):
    """State that the owner or a TTL wants. PENDING occurs only after a cancel."""

    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    DELETED = "DELETED"


class Operation(StrEnum):
    """Operation under way for a workspace. There is at most one."""

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
        """Whether storage jobs carry it out."""
        return self.makes_archive or self is Operation.RESTORING

    @property
    def moves_home(self) -> bool:
        return self in (Operation.PROVISIONING, Operation.RESTORING, Operation.ARCHIVING)


CANCELLABLE = frozenset(
    {Operation.PROVISIONING, Operation.RESTORING, Operation.STARTING, Operation.ARCHIVING}
)


class ErrorReason(StrEnum):
    """Reason why a workspace is in ERROR, or may soon be."""

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
