"""Monitor of one command: stores its output, serves its clients, and records its end (ADR 0033).

It runs as long as the command, whatever happens to the process that asked for it. Standard library
only (see `keeper`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from codehub.host.processes import ProcessId, boot_id
from codehub.runtimes.exec_control import ControlSocket, handle_events
from codehub.runtimes.exec_directory import STDERR, STDOUT, ExecDirectory, ExecRecord, ExecState, OutputWriter
from codehub.runtimes.exec_request import ExecRequest, TerminalSize

CANNOT_RUN, NOT_FOUND = 126, 127
WORKSPACE_STOPPED = "WorkspaceStopped"
Store = Callable[[str, "bytes | memoryview"], None]
"""Stores output of a stream."""


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended."""

    state: ExecState
    code: int | None
    """128 plus the signal's number if a signal ended it."""
    reason: str | None = None


class MonitoredCommand(Protocol):
    """The command of a monitor: its streams, its end, and signals to it.

    It registers its streams with the monitor's selector. The data of a key is called with the
    descriptor that is ready.
    """

    def start(self, selector: selectors.BaseSelector, store: Store) -> int | None:
        """Start the command. Return a descriptor for its input, or None if that is closed.

        Raise OSError if it cannot run.
        """

    def poll(self) -> CommandEnd | None:
        """Return how the command ended, once it has ended and its output has been stored."""

    def poll_at(self) -> float | None:
        """Return when to call `poll` again even if there is no event, on the monotonic clock."""

    def has_output(self) -> bool:
        """Return whether a process of the command may still write, even after its end."""

    def end_input(self) -> bool:
        """End the input in another way than by closing it. Return False if closing it suffices."""

    def signal(self, number: int) -> None:
        """Send a signal to the process group."""

    def kill(self) -> None:
        """Kill all processes of the command, also those that still write after its end."""

    def resize(self, size: TerminalSize) -> None:
        """Set the size of the terminal. Raise OSError if that fails."""

    def stop_with_workspace(self) -> None:
        """Ask the command to end, since its workspace stops."""


class ExecMonitor:
    """Monitor of the command of one request, in a directory that it has created."""

    def __init__(self, directory: ExecDirectory, request: ExecRequest, command: MonitoredCommand) -> None:
        self._directory = directory
        self._request = request
        self._command = command
        self._selector = selectors.DefaultSelector()
        self._control = ControlSocket(self, self._selector)
        self._writers = {
            name: OutputWriter(directory, name, request.output_bytes, request.reserve_bytes)
            for name in (STDOUT, STDERR)
        }
        self._kill_reason: str | None = None
        self._stopping = False
        self._is_told_to_stop = False
        me = ProcessId.of(os.getpid())
        assert me is not None
        self._record = ExecRecord(ExecState.RUNNING, boot_id(), me, time.time())
        self._deadline = (
            None if request.timeout_seconds is None else time.monotonic() + request.timeout_seconds
        )
        self._kill_at: float | None = None

    def run(self, started: Callable[[], None]) -> None:
        """Start the command, call `started`, and return when it and its output have ended."""
        self._directory.write_record(self._record)
        self._install_signal_handlers()
        self._control.listen(self._directory.path)
        try:
            self._control.input.open(self._command.start(self._selector, self._store))
        except OSError as error:
            self._record_failed_start(error)
            started()
            return
        started()
        self._serve_until_end()
        self._serve_remaining_output()

    def has_ended(self) -> bool:
        return self._record.state is not ExecState.RUNNING

    def perform(self, op: dict[str, Any]) -> str:
        match op["op"]:
            case "signal":
                self._command.signal(int(op["number"]))
            case "resize":
                return self._resize(TerminalSize(int(op["rows"]), int(op["cols"])))
            case "kill":
                self._kill_reason = self._kill_reason or str(op["reason"])
                self._command.kill()
            case unknown:
                return f"unknown op {unknown!r}"
        return ""

    def end_input(self) -> None:
        if not self._command.end_input():
            self._control.input.close()

    def _resize(self, size: TerminalSize) -> str:
        if self._request.tty is None:
            return "the command has no terminal"
        try:
            self._command.resize(size)
        except OSError as error:
            return f"the terminal cannot be resized: {error.strerror or error}"
        return ""

    def _record_failed_start(self, error: OSError) -> None:
        """Record what a shell would: 127 for an unknown command, 126 for one that cannot run."""
        code = NOT_FOUND if error.errno == errno.ENOENT else CANNOT_RUN
        self._store(STDERR, f"{self._request.command[0]}: {error.strerror or error}\n".encode())
        self._record_end(CommandEnd(ExecState.EXITED, code))

    def _install_signal_handlers(self) -> None:
        self._wakeups, sender = socket.socketpair()
        self._sender = sender
        for end in (self._wakeups, sender):
            end.setblocking(False)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_workspace_stop)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._selector.register(self._wakeups, selectors.EVENT_READ, self._read_wakeups)

    def _on_workspace_stop(self, *_: object) -> None:
        self._stopping = True
        self._kill_reason = self._kill_reason or WORKSPACE_STOPPED

    def _read_wakeups(self, _descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeups.recv(4096)

    def _serve_until_end(self) -> None:
        while (end := self._command.poll()) is None:
            self._enforce_deadlines()
            self._stop_with_workspace()
            handle_events(self._selector, self._select_timeout())
        self._record_end(end)

    def _serve_remaining_output(self) -> None:
        """Store what background processes of the command still write, until they end.

        They can be killed, and the command's timeout holds for them.
        """
        while self._command.has_output() and not self._stopping:
            self._enforce_deadlines()
            handle_events(self._selector, self._select_timeout())

    def _select_timeout(self) -> float | None:
        times = [at for at in (self._deadline, self._kill_at, self._command.poll_at()) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._kill_reason = self._kill_reason or "Timeout"
            self._command.signal(signal.SIGTERM)
            self._kill_at = now + self._request.kill_after_seconds
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._command.kill()

    def _stop_with_workspace(self) -> None:
        if self._stopping and not self._is_told_to_stop:
            self._is_told_to_stop = True
            self._command.stop_with_workspace()

    def _store(self, stream: str, data: bytes | memoryview) -> None:
        self._writers[stream].write(data)
        self._control.notify_watchers()

    def _record_end(self, end: CommandEnd) -> None:
        for writer in self._writers.values():
            writer.close()
        is_killed = self._kill_reason is not None and end.state is ExecState.EXITED
        self._record = replace(
            self._record,
            state=ExecState.KILLED if is_killed else end.state,
            ended_at=time.time(),
            exit_code=end.code,
            reason=self._kill_reason or end.reason,
            dropped=sum(writer.dropped for writer in self._writers.values()),
        )
        self._directory.write_record(self._record)
        self._control.drop_watchers()
