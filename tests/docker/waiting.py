"""Waiting for conditions, bounded."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], Awaitable[T | None]], what: str, seconds: float = 30) -> T:
    """The condition's first true value; fails with `what` was waited for."""
    deadline = time.monotonic() + seconds
    while not (value := await condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        await asyncio.sleep(0.02)
    return value
