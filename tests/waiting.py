"""Waiting for a condition, with one timeout for every test.

The timeout only ends a test that would hang: no test may pass or fail by how long something takes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 120.0
"""Timeout in seconds. It is generous: a loaded machine is slow, and a passing test never waits this long."""


def wait_for(condition: Callable[[], T], what: str, every: float = 0.05) -> T:
    """Return the condition's first true value; fail with `what` the test was waiting for."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}; last seen: {value!r}"
        time.sleep(every)
    return value


def wait_while_growing(look: Callable[[], int], goal: int, what: str, every: float = 0.05) -> None:
    """Wait until a number reaches its goal; fail if it stops growing."""
    seen, deadline = -1, 0.0
    while (value := look()) < goal:
        if value > seen:
            seen, deadline = value, time.monotonic() + PATIENCE
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what} to grow beyond {seen}"
        time.sleep(every)


async def eventually(
    look: Callable[[], Awaitable[T]],
    what: str,
    holds: Callable[[T], object] = bool,
    every: float = 0.02,
) -> T:
    """Return the first value that holds; fail with `what` the test was waiting for."""
    deadline = time.monotonic() + PATIENCE
    while not holds(seen := await look()):
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}; last seen: {seen!r}"
        await asyncio.sleep(every)
    return seen


async def until(condition: Callable[[], object], what: str, every: float = 0.02) -> None:
    """Wait for a condition that is not a coroutine."""

    async def look() -> object:
        return condition()

    await eventually(look, what, every=every)
