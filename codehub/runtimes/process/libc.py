"""System calls that Python 3.11 has no function for. Standard library only (see `keeper`)."""

from __future__ import annotations

import ctypes
import os

NEW_MOUNTS, NEW_USER, NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
NO_SUID, NO_DEV, NO_EXEC, RECURSIVE, SLAVE = 2, 4, 8, 1 << 14, 1 << 19


def call(name: str, *arguments: int | bytes | None) -> None:
    """Call a function of libc; raise OSError if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter_new_mount_namespace() -> None:
    """Enter a new mount namespace.

    Mounts of this process stay inside. Later mounts of the machine still propagate into it.
    """
    call("unshare", NEW_MOUNTS)
    call("mount", None, b"/", None, RECURSIVE | SLAVE, None)


def mount_tmpfs(target: str, options: str, flags: int) -> None:
    call("mount", b"tmpfs", os.fsencode(target), b"tmpfs", flags, options.encode())
