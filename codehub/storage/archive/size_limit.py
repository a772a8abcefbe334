"""How large an archive can become, told before it is made: stores take a bounded number of parts."""

import os
from collections.abc import Sequence
from pathlib import Path

from codehub.storage.archive.object_store import part_size
from codehub.storage.child_processes import PIPE, spawn

# More than the headers of ten million entries.
_HEADERS = 32 << 30


def size_limit(home: Path, locks: Sequence[int]) -> int:
    """No archive is larger than everything on the disk of its home; where that is much, the home is measured.

    Measuring costs a walk through the home, guessing too high costs memory: parts are held in it.
    """
    usage = os.statvfs(home)
    used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    if part_size(used) == part_size(0):
        return used
    allocated = _allocated(home, locks)
    return used if allocated is None else min(used, allocated + allocated // 50 + _HEADERS)


def _allocated(home: Path, locks: Sequence[int]) -> int | None:
    """Bytes on the disk; None where a part of the home cannot be looked at."""
    child = spawn(["du", "--summarize", "--block-size=1", "--", home], locks=locks, stdout=PIPE)
    said, _ = child.communicate()
    return int(said.split()[0]) if child.returncode == 0 else None
