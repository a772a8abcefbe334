"""One `codehub up` for a data directory."""

import os
from dataclasses import dataclass
from pathlib import Path

from codehub.cli.errors import CommandError
from codehub.host import file_lock


@dataclass
class DataLock:
    """Held for the life of `up`; the kernel lets go of it when the process ends, however it ends."""

    descriptor: int

    def release(self) -> None:
        os.close(self.descriptor)


def lock_path(data_dir: Path) -> Path:
    return data_dir / "run" / "up.lock"


def take(data_dir: Path) -> DataLock:
    """The lock of a data directory, or a clear word about who has it."""
    path = lock_path(data_dir)
    if (descriptor := file_lock.try_lock(path)) is None:
        raise CommandError(
            f"CodeHub is already running on {data_dir} (process {holder(data_dir) or 'unknown'}): "
            "stop it with `codehub down`, or choose another --data-dir"
        )
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return DataLock(descriptor)


def holder(data_dir: Path) -> int | None:
    """The process id of the `up` that runs on this data directory, None when none does."""
    path = lock_path(data_dir)
    if not file_lock.is_locked(path):
        return None
    fields = path.read_text().split()
    return int(fields[0]) if fields else None
