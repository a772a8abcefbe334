"""A command that is a child of its monitor. Standard library only (see `keeper`)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import signal
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from codehub.host.processes import ProcessId, descendants, has_open
from codehub.runtimes.exec_directory import STDERR, STDOUT, ExecState
from codehub.runtimes.exec_monitor import CANNOT_RUN, CommandEnd, Store
from codehub.runtimes.exec_request import ExecRequest, TerminalSize

_READ_BYTES = 1 << 20
_PIPE_BYTES = 1 << 20
_KILL_ROUNDS = 10
_END_OF_TRANSMISSION = b"\x04"


@dataclass
class Streams:
    """The command's ends of its streams, and whether they are a terminal."""

    stdin: int
    stdout: int
    stderr: int
    is_terminal: bool

    def take(self) -> None:
        """Make these the standard streams of this process, the first of a new session."""
        os.setsid()
        if self.is_terminal:
            fcntl.ioctl(self.stdin, termios.TIOCSCTTY, 0)
        for stream, target in ((self.stdin, 0), (self.stdout, 1), (self.stderr, 2)):
            os.dup2(stream, target)

    def close(self) -> None:
        for descriptor in {self.stdin, self.stdout, self.stderr}:
            os.close(descriptor)


class ForkedCommand:
    """`MonitoredCommand` that `fork` starts with the streams that it gets, as a child of this process."""

    def __init__(self, request: ExecRequest, fork: Callable[[Streams], int]) -> None:
        self._request = request
        self._fork = fork
        self._child = 0
        self._has_ended = False
        self._terminal: int | None = None
        self._outputs: dict[int, str] = {}

    def start(self, selector: selectors.BaseSelector, store: Store) -> int | None:
        self._selector = selector
        self._store = store
        streams, stdin = self._open_streams()
        try:
            self._child = self._fork(streams)
        finally:
            streams.close()
        return stdin

    def _open_streams(self) -> tuple[Streams, int | None]:
        """Return the command's ends of its streams, and our end of its input."""
        size = self._request.tty
        if size is not None:
            ours, theirs = os.openpty()
            _set_size(ours, size)
            self._terminal = os.dup(ours)
            os.set_blocking(self._terminal, False)
            self._add_output(ours, STDOUT)
            return Streams(theirs, os.dup(theirs), os.dup(theirs), is_terminal=True), self._terminal
        stdin, ours = os.pipe()
        streams = Streams(stdin, self._pipe_for(STDOUT), self._pipe_for(STDERR), is_terminal=False)
        if not self._request.stdin:
            os.close(ours)
            return streams, None
        os.set_blocking(ours, False)
        return streams, ours

    def _pipe_for(self, stream: str) -> int:
        ours, theirs = os.pipe()
        with contextlib.suppress(OSError):  # a limit of the user; the default size is only slower
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._add_output(ours, stream)
        return theirs

    def _add_output(self, descriptor: int, stream: str) -> None:
        os.set_blocking(descriptor, False)
        self._outputs[descriptor] = stream
        self._selector.register(descriptor, selectors.EVENT_READ, self._read_output)

    def poll(self) -> CommandEnd | None:
        code = self._reap()
        if code is None:
            return None
        for descriptor in list(self._outputs):
            self._read_rest(descriptor)
        return CommandEnd(ExecState.EXITED, code)

    def _reap(self) -> int | None:
        """Return the command's exit code once it has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return CANNOT_RUN
            if pid == 0:
                return None
            if pid == self._child:
                self._has_ended = True
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code

    def poll_at(self) -> float | None:
        return None  # a signal shows the end

    def has_output(self) -> bool:
        return bool(self._outputs)

    def end_input(self) -> bool:
        """End a terminal's input by the character that means this."""
        if self._terminal is None:
            return False
        with contextlib.suppress(OSError):
            os.write(self._terminal, _END_OF_TRANSMISSION)
        return True

    def signal(self, number: int) -> None:
        """Signal the process group, or what the command has left: the group's number is then free."""
        if self._has_ended:
            for process in self._writers():
                _send(process, number)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child, number)

    def kill(self) -> None:
        """Kill the command, all below it, and what it has left in the background with its output."""
        self.signal(signal.SIGKILL)
        for process in descendants(os.getpid()):
            _send(process, signal.SIGKILL)
        for _ in range(_KILL_ROUNDS):  # one that is about to fork leaves another
            writers = self._writers()
            if not writers:
                return
            for process in writers:
                _send(process, signal.SIGKILL)

    def _writers(self) -> list[ProcessId]:
        """Return the processes of the workspace that hold an end of the output.

        Orphans of a command are below the first process of their namespace, so below the keeper.
        """
        ours = os.getpid()
        outputs = {str(Path(f"/proc/self/fd/{each}").readlink()) for each in self._outputs}
        below = descendants(os.getppid())
        return [each for each in below if each.pid != ours and has_open(each.pid, outputs)]

    def resize(self, size: TerminalSize) -> None:
        assert self._terminal is not None
        _set_size(self._terminal, size)

    def stop_with_workspace(self) -> None:
        """Do nothing: the keeper signals the command itself."""

    def _read_output(self, descriptor: int) -> None:
        """Store one piece of output. More at once would delay signals and clients."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal whose last process has closed it
                raise
            data = b""
        if data:
            self._store(self._outputs[descriptor], data)
        else:
            self._end_output(descriptor)

    def _read_rest(self, descriptor: int) -> None:
        """Store what the command has written before it ended."""
        for _ in range(_PIPE_BYTES // 4096):
            if descriptor not in self._outputs or not _is_readable(descriptor):
                return
            self._read_output(descriptor)

    def _end_output(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        del self._outputs[descriptor]
        os.close(descriptor)


def _send(process: ProcessId, number: int) -> None:
    with contextlib.suppress(PermissionError):  # such as a program that runs as another user
        process.send(number)


def _set_size(terminal: int, size: TerminalSize) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.cols, 0, 0))


def _is_readable(descriptor: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(0))
