"""What a job tells: its progress while it runs, its result at the end."""

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
_ROOM = "result.json.tmp"
_ROOM_BYTES = 16 << 10


@dataclass(frozen=True)
class Result:
    ok: bool
    reason: ErrorReason | None
    message: str
    archive: ArchiveFact | None = None
    outdated: bool = False
    seconds: float = 0.0
    left_out: str = ""
    changed: str = ""


class Reporter:
    """Writes a job's progress, at most five times a second."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _PROGRESS
        self._next = 0.0
        self.total: int | None = None
        self.left_out = ""
        """What the archive does not hold. It outlasts the attempt: the next may find the archive complete."""
        self.changed = ""
        """What is not as the archive has it; likewise."""

    def progress(self, done: int, files: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_INTERVAL
            # Only a hint: a disk too full for it may be just what this job is about to relieve.
            with suppress(OSError):
                replace_file(self._path, json.dumps(asdict(Progress(done, self.total, files))).encode())


def keep_room(directory: Path) -> None:
    """Take what a result needs of the disk while there is some: a job without a result counts as killed.

    Where there is none, the job goes on: it may be about to make some.
    """
    with suppress(OSError), _open_room(directory) as file:
        os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)


def write_result(directory: Path, result: Result) -> None:
    """In place of the room that was kept; only what is complete and on the disk gets the name of a result."""
    with _open_room(directory) as file:
        file.write(json.dumps(asdict(result)).encode())
        file.truncate()
        os.fsync(file.fileno())
    (directory / _ROOM).rename(directory / _RESULT)
    fsync_path(directory)


def _open_room(directory: Path) -> BinaryIO:
    """As it is: emptied, it would have to be taken again."""
    (directory / _ROOM).touch(0o600)
    return (directory / _ROOM).open("r+b")


def has_result(directory: Path) -> bool:
    return (directory / _RESULT).exists()


def clear_progress(directory: Path) -> None:
    (directory / _PROGRESS).unlink(missing_ok=True)


def read_progress(directory: Path) -> Progress | None:
    """None when there is none, or a power cut has left a part of it: it was never made to last."""
    content = read_if_there(directory / _PROGRESS)
    try:
        return None if content is None else Progress(**json.loads(content))
    except (ValueError, TypeError):
        return None


def read_ended(directory: Path) -> JobFact:
    """What is left of a job that is dead."""
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
