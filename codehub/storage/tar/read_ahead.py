"""A pipe that is read by a thread of its own: its writer goes on while what it wrote is worked on."""

import os
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread

_CHUNKS = 8


def read_ahead(descriptor: int, size: int) -> Iterator[bytes]:
    """Pieces of at most `size` bytes, to the end. Whoever leaves early has to end the writer."""
    pieces: SimpleQueue[bytes | OSError] = SimpleQueue()
    room = Semaphore(_CHUNKS)
    left = False

    def read() -> None:
        try:
            while room.acquire() and not left and (piece := os.read(descriptor, size)):
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
            room.release()
            yield piece
    finally:
        left = True
        room.release()
