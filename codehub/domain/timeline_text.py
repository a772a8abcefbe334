"""Sentences of the timeline about requests and operations."""

from datetime import timedelta
from typing import Final

from codehub.domain.awake import Lease
from codehub.domain.states import DesiredState, Operation

REQUESTED: Final = {
    DesiredState.RUNNING: "Start requested.",
    DesiredState.STANDBY: "Stop requested.",
    DesiredState.ARCHIVED: "Archive requested.",
    DesiredState.DELETED: "Delete requested.",
}
CREATED: Final = {
    DesiredState.RUNNING: "Created. It will be started.",
    DesiredState.STANDBY: "Created with a home. The IDE is not started.",
    DesiredState.ARCHIVED: "Created. It will be archived.",
}
BEGUN: Final = {
    Operation.PROVISIONING: "Preparing the home.",
    Operation.RESTORING: "Restoring the home from its archive.",
    Operation.STARTING: "Starting the IDE.",
    Operation.STOPPING: "Stopping the IDE.",
    Operation.ARCHIVING: "Archiving the home.",
    Operation.CREATE_EMPTY_ARCHIVE: "Creating an empty archive.",
    Operation.DELETING: "Deleting the workspace.",
}
FILES_CHANGED: Final = "Changed files. Further changes within an hour have no entry."
_FINISHED: Final = {
    Operation.PROVISIONING: "Prepared the home",
    Operation.RESTORING: "Restored the home",
    Operation.STARTING: "Started",
    Operation.STOPPING: "Stopped",
    Operation.ARCHIVING: "Archived the home",
    Operation.CREATE_EMPTY_ARCHIVE: "Created an empty archive",
    Operation.DELETING: "Deleted",
}


def finished(operation: Operation, took: timedelta) -> str:
    """Return the sentence about an operation that has reached its goal."""
    return f"{_FINISHED[operation]} in {_duration(took)}."


def lease_begun(lease: Lease) -> str:
    return f"Kept awake by a lease until {lease.expires_at:%Y-%m-%d %H:%M} UTC: {lease.reason}"


def lease_ended(lease: Lease) -> str:
    return f"No longer kept awake by a lease: {lease.reason}"


def commands_started(count: int, exec_id: str) -> str:
    """Return the sentence about commands that a token started, within the time of one entry."""
    if count == 1:
        return f"Started the command {exec_id}."
    return f"Started {count} commands within an hour, the last one {exec_id}."


def commands_deleted(count: int, exec_id: str) -> str:
    if count == 1:
        return f"Deleted the command {exec_id}."
    return f"Deleted {count} commands within an hour, the last one {exec_id}."


def _duration(took: timedelta) -> str:
    seconds = took.total_seconds()
    if seconds < 0.1:
        return "under 0.1 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
