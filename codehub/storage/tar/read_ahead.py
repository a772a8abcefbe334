"""Read-ahead buffer: a thread reads a pipe while the caller works on earlier pieces."""

import os
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread

_CHUNKS = 8


def read_ahead(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield pieces of at most `size` bytes. A caller that stops early has to end the writer."""
    pieces: SimpleQueue[bytes | OSError] = SimpleQueue()
    free = Semaphore(_CHUNKS)
    stopped = False

    def read() -> None:
        try:
            while free.acquire() and not stopped and (piece := os.read(descriptor, size)):
                pieces.put(piece)
        except OSError as error:
            pieces.put(error)
        pieces.put(b"")

    reader = Thread(target=read, name="read-ahead", daemon=True)
    reader.start()
    try:
        while piece := pieces.get():
            if isinstance(piece, OSError):
                raise piece
            free.release()
            yield piece
    finally:
        stopped = True
        free.release()
