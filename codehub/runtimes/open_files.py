"""The limit of open files and sockets of a workspace's processes. Standard library only."""

from __future__ import annotations

import resource

_DEFAULT_LIMIT = 65_536


def open_files(limit: int = _DEFAULT_LIMIT) -> int:
    """Return the limit for one process: `limit`, or the most that this process may set.

    Without it a workspace would inherit CodeHub's own limit, which may be the highest that the
    kernel allows.
    """
    _, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if highest == resource.RLIM_INFINITY else min(limit, highest)
