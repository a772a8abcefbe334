"""Waiting and doing things at once, with asyncio. The sync package has a twin of this file."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import TypeVar

from codehub.client.aio.transport import AsyncCancellation

T = TypeVar("T")
_QUEUED = 16

sleep = asyncio.sleep
AsyncEvent = asyncio.Event
AsyncLock = asyncio.Lock


async def run_blocking(work: Callable[[], T]) -> T:
    """Do work that waits for a disk of this machine."""
    return await asyncio.to_thread(work)


async def in_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces of a local file, read beside the event loop."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


async def merge(
    sources: Sequence[Callable[[AsyncCancellation], AsyncGenerator[T, None]]],
) -> AsyncGenerator[T, None]:
    """Yield what the sources yield, as it comes, until all have ended or one has failed."""
    queue: asyncio.Queue[T | Exception | None] = asyncio.Queue(_QUEUED)
    cancellation = AsyncCancellation()

    async def read(source: Callable[[AsyncCancellation], AsyncGenerator[T, None]]) -> None:
        try:
            async with contextlib.aclosing(source(cancellation)) as items:
                async for item in items:
                    await queue.put(item)
        except Exception as error:  # noqa: BLE001 - it is raised by the reader of the queue
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(read(source)) for source in sources]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
