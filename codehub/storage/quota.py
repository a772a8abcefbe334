"""User quotas of the file system that the homes are on, by quotactl_fd(2)."""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

HEADROOM: Final = 64 << 20
HEADROOM_FILES: Final = 1000
"""What a home that is at its quota gets for a start, so that its IDE runs and its owner can make room."""

_SYS_QUOTACTL_FD: Final = 443  # since Linux 5.14, and the same on every architecture
_USER: Final = 0
_GET_QUOTA, _SET_QUOTA, _GET_STATE = 0x800007, 0x800008, 0x5805
_BLOCK: Final = 1024
_LIMITS_OF_BLOCKS, _LIMITS_OF_FILES = 1, 4
_ACCOUNTED, _ENFORCED = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


class QuotaState(StrEnum):
    OFF = "off"
    COUNTED = "counted"
    ENFORCED = "enforced"


@dataclass(frozen=True)
class HomeQuota:
    """0 stands for no limit."""

    bytes: int = 0
    files: int = 0


NO_QUOTA: Final = HomeQuota()


@dataclass(frozen=True)
class Usage:
    bytes: int
    files: int


class _Quota(ctypes.Structure):
    """`struct if_dqblk`: limits in blocks of 1 KiB, usage in bytes."""

    _fields_ = (
        ("block_limit", ctypes.c_uint64),
        ("block_soft_limit", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("file_limit", ctypes.c_uint64),
        ("file_soft_limit", ctypes.c_uint64),
        ("files", ctypes.c_uint64),
        ("block_time", ctypes.c_uint64),
        ("file_time", ctypes.c_uint64),
        ("valid", ctypes.c_uint32),
    )


class _State(ctypes.Structure):
    """The beginning of `struct fs_quota_stat`, and room for the rest of it."""

    _fields_ = (
        ("version", ctypes.c_int8),
        ("flags", ctypes.c_uint16),
        ("rest", ctypes.c_uint8 * 256),
    )


def quota_state(path: Path) -> QuotaState:
    """Return what the file system of this path does about user quotas, for this process."""
    state = _State()
    try:
        with _opened(path) as fd:
            _call(fd, _GET_STATE, 0, state)
    except OSError:
        return QuotaState.OFF
    if state.flags & _ENFORCED:
        return QuotaState.ENFORCED
    return QuotaState.COUNTED if state.flags & _ACCOUNTED else QuotaState.OFF


def usage_of(path: Path, uid: int) -> Usage | None:
    """Return what a user has on the file system of this path, or None where that is not counted."""
    try:
        with _opened(path) as fd:
            found = _get(fd, uid)
    except OSError:
        return None
    return None if found is None else Usage(found.bytes, found.files)


def set_quota(path: Path, uid: int, quota: HomeQuota) -> HomeQuota:
    """Limit what a user can have on the file system of this path. Return the limit that is in force.

    A user who is near the limit already gets some headroom above what there is.
    """
    with _opened(path) as fd:
        found = _get(fd, uid) or _Quota()
        limit = HomeQuota(
            _with_headroom(quota.bytes, found.bytes, HEADROOM),
            _with_headroom(quota.files, found.files, HEADROOM_FILES),
        )
        blocks = -(-limit.bytes // _BLOCK)
        if (found.block_limit, found.file_limit) != (blocks, limit.files):
            wanted = _Quota(block_limit=blocks, file_limit=limit.files)
            wanted.valid = _LIMITS_OF_BLOCKS | _LIMITS_OF_FILES
            _call(fd, _SET_QUOTA, uid, wanted)
    return limit


def _with_headroom(quota: int, used: int, headroom: int) -> int:
    return max(quota, used + headroom) if quota else 0


def _get(fd: int, uid: int) -> _Quota | None:
    found = _Quota()
    try:
        _call(fd, _GET_QUOTA, uid, found)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):  # nothing of this user yet, or no quotas
            return None
        raise
    return found


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def _call(fd: int, command: int, uid: int, data: ctypes.Structure) -> None:
    numbers = [ctypes.c_ulong(value) for value in (_SYS_QUOTACTL_FD, fd, (command << 8) | _USER, uid)]
    result = _libc.syscall(*numbers, ctypes.byref(data))
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"quotactl_fd: {os.strerror(number)}")
