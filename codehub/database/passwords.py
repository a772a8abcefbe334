"""Argon2id, off the event loop, and never more at once than the machine can bear."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from codehub.domain.problems import TooManyRequests

AT_ONCE: Final = 4
MAX_WAITING: Final = 64

DUMMY_HASH: Final = (
    "$argon2id$v=19$m=65536,t=3,p=4$euG5zl4GnFxChpztnBjXtA$JN4ovyoGDPNcpHmHnR8d5ha3NV+u82RGHxMBybmwWrM"
)
"""The hash of a random password that nobody knows: what an unknown name is compared with."""

T = TypeVar("T")

_hasher = PasswordHasher()
_threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="argon2")
_waiting = 0


async def hash_password(password: str) -> str:
    return await _in_thread(lambda: _hasher.hash(password))


async def verify_password(password: str, password_hash: str | None) -> bool:
    """Whether the password fits. Without a hash (an unknown name) it takes the same work, and says no."""
    fits = await _in_thread(lambda: _fits(password, password_hash or DUMMY_HASH))
    return fits and password_hash is not None


def _fits(password: str, password_hash: str) -> bool:
    try:
        return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


async def _in_thread(work: Callable[[], T]) -> T:
    """Each computation takes 64 MB and a core, so a crowd is turned away instead of queued without end."""
    global _waiting
    if _waiting >= MAX_WAITING:
        raise TooManyRequests(
            "Too many people are signing in at this moment. Try again shortly.", retry_after=2
        )
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, work)
    finally:
        _waiting -= 1
