"""Read-ahead yields what is in the pipe, and ends its thread."""

import os
import threading

import pytest

from codehub.storage.tar.read_ahead import read_ahead
from tests.waiting import wait_for


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


def test_everything_comes_in_order_and_the_writer_is_ahead_of_the_reader() -> None:
    ours, theirs = os.pipe()
    ahead = read_ahead(ours, 10)
    os.write(theirs, b"0123456789" * 5)
    assert next(ahead) == b"0123456789"
    os.write(theirs, b"the end")
    os.close(theirs)
    assert b"".join(ahead) == b"0123456789" * 4 + b"the end"
    os.close(ours)
    wait_for(lambda: not readers(), "the reader's end")


def test_no_more_is_read_than_the_buffer_holds() -> None:
    ours, theirs = os.pipe()
    ahead = read_ahead(ours, 10)
    os.write(theirs, b"x" * 1000)
    next(ahead)
    os.set_blocking(ours, False)
    os.close(theirs)
    ahead.close()  # type: ignore[attr-defined]
    wait_for(lambda: not readers(), "the reader's end")
    assert len(os.read(ours, 2000)) >= 1000 - 10 * 11
    os.close(ours)


def test_a_pipe_that_cannot_be_read_raises() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        next(read_ahead(1_000_000, 10))
    wait_for(lambda: not readers(), "the reader's end")
