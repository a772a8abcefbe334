"""Client of a command's monitor, and reader of its output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from codehub.runtimes.command_runtime import CommandForgotten, ControlFailed
from codehub.runtimes.exec_directory import CONTROL_SOCKET, ExecDirectory, ExecState, RecordCorrupted
from codehub.runtimes.exec_input import frame

_READ_BYTES = 256 << 10
_CONTROL_SECONDS = 30.0


@contextlib.asynccontextmanager
async def connect(
    directory: ExecDirectory,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the control socket, by a short path: that of a socket is limited."""
    try:
        within = os.open(directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CommandForgotten("nothing is kept of this command") from error
    try:
        opened = await asyncio.open_unix_connection(f"/proc/self/fd/{within}/{CONTROL_SOCKET}")
    except (FileNotFoundError, ConnectionError) as error:  # reset: it ended before it accepted
        raise ControlFailed("the command has ended") from error
    finally:
        os.close(within)
    reader, writer = opened
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # what a monitor has not taken yet would keep the connection open


async def control(directory: ExecDirectory, op: str, **arguments: object) -> None:
    """Perform an op of the monitor; raise ControlFailed if it refuses."""
    async with connect(directory) as (reader, writer):
        writer.write(_line(op, arguments))
        await _answer(reader)


async def send_input(directory: ExecDirectory, chunks: AsyncIterator[bytes], *, close: bool = False) -> None:
    """Send input to a command, as fast as it takes it.

    Raises ControlFailed if the command closes its input or ends before it has taken everything.
    """
    async with connect(directory) as (reader, writer):
        writer.write(_line("stdin", {"close": close}))
        async with contextlib.aclosing(_frames(chunks)) as frames:
            async for data in frames:
                if not await _sent(writer, data):
                    break
        await _answer(reader, within=None)


async def _frames(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the chunks as frames, the last one together with the end if that follows at once.

    A command that reads one line and exits would otherwise have ended before the end mark arrives, and
    the sender could not tell that it has taken everything.
    """
    held = b""
    while True:
        following = asyncio.ensure_future(anext(chunks, None))
        try:
            await asyncio.sleep(0)  # now it is done, if it needs not wait
            if held and not following.done():
                yield frame(held)
                held = b""
            chunk = await following
        finally:
            following.cancel()
        if chunk is None:
            break
        if held and chunk:
            yield frame(held)
        held = chunk or held
    yield (frame(held) if held else b"") + frame(b"")


async def _sent(writer: asyncio.StreamWriter, data: bytes) -> bool:
    """Send data. Return False if the monitor has closed the connection: its answer has the cause."""
    try:
        writer.write(data)
        await writer.drain()
    except (OSError, RuntimeError):
        return False
    return True


async def follow(
    directory: ExecDirectory, stream: str, offset: int = 0
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield output from an offset, with the offset of each piece, until the command has ended.

    A piece that starts later than the one before ended shows a gap: its bytes are no longer kept.
    Raise ControlFailed if the command's monitor accepts no further reader while the command runs.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            changes, writer = await stack.enter_async_context(connect(directory))
            writer.write(_line("watch", {}))
        except (ControlFailed, CommandForgotten):
            changes = None
        is_last = changes is None
        while True:
            found, data = await asyncio.to_thread(directory.read, stream, offset, _READ_BYTES)
            if data:
                yield found, data
                offset = found + len(data)
            elif is_last:
                await asyncio.to_thread(_check_ended, directory)
                return
            else:
                assert changes is not None
                is_last = not await _changed(changes)


def _check_ended(directory: ExecDirectory) -> None:
    try:
        record = directory.read_record()
    except RecordCorrupted:
        return
    if record is not None and record.state is ExecState.RUNNING:
        raise ControlFailed("the command's monitor accepts no further reader: try again later")


async def _changed(changes: asyncio.StreamReader) -> bool:
    """Wait for a change. Return False if the command has ended."""
    try:
        return bool(await changes.read(_READ_BYTES))
    except OSError:
        return False


async def wait(directory: ExecDirectory) -> None:
    """Wait until the command has ended."""
    try:
        async with connect(directory) as (changes, writer):
            writer.write(_line("watch", {}))
            while await _changed(changes):
                record = await asyncio.to_thread(directory.read_record)
                if record is None or record.state is not ExecState.RUNNING:
                    return
    except (ControlFailed, CommandForgotten):
        return


def _line(op: str, arguments: dict[str, Any]) -> bytes:
    return json.dumps({"op": op, **arguments}).encode() + b"\n"


async def _answer(reader: asyncio.StreamReader, within: float | None = _CONTROL_SECONDS) -> None:
    try:
        line = await asyncio.wait_for(reader.readline(), within)
        error = json.loads(line).get("error") if line else "the command has ended"
    except (TimeoutError, OSError, ValueError) as problem:
        raise ControlFailed(f"the command's monitor does not answer: {problem!r}") from problem
    if error:
        raise ControlFailed(error)
