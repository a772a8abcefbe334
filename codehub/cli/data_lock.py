"""One `codehub up` for a data directory."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from codehub.cli.errors import CommandError


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
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CommandError(
            f"CodeHub is already running on {data_dir} (process {holder(data_dir) or 'unknown'}): "
            "stop it with `codehub down`, or choose another --data-dir"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return DataLock(descriptor)


def holder(data_dir: Path) -> int | None:
    """The process id of the `up` that runs on this data directory, None when none does."""
    try:
        descriptor = os.open(lock_path(data_dir), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        words = os.read(descriptor, 32).split()
        return int(words[0]) if words else None
    finally:
        os.close(descriptor)
    return None
