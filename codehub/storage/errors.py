"""What can go wrong with a home, each as one class. Nothing here ever means that a home was harmed."""

import errno

from codehub.domain.observation import Generation
from codehub.domain.states import ErrorReason


class StorageProblem(Exception):  # noqa: N818 - the names of the specification
    """The home could not be handled."""

    reason = ErrorReason.ActionFailed
    passing = False

    def __init__(self, message: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        super().__init__(self.message)


class Unobservable(StorageProblem):
    """The disk or the store could not be looked at; what it holds is unknown, not gone."""

    reason = ErrorReason.Unreachable
    passing = True


class StoreTrouble(StorageProblem):
    """The archive store did not do what it was asked to."""

    reason = ErrorReason.Unreachable
    passing = True


class InvalidKey(StorageProblem):
    """This is not a key of a home or an archive."""


class VolumeBusy(StorageProblem):
    """A storage job is working on this home."""


class StaleEpoch(StorageProblem):
    """A newer leader has taken over this home."""

    def __init__(self, epoch: int, newest: int) -> None:
        super().__init__(f"epoch {epoch} is over: epoch {newest} has already worked on this home")
        self.newest = newest


class GenerationMismatch(StorageProblem):
    """The home that is there is of another generation than the one that was meant."""

    @classmethod
    def found(cls, generation: Generation) -> "GenerationMismatch":
        return cls(
            f"a home of operation {generation.op_id} is already there and is left alone; a recovery from an "
            "archive, or with an empty home, sets it aside"
        )


class NoSpace(StorageProblem):
    """The disk is full."""


class CannotArchive(StorageProblem):
    """The home cannot be put into an archive completely."""


class HomeChanged(StorageProblem):
    """The home has changed since it was archived."""


class ArchiveMissing(StorageProblem):
    """The archive is not in the store."""

    reason = ErrorReason.DataLost


class CorruptedArchive(StorageProblem):
    """The archive is not what was once written."""

    reason = ErrorReason.ArchiveCorrupted


class JobIsRunning(StorageProblem):
    """The job still runs."""


class TooManyArchives(StorageProblem):
    """As many jobs as may run at once are running."""


def reports_full_disk(text: str) -> bool:
    """Tools and the store library tell of a full disk in words only; "Wrote only" is what tar says first."""
    return any(words in text for words in ("No space left on device", "Disk quota exceeded", "Wrote only "))


def from_os(error: OSError, what: str) -> StorageProblem:
    """A failure of the local disk, in words a person can act on."""
    words = f"{what}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"{words}; make room on the disk")
    return StorageProblem(words)
