"""Files in which a storage job reports: progress.json while it runs, result.json at the end."""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from codehub.domain.observation import ArchiveFact, JobFact, JobState, Progress
from codehub.domain.states import ErrorReason
from codehub.host.atomic_files import replace_file
from codehub.host.durable_files import fsync_path, read_if_there

_PROGRESS_INTERVAL = 0.2
_PROGRESS = "progress.json"
_RESULT = "result.json"
_UNFINISHED_RESULT = "result.json.tmp"
_RESERVED_BYTES = 16 << 10


@dataclass(frozen=True)
class Result:
    """Content of result.json."""

    ok: bool
    reason: ErrorReason | None
    message: str
    archive: ArchiveFact | None = None
    outdated: bool = False
    seconds: float = 0.0
    left_out: str = ""
    changed: str = ""


class Reporter:
    """Writer of a job's progress, at most five times a second."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _PROGRESS
        self._next = 0.0
        self.total: int | None = None
        self.left_out = ""
        """Entries left out of the archive. Kept over attempts, as the next may find it complete."""
        self.changed = ""
        """Entries that a restore changed. Kept over attempts, too."""

    def progress(self, done: int, files: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_INTERVAL
            # Progress is optional. A job may run on a full disk to free space.
            with suppress(OSError):
                replace_file(self._path, json.dumps(asdict(Progress(done, self.total, files))).encode())


def reserve_result_space(directory: Path) -> None:
    """Reserve disk space for the result: a job without a result counts as killed.

    On a full disk the job goes on without, as it may be about to free space.
    """
    with suppress(OSError), _open_unfinished_result(directory) as file:
        os.posix_fallocate(file.fileno(), 0, _RESERVED_BYTES)


def write_result(directory: Path, result: Result) -> None:
    """Write the result into the reserved space, and rename the file once it is on the disk."""
    with _open_unfinished_result(directory) as file:
        file.write(json.dumps(asdict(result)).encode())
        file.truncate()
        os.fsync(file.fileno())
    (directory / _UNFINISHED_RESULT).rename(directory / _RESULT)
    fsync_path(directory)


def _open_unfinished_result(directory: Path) -> BinaryIO:
    """Open without truncating: that would release the reserved space."""
    (directory / _UNFINISHED_RESULT).touch(0o600)
    return (directory / _UNFINISHED_RESULT).open("r+b")


def has_result(directory: Path) -> bool:
    """Return whether the job has ended with a result."""
    return (directory / _RESULT).exists()


def clear_progress(directory: Path) -> None:
    """Remove the progress of an earlier run."""
    (directory / _PROGRESS).unlink(missing_ok=True)


def read_progress(directory: Path) -> Progress | None:
    """Return the progress, or None if there is none or a power cut has damaged it."""
    content = read_if_there(directory / _PROGRESS)
    try:
        return None if content is None else Progress(**json.loads(content))
    except (ValueError, TypeError):
        return None


def read_ended(directory: Path) -> JobFact:
    """Return the result of a job that is no longer running."""
    progress = read_progress(directory)
    content = read_if_there(directory / _RESULT)
    if content is None:
        return JobFact(JobState.GONE, progress, None, "the job ended without a result: it was killed")
    result = json.loads(content)
    reason = None if result["reason"] is None else ErrorReason(result["reason"])
    state = JobState.SUCCEEDED if result["ok"] else JobState.FAILED
    return JobFact(
        state,
        progress,
        reason,
        result["message"],
        outdated=result.get("outdated", False),
        bytes=(result.get("archive") or {}).get("unpacked", 0),
        seconds=result.get("seconds", 0.0),
        left_out=result.get("left_out", ""),
        changed=result.get("changed", ""),
    )
