"""A command without a terminal: its streams are those of this process, and signals reach it."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import typer

from codehub.cli.remote.common import BROKEN_PIPE, INTERRUPTED

if TYPE_CHECKING:
    from codehub.client import AsyncExec, Chunk

INPUT_BYTES: Final = 64 << 10
FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
MOST_INTERRUPTS: Final = 3
"""Ctrl-C this often leaves a command that ignores it."""


async def run_piped(command: "AsyncExec", *, interactive: bool) -> int:
    """Pass input, output and signals until the command ends; return its exit code."""
    work = asyncio.create_task(_pass_output(command))
    tasks = [asyncio.create_task(_pass_input(command))] if interactive else []
    interrupts = _Signals(command, work)
    interrupts.install()
    try:
        code = await work
    except asyncio.CancelledError:
        typer.echo(f"codehub: left the command {command.id}, which goes on", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        with contextlib.suppress(Exception):
            await command.signal("PIPE")  # as the kernel does to a program that runs here
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    finally:
        for task in tasks:
            task.cancel()
    for task in tasks:
        await _report_lost_input(task)
    return code


async def _pass_output(command: "AsyncExec") -> int:
    from codehub.client import CommandKilled

    async for chunk in command:
        await asyncio.to_thread(_write, chunk)
    try:
        return await command.wait()
    except CommandKilled as killed:
        typer.echo(f"codehub: {killed}", err=True)
        return 124 if killed.reason == "Timeout" else killed.exit_code or 137


def _write(chunk: "Chunk") -> None:
    """Write output. Report a gap only to a reader that is still there."""
    view = memoryview(chunk.data)
    descriptor = 1 if chunk.stream == "stdout" else 2
    while view:
        view = view[os.write(descriptor, view) :]
    if chunk.skipped:
        message = f"{chunk.skipped} bytes of output are missing before this, which are no longer kept"
        typer.echo(f"codehub: {message}", err=True)


async def _pass_input(command: "AsyncExec") -> None:
    from codehub.client import Conflict

    with contextlib.suppress(Conflict):  # the command has ended, or closed its input
        await command.write_from(_standard_input())


async def _report_lost_input(task: "asyncio.Task[None]") -> None:
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await task
        except Exception as error:  # noqa: BLE001 - the exit code is the command's
            typer.echo(f"codehub: the input did not arrive: {error}", err=True)


async def _standard_input() -> AsyncIterator[bytes]:
    """Yield standard input as it comes. A thread reads: a file cannot be waited for in an event loop."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(4)

    def read() -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the loop has ended
            while True:
                piece = os.read(sys.stdin.fileno(), INPUT_BYTES)
                asyncio.run_coroutine_threadsafe(pieces.put(piece), loop).result()
                if not piece:
                    return

    threading.Thread(target=read, daemon=True).start()
    while piece := await pieces.get():
        yield piece


class _Signals:
    """Signals of this process, passed on to the command."""

    def __init__(self, command: "AsyncExec", work: "asyncio.Task[int]") -> None:
        self._command = command
        self._work = work
        self._interrupts = 0
        self._sending: set[asyncio.Task[None]] = set()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            loop.add_signal_handler(number, self._pass_on, number)

    def _pass_on(self, number: signal.Signals) -> None:
        self._interrupts += number is signal.SIGINT
        if self._interrupts >= MOST_INTERRUPTS:
            self._work.cancel()
            return
        task = asyncio.create_task(self._send(number))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, number: signal.Signals) -> None:
        from codehub.client import CodehubError, Conflict

        try:
            await self._command.signal(number.name)
        except Conflict:  # it has ended
            pass
        except CodehubError as error:
            typer.echo(f"codehub: {number.name} did not reach the command: {error}", err=True)
