"""Frames that carry the input of a command to its monitor."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from codehub.runtimes.exec_client import _frames
from codehub.runtimes.exec_input import frame

END = frame(b"")


async def test_the_end_that_follows_at_once_comes_with_the_last_piece() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"one", b"", b"two", b""):
            yield chunk

    assert [data async for data in _frames(chunks())] == [frame(b"one"), frame(b"two") + END]


async def test_a_piece_does_not_wait_for_the_next_one() -> None:
    goes_on = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        await goes_on.wait()

    frames = _frames(chunks())
    assert await anext(frames) == frame(b"one")
    goes_on.set()
    assert [data async for data in frames] == [END]


async def test_input_that_is_cut_off_has_no_end() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        raise ConnectionError

    frames, sent = _frames(chunks()), b""
    with pytest.raises(ConnectionError):
        async for data in frames:
            sent += data
    assert not sent.endswith(END)
