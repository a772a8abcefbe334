"""A session keyring of the workspace's own, not CodeHub's. Standard library only (see `keeper`)."""

from __future__ import annotations

import ctypes
import errno
import os

KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "loongarch64": 219, "ppc64le": 271, "s390x": 280,
          "armv7l": 311, "i686": 288}  # fmt: skip
"""The number of the call, which the C library has no function for."""
_JOIN_SESSION_KEYRING = 1
_NO_KEYRINGS = (errno.ENOSYS, errno.EPERM)
"""Not in this kernel; or forbidden to us, and with us to whatever we start."""


def leave_session_keyring() -> None:
    """Whatever was put into the one that we were born with is out of reach then, for us and our children."""
    number = KEYCTL.get(os.uname().machine)
    if number is None:
        raise OSError(f"no way is known to a keyring of its own on {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _JOIN_SESSION_KEYRING, None) >= 0 or ctypes.get_errno() in _NO_KEYRINGS:
        return
    words = os.strerror(ctypes.get_errno())
    raise OSError(ctypes.get_errno(), f"no keyring of its own can be made: {words} (sysctl kernel.keys)")
