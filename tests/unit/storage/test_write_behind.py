"""Write-behind passes on everything in order, and ends its thread."""

import os
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from codehub.storage.tar.write_behind import WriteBehind
from tests.waiting import wait_for


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as reading, os.fdopen(theirs, "wb") as writing:
        yield reading, writing
    assert not [thread for thread in threading.enumerate() if thread.name == "write-behind"]


Pipe = tuple[IO[bytes], IO[bytes]]
PIECE = memoryview(bytes(1 << 20))


def test_everything_is_written_in_order_and_the_caller_is_ahead(pipe: Pipe) -> None:
    reading, writing = pipe
    behind = WriteBehind(writing)
    behind.put([PIECE])
    behind.put([memoryview(b"one"), memoryview(b"two")])
    ended = threading.Thread(target=behind.close)
    ended.start()
    assert reading.read() == bytes(PIECE) + b"onetwo"
    ended.join()


def test_the_writer_waits_for_a_slow_reader(pipe: Pipe) -> None:
    reading, writing = pipe
    behind = WriteBehind(writing)
    given: list[int] = []

    def give() -> None:
        for number in range(40):
            behind.put([PIECE])
            given.append(number)
        behind.close()

    giver = threading.Thread(target=give)
    giver.start()
    wait_for(lambda: len(given) >= 8, "the buffer to be full")
    assert len(given) < 12
    assert len(reading.read()) == 40 << 20
    giver.join()


def test_a_closed_reader_raises_and_blocks_nothing(pipe: Pipe) -> None:
    reading, writing = pipe
    behind = WriteBehind(writing)
    reading.close()
    with pytest.raises(BrokenPipeError):
        for _ in range(100):
            behind.put([PIECE])
    with pytest.raises(BrokenPipeError):
        behind.close()
    behind.abandon()
