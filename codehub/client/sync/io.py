"""Waiting and doing things at once, with threads. The twin of `codehub.client.aio.io`."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

from codehub.client.sync.transport import Cancellation

T = TypeVar("T")
_QUEUED = 16
_LOOK_SECONDS = 1.0

sleep = time.sleep
Event = threading.Event
Lock = threading.Lock


def run_blocking(work: Callable[[], T]) -> T:
    """Do work that waits for a disk of this machine."""
    return work()


def in_thread(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces of a local file."""
    return pieces


def merge(sources: Sequence[Callable[[Cancellation], Generator[T, None, None]]]) -> Generator[T, None, None]:
    """Yield what the sources yield, as it comes, until all have ended or one has failed."""
    found: queue.Queue[T | Exception | None] = queue.Queue(_QUEUED)
    cancellation = Cancellation()

    def put(item: T | Exception | None) -> bool:
        """Wait until there is room. Return False if nobody reads any more."""
        while not cancellation.is_cancelled:
            with contextlib.suppress(queue.Full):
                found.put(item, timeout=_LOOK_SECONDS)
                return True
        return False

    def read(source: Callable[[Cancellation], Generator[T, None, None]]) -> None:
        try:
            with contextlib.closing(source(cancellation)) as items:
                for item in items:
                    if not put(item):
                        return
        except Exception as error:  # noqa: BLE001 - it is raised by the reader of the queue
            put(error)
        else:
            put(None)

    for source in sources:
        threading.Thread(target=read, args=(source,), daemon=True, name="codehub-output").start()
    try:
        running = len(sources)
        while running:
            item = found.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        cancellation.cancel()
