"""New session keyring for a workspace. Standard library only (see `keeper`)."""

from __future__ import annotations

import ctypes
import errno
import os

KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "loongarch64": 219, "ppc64le": 271, "s390x": 280,
          "armv7l": 311, "i686": 288}  # fmt: skip
"""The number of the system call, for which the C library has no function."""
_JOIN_SESSION_KEYRING = 1
_NO_KEYRINGS = (errno.ENOSYS, errno.EPERM)
"""The kernel has no keyrings, or forbids them to us and so to all that we start."""


def leave_session_keyring() -> None:
    """Join a new session keyring.

    CodeHub's keys are then out of reach for this process and its children.
    """
    number = KEYCTL.get(os.uname().machine)
    if number is None:
        raise OSError(f"the number of the keyctl system call on {os.uname().machine} is not known")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _JOIN_SESSION_KEYRING, None) >= 0 or ctypes.get_errno() in _NO_KEYRINGS:
        return
    error = os.strerror(ctypes.get_errno())
    raise OSError(ctypes.get_errno(), f"no session keyring can be created: {error} (sysctl kernel.keys)")
