"""Cancellation that a library swallowed."""

import asyncio


def raise_if_cancelled() -> None:
    """Raise the cancellation of this task again if it got lost.

    redis-py and asyncpg may swallow a cancellation that meets them while a connection is made or dies. A loop
    that goes on after that never ends, and neither does the task that waits for its end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
