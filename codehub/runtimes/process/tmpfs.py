"""The file systems in memory that a sandbox has outside its home. Standard library only (see `keeper`).

What is in them counts against the workspace's memory. Together they take about half of it, so that a
workspace that fills them gets ENOSPC while its IDE still has room. bwrap can limit bytes but not files, and a
file costs a kibibyte of memory even when it is empty. So the keeper mounts them where it may. Where it may
not, bwrap's own take their place.
"""

from __future__ import annotations

import os
from pathlib import Path

from codehub.runtimes.process import libc

PARTS = {"/tmp": 4, "/var/tmp": 8, "/dev/shm": 8}  # noqa: S108 - the sandbox's own
"""Which part of the memory each may take."""
_BYTES_FOR_EACH_FILE = 8 << 10
"""The kernel's own proportion: at most an eighth more memory than the bytes."""


def size_of(place: str, memory_bytes: int) -> int:
    return memory_bytes // PARTS[place]


def tmpfs_options(place: str, memory_bytes: int) -> str:
    size = size_of(place, memory_bytes)
    return f"mode=1777,size={size},nr_inodes={size // _BYTES_FOR_EACH_FILE}"


def source_of(place: str, directory: Path) -> Path:
    """Where below `directory` the keeper mounts it. Nothing is there if it may not."""
    return directory / place.strip("/").replace("/", "-")


def mount(directory: Path, memory_bytes: int) -> None:
    """Mount them for this process and its children alone."""
    libc.enter_new_mount_namespace()
    flags = libc.NO_SUID | libc.NO_DEV
    libc.mount_tmpfs(str(directory), f"mode=711,size={len(PARTS) * os.sysconf('SC_PAGE_SIZE')}", flags)
    for place in PARTS:
        target = source_of(place, directory)
        target.mkdir()
        try:
            libc.mount_tmpfs(str(target), tmpfs_options(place, memory_bytes), flags)
        except OSError:
            target.rmdir()
            raise
