"""Write-behind buffer: a thread writes to a pipe while the caller goes on."""

from collections.abc import Sequence
from contextlib import suppress
from queue import Queue
from threading import Thread
from typing import IO

_CHUNKS = 8


class WriteBehind:
    """Write-behind buffer of a pipe. If the reader goes away, the next call raises OSError."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._pieces: Queue[Sequence[memoryview] | None] = Queue(_CHUNKS)
        self._failure: OSError | None = None
        self._writer = Thread(target=self._write, name="write-behind", daemon=True)
        self._writer.start()

    def put(self, pieces: Sequence[memoryview]) -> None:
        """Write pieces; wait if the reader is far behind."""
        self._pieces.put(pieces)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Wait until everything is written, or writing has failed, and close the pipe."""
        if self._writer.is_alive():
            self._pieces.put(None)
            self._writer.join()
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> None:
        """Close the pipe after the caller has ended the reader, which cannot block any longer."""
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
