"""Upper bound of the size of an archive: an S3 upload has a limited number of parts."""

import os
from collections.abc import Sequence
from pathlib import Path

from codehub.storage.archive.object_store import part_size
from codehub.storage.child_processes import PIPE, spawn

# More than the headers of ten million entries.
_HEADERS = 32 << 30


def size_limit(home: Path, locks: Sequence[int]) -> int:
    """Return an upper bound of the size of a home's archive.

    The bound is the used space of the disk. Only if that makes larger parts necessary, the home is
    measured: a walk costs time, but larger parts cost memory.
    """
    usage = os.statvfs(home)
    used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    if part_size(used) == part_size(0):
        return used
    allocated = _allocated(home, locks)
    return used if allocated is None else min(used, allocated + allocated // 50 + _HEADERS)


def _allocated(home: Path, locks: Sequence[int]) -> int | None:
    """Return the bytes on the disk, or None if a part of the home cannot be read."""
    child = spawn(["du", "--summarize", "--block-size=1", "--", home], locks=locks, stdout=PIPE)
    output, _ = child.communicate()
    return int(output.split()[0]) if child.returncode == 0 else None
