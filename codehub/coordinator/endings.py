"""What a loop that goes on after errors must ask itself."""

import asyncio


def end_if_cancelled() -> None:
    """Raise the cancellation of this task again if it got lost.

    A database driver whose connection dies while it is being cancelled raises an error of its own instead.
    Whoever catches that and goes on would never end, and whoever waits for its end neither.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
