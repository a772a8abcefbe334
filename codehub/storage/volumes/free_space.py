"""What is left on a disk, in bytes and in inodes."""

import os
from pathlib import Path

from codehub.domain.disk import FreeSpace


def free_space(path: Path) -> FreeSpace:
    """Return what an ordinary user may still write. Btrfs, which makes inodes as needed, reports none."""
    found = os.statvfs(path)
    return FreeSpace(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)
