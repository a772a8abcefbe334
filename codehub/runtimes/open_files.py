"""How many files and sockets a workspace's processes may have open. Standard library only."""

from __future__ import annotations

import resource

_ENOUGH = 65_536


def open_files(enough: int = _ENOUGH) -> int:
    """Return the limit for one process: enough, or the most that this process may set if that is less.

    What a workspace would inherit instead may be the kernel's highest.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return enough if most == resource.RLIM_INFINITY else min(enough, most)
