"""Lock that allows one `codehub up` per data directory."""

import os
from dataclasses import dataclass
from pathlib import Path

from codehub.cli.errors import CommandError
from codehub.host import file_lock


@dataclass
class DataLock:
    """Lock of a data directory.

    `up` holds it while it runs, and the kernel releases it however `up` ends.
    """

    descriptor: int

    def release(self) -> None:
        os.close(self.descriptor)


def lock_path(data_dir: Path) -> Path:
    return data_dir / "run" / "up.lock"


def acquire(data_dir: Path) -> DataLock:
    """Lock a data directory, or raise CommandError with the process that has the lock."""
    path = lock_path(data_dir)
    if (descriptor := file_lock.try_lock(path)) is None:
        raise CommandError(
            f"CodeHub is already running on {data_dir} (process {holder_pid(data_dir) or 'unknown'}): "
            "stop it with `codehub down`, or choose another --data-dir"
        )
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return DataLock(descriptor)


def holder_pid(data_dir: Path) -> int | None:
    """Return the process id of the `up` that runs on this data directory, or None."""
    path = lock_path(data_dir)
    if not file_lock.is_locked(path):
        return None
    fields = path.read_text().split()
    return int(fields[0]) if fields else None
