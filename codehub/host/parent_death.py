"""Child processes that end with their parent.

The keeper's modules may import this: import little here.
"""

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent(number: signal.Signals) -> Callable[[], None]:
    """Return a hook that a new child runs, so that the kernel signals it when this process dies.

    The kernel watches the thread that starts the child, not its process: that thread must outlive
    the child.
    """
    parent = os.getpid()
    return lambda: set_parent_death_signal(number, parent)


def set_parent_death_signal(number: signal.Signals, parent: int) -> None:
    """Have the kernel send this process the signal when `parent` dies.

    Exit if it is dead already.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
