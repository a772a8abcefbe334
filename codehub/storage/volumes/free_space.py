"""Free bytes and inodes of a disk."""

import os
from pathlib import Path

from codehub.domain.disk import FreeSpace


def free_space(path: Path) -> FreeSpace:
    """Return what an ordinary user may still write. Btrfs does not report inodes."""
    found = os.statvfs(path)
    return FreeSpace(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)
