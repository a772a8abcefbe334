"""Argon2id, off the event loop and never more at once than the machine can bear."""

import asyncio
from functools import lru_cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from codehub.domain.problems import TooManyRequests

AT_ONCE: Final = 4
MAX_WAITING: Final = 64
MIN_LENGTH: Final = 8
MAX_LENGTH: Final = 1024

_hasher = PasswordHasher()


class _Desk:
    """Takes AT_ONCE computations, lets some wait, and turns the rest away: each one costs 64 MB."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._waiting >= MAX_WAITING:
            raise TooManyRequests(
                "Too many people are signing in at this moment. Try again shortly.", retry_after=2
            )
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._places.release()


_desks: dict[int, _Desk] = {}


def _desk() -> _Desk:
    loop = asyncio.get_running_loop()
    for old in [key for key in _desks if key != id(loop)]:
        del _desks[old]
    return _desks.setdefault(id(loop), _Desk())


async def hash_password(password: str) -> str:
    async with _desk():
        return await asyncio.to_thread(_hasher.hash, password)


async def verify_password(password: str, password_hash: str | None) -> bool:
    """Whether the password fits. Without a hash (an unknown name) it takes the same work, and says no."""
    async with _desk():
        fits = await asyncio.to_thread(
            _verify, password, password_hash or await asyncio.to_thread(_nobodys_hash)
        )
    return fits and password_hash is not None


def _verify(password: str, password_hash: str) -> bool:
    try:
        return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


@lru_cache(maxsize=1)
def _nobodys_hash() -> str:
    return _hasher.hash("nobody has this password")
