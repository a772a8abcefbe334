"""The tmpfs mounts of a sandbox, for temporary files. Standard library only (see `keeper`).

Their contents count against the workspace's memory. Together they may take about half of it, so
that a workspace that fills them gets ENOSPC while its IDE still has memory. bwrap can limit bytes
but not files, and even an empty file costs about 1 KiB of memory. So the keeper mounts them if it
may; otherwise bwrap does.
"""

from __future__ import annotations

import os
from pathlib import Path

from codehub.runtimes.process import libc

PARTS = {"/tmp": 4, "/var/tmp": 8, "/dev/shm": 8}  # noqa: S108 - inside the sandbox
"""The fraction of the memory that each may take: a quarter or an eighth."""
_BYTES_PER_FILE = 8 << 10
"""With 1 KiB for each file, the files add at most an eighth to the memory of the bytes."""


def size_of(path: str, memory_bytes: int) -> int:
    return memory_bytes // PARTS[path]


def tmpfs_options(path: str, memory_bytes: int) -> str:
    size = size_of(path, memory_bytes)
    return f"mode=1777,size={size},nr_inodes={size // _BYTES_PER_FILE}"


def source_of(path: str, directory: Path) -> Path:
    """Return where the keeper mounts it, below `directory`.

    The path does not exist if the keeper may not.
    """
    return directory / path.strip("/").replace("/", "-")


def mount(directory: Path, memory_bytes: int) -> None:
    """Mount them in a new mount namespace, for this process and its children."""
    libc.enter_new_mount_namespace()
    flags = libc.NO_SUID | libc.NO_DEV
    libc.mount_tmpfs(str(directory), f"mode=711,size={len(PARTS) * os.sysconf('SC_PAGE_SIZE')}", flags)
    for path in PARTS:
        target = source_of(path, directory)
        target.mkdir()
        try:
            libc.mount_tmpfs(str(target), tmpfs_options(path, memory_bytes), flags)
        except OSError:
            target.rmdir()
            raise
