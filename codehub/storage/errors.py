"""Failures of storage operations, one class each. None of them means that a home was damaged."""

import errno

from codehub.domain.observation import Generation
from codehub.domain.states import ErrorReason


class StorageProblem(Exception):  # noqa: N818 - the names of the specification
    """Base of the failures of storage operations."""

    default_message = "The home could not be handled."
    reason = ErrorReason.ActionFailed
    transient = False
    """Whether a retry may succeed."""

    def __init__(self, message: str | None = None) -> None:
        self.message = message or self.default_message
        super().__init__(self.message)


class Unobservable(StorageProblem):
    """Failure to read the disk or the store. Its content is unknown, not gone."""

    default_message = "The disk or the archive store cannot be read; its content is unknown, not gone."
    reason = ErrorReason.Unreachable
    transient = True


class StoreTrouble(StorageProblem):
    """Failure of a request to the archive store."""

    default_message = "A request to the archive store failed."
    reason = ErrorReason.Unreachable
    transient = True


class InvalidKey(StorageProblem):
    """Key that belongs to neither a home nor an archive."""

    default_message = "This is not a key of a home or an archive."


class VolumeBusy(StorageProblem):
    """Conflict with a storage job that works on the home."""

    default_message = "A storage job is working on this home."


class StaleEpoch(StorageProblem):
    """Rejection of a leader by a home that a newer leader has fenced."""

    def __init__(self, epoch: int, newest: int) -> None:
        super().__init__(f"epoch {epoch} is over: epoch {newest} has already worked on this home")
        self.newest = newest


class GenerationMismatch(StorageProblem):
    """Conflict of a home's generation with the expected one."""

    default_message = "The home on the disk is of another generation than the expected one."

    @classmethod
    def found(cls, generation: Generation) -> "GenerationMismatch":
        return cls(
            f"a home of operation {generation.op_id} already exists and is left as it is; a recovery from "
            "an archive, or with an empty home, sets it aside"
        )


class NoSpace(StorageProblem):
    """Lack of space on the disk."""

    default_message = "The disk is full."


class CannotArchive(StorageProblem):
    """Home whose content an archive cannot hold completely."""

    default_message = "The home cannot be put into an archive completely."


class HomeChanged(StorageProblem):
    """Conflict with a change of the home since it was archived."""

    default_message = "The home has changed since it was archived."


class ArchiveMissing(StorageProblem):
    """Absence of an archive from the store."""

    default_message = "The archive is not in the store."
    reason = ErrorReason.DataLost


class CorruptedArchive(StorageProblem):
    """Archive that differs from the one originally written."""

    default_message = "The archive is not what was originally written."
    reason = ErrorReason.ArchiveCorrupted


class JobIsRunning(StorageProblem):
    """Conflict with a job that still runs."""

    default_message = "The job is still running."


class TooManyArchives(StorageProblem):
    """Excess of the number of archives made at once."""

    default_message = "As many archives as allowed are being made."


def reports_full_disk(text: str) -> bool:
    """Return whether a message of tar, the store library or another tool reports a full disk."""
    signs = ("No space left on device", "Disk quota exceeded", "Wrote only ")  # the last one is tar's
    return any(sign in text for sign in signs)


def from_os_error(error: OSError, what: str) -> StorageProblem:
    """Return the problem behind a failure of the local disk."""
    message = f"{what}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"{message}; make room on the disk")
    return StorageProblem(message)
