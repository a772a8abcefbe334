"""Recovery of cancellations that a library swallowed."""

import asyncio


def raise_if_cancelled() -> None:
    """Raise CancelledError if this task was cancelled and the cancellation got lost.

    redis-py and asyncpg may swallow a cancellation that arrives while a connection is opened or
    breaks. A loop that continues after that never ends, and neither does the task that waits for
    its end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
