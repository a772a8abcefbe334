"""User quotas of the file system that holds the homes, through quotactl_fd(2) (ADR 0019)."""

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
"""Extra space for a full home, so that its IDE starts and its owner can free space."""

_SYS_QUOTACTL_FD: Final = 443  # since Linux 5.14, and the same on every architecture
_USER: Final = 0
_GET_QUOTA, _SET_QUOTA, _GET_STATE = 0x800007, 0x800008, 0x5805
_BLOCK: Final = 1024
_LIMITS_OF_BLOCKS, _LIMITS_OF_FILES = 1, 4
_ACCOUNTED, _ENFORCED = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


class QuotaState(StrEnum):
    """Support for user quotas in a file system."""

    OFF = "off"
    COUNTED = "counted"
    ENFORCED = "enforced"


@dataclass(frozen=True)
class HomeQuota:
    """Quota of a user; 0 means unlimited."""

    bytes: int = 0
    files: int = 0


NO_QUOTA: Final = HomeQuota()


@dataclass(frozen=True)
class QuotaUsage:
    """Disk usage of a user."""

    bytes: int
    files: int


class DiskQuota(ctypes.Structure):
    """`struct if_dqblk`: limits in blocks of 1 KiB, usage in bytes.

    A soft limit that equals the hard one has no effect. CodeHub sets it to mark a limit that has
    been raised above a quota that was lowered.
    """

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


class _QuotaStat(ctypes.Structure):
    """The first fields of `struct fs_quota_stat`, and space for the rest."""

    _fields_ = (
        ("version", ctypes.c_int8),
        ("flags", ctypes.c_uint16),
        ("rest", ctypes.c_uint8 * 256),
    )


def quota_state(path: Path) -> QuotaState:
    """Return what the file system of this path does about user quotas, as this process sees it."""
    state = _QuotaStat()
    try:
        with _opened(path) as fd:
            _call(fd, _GET_STATE, 0, state)
    except OSError:
        return QuotaState.OFF
    if state.flags & _ENFORCED:
        return QuotaState.ENFORCED
    return QuotaState.COUNTED if state.flags & _ACCOUNTED else QuotaState.OFF


def usage_of(path: Path, uid: int) -> QuotaUsage | None:
    """Return what a user has on the file system of this path, or None if it is not counted."""
    try:
        with _opened(path) as fd:
            found = _get(fd, uid)
    except OSError:
        return None
    return None if found is None else QuotaUsage(found.bytes, found.files)


def set_quota(path: Path, uid: int, quota: HomeQuota) -> HomeQuota:
    """Limit what a user can have on the file system of this path. Return the effective limit.

    A user who is near the quota already gets some headroom.
    """
    with _opened(path) as fd:
        found = _get(fd, uid) or DiskQuota()
        wanted = next_limits(found, quota)
        if _limits_of(found) != _limits_of(wanted):
            wanted.valid = _LIMITS_OF_BLOCKS | _LIMITS_OF_FILES
            _call(fd, _SET_QUOTA, uid, wanted)
    return HomeQuota(wanted.block_limit * _BLOCK, wanted.file_limit)


def next_limits(found: DiskQuota, quota: HomeQuota) -> DiskQuota:
    """Return the limits for the next start, from what a user has and the limits in force."""
    block_limits = found.block_limit, found.block_soft_limit
    hard, soft = _next_limit(_blocks(quota.bytes), _blocks(found.bytes), block_limits, _blocks(HEADROOM))
    wanted = DiskQuota(block_limit=hard, block_soft_limit=soft)
    file_limits = found.file_limit, found.file_soft_limit
    hard, soft = _next_limit(quota.files, found.files, file_limits, HEADROOM_FILES)
    wanted.file_limit, wanted.file_soft_limit = hard, soft
    return wanted


def _next_limit(quota: int, used: int, in_force: tuple[int, int], headroom: int) -> tuple[int, int]:
    """Return a hard and a soft limit: at most the quota and one headroom, however many restarts.

    A user who has more than that, because the quota was lowered, gets headroom once.
    """
    if not quota:
        return 0, 0
    if used <= quota + headroom:
        return max(quota, min(used, quota) + headroom), 0
    raised, (hard, soft) = used + headroom, in_force
    if hard == soft and hard >= used:
        raised = min(hard, raised)
    return raised, raised


def _blocks(number: int) -> int:
    return -(-number // _BLOCK)


def _limits_of(found: DiskQuota) -> tuple[int, int, int, int]:
    return found.block_limit, found.block_soft_limit, found.file_limit, found.file_soft_limit


def _get(fd: int, uid: int) -> DiskQuota | None:
    found = DiskQuota()
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
