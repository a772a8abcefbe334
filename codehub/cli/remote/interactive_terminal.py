"""A command with a terminal: this one, in raw mode. It goes on when the connection breaks."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import typer

from codehub.cli.remote.common import INTERRUPTED
from codehub.cli.remote.escapes import Escapes

if TYPE_CHECKING:
    from codehub.client import AsyncExec, AsyncTerminal

INPUT_BYTES: Final = 32 << 10
CLEAR: Final = b"\x1b[H\x1b[2J\x1b[3J"
HANG_UPS: Final = (signal.SIGHUP, signal.SIGTERM)


async def run_in_terminal(command: "AsyncExec") -> int:
    """Attach this terminal until the command ends or the user leaves; return the exit code."""
    async with command.attach() as terminal:
        with raw_mode(sys.stdin.fileno()):
            code = await _serve(terminal)
    if code is None:
        typer.echo(f"codehub: left the command {command.id}, which goes on", err=True)
        return INTERRUPTED
    return code


async def _serve(terminal: "AsyncTerminal") -> int | None:
    """Pass bytes both ways. Return None if the user leaves."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes | None] = asyncio.Queue()
    resized = asyncio.Event()
    resized.set()
    tasks: list[asyncio.Task[int | None]] = [
        asyncio.create_task(_show(terminal)),
        asyncio.create_task(_type(terminal, typed)),
    ]
    sizes = asyncio.create_task(_resize(terminal, resized))
    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, lambda: typed.put_nowait(_read(descriptor)))
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    for number in HANG_UPS:
        loop.add_signal_handler(number, typed.put_nowait, None)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return (tasks[0] if tasks[0] in done else tasks[1]).result()
    finally:
        loop.remove_reader(descriptor)
        for task in (*tasks, sizes):
            task.cancel()
        await asyncio.gather(*tasks, sizes, return_exceptions=True)


async def _show(terminal: "AsyncTerminal") -> int:
    from codehub.client import TerminalEnded, TerminalOutput, TerminalSkipped, TerminalWriter

    async for event in terminal:
        match event:
            case TerminalOutput(data, is_repeated):
                await asyncio.to_thread(_write, CLEAR + data if is_repeated else data)
            case TerminalSkipped():
                await asyncio.to_thread(_write, b"\r\n[codehub: output is missing here]\r\n")
            case TerminalWriter(writes=False):
                await asyncio.to_thread(_write, b"\r\n[codehub: another client writes now]\r\n")
            case TerminalEnded(_, exit_code):
                return 137 if exit_code is None else exit_code
            case _:
                pass
    return 137


async def _type(terminal: "AsyncTerminal", typed: "asyncio.Queue[bytes | None]") -> None:
    escapes = Escapes()
    while data := await typed.get():
        passed, leaves = escapes.feed(data)
        if leaves:
            return
        if passed:
            await terminal.send(passed)


async def _resize(terminal: "AsyncTerminal", resized: asyncio.Event) -> None:
    while True:
        await resized.wait()
        resized.clear()
        await terminal.resize(*terminal_size())


def _read(descriptor: int) -> bytes | None:
    """Return what was typed, or None if the terminal is gone."""
    with contextlib.suppress(OSError):
        return os.read(descriptor, INPUT_BYTES) or None
    return None


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def terminal_size() -> tuple[int, int]:
    """Return rows and columns, at least one and at most as many as the server takes."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return min(max(size.lines, 1), 1000), min(max(size.columns, 1), 1000)


@contextlib.contextmanager
def raw_mode(descriptor: int) -> Iterator[None]:
    """Pass each key on as it is, Ctrl-C too."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed meanwhile stays
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
