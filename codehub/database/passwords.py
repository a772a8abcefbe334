"""Password hashing with Argon2id, in a bounded thread pool."""

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
"""Hash of a random password, for the comparison when the username is unknown."""

T = TypeVar("T")

NO_PASSWORD: Final = "no password"  # noqa: S105 - says that there is none
"""Stored for a service account in place of a hash: no password matches it."""

_hasher = PasswordHasher()
_threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="argon2")
_waiting = 0


async def hash_password(password: str) -> str:
    return await _in_thread(lambda: _hasher.hash(password))


async def verify_password(password: str, password_hash: str | None) -> bool:
    """Return whether the password matches. Without a hash (an unknown name), do the same work."""
    matches = await _in_thread(lambda: _matches(password, password_hash or DUMMY_HASH))
    return matches and password_hash is not None


def _matches(password: str, password_hash: str) -> bool:
    try:
        return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


async def _in_thread(work: Callable[[], T]) -> T:
    """Run a computation, or reject it if too many wait: each takes 64 MB and a core."""
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
