"""A pipe that is written by a thread of its own: whoever fills it goes on while its reader works."""

from collections.abc import Sequence
from contextlib import suppress
from queue import Queue
from threading import Thread
from typing import IO

_CHUNKS = 8


class WriteBehind:
    """Takes pieces for a pipe and closes it at the end. A reader that goes away is told by OSError."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._pieces: Queue[Sequence[memoryview] | None] = Queue(_CHUNKS)
        self._failure: OSError | None = None
        self._writer = Thread(target=self._write, name="write-behind", daemon=True)
        self._writer.start()

    def put(self, pieces: Sequence[memoryview]) -> None:
        """Waits when the reader is far behind."""
        self._pieces.put(pieces)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Returns when everything is written, or cannot be."""
        if self._writer.is_alive():
            self._pieces.put(None)
            self._writer.join()
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> None:
        """Whoever calls this has ended the reader: nothing holds up the writer any more."""
        with suppress(OSError):
            self.close()

    def _write(self) -> None:
        while (pieces := self._pieces.get()) is not None:
            if self._failure is None:
                self._attempt(pieces)
        with suppress(OSError):
            self._pipe.close()

    def _attempt(self, pieces: Sequence[memoryview]) -> None:
        try:
            for piece in pieces:
                self._pipe.write(piece)
            self._pipe.flush()
        except OSError as error:
            self._failure = error
