"""A command that the Docker Engine runs in a container, as its monitor sees it (ADR 0035).

Standard library only (see `engine_http`).

The engine closes the stream when the command has ended, at the latest two seconds after that. Only
then is the end recorded, so that no output is missing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time

from codehub.host.processes import ProcessId, processes_of_group
from codehub.runtimes.docker import exec_note
from codehub.runtimes.docker.container_process import ContainerProcess, kill_tree, process_in
from codehub.runtimes.docker.engine_exec import EngineExec, ExecInspection, has_input
from codehub.runtimes.docker.engine_http import EngineAnswer, EngineGone, EngineHttp, EngineSlow
from codehub.runtimes.docker.exec_note import ExecNote
from codehub.runtimes.docker.exec_stream import FrameDecoder
from codehub.runtimes.docker.failed_start import explain_failed_start
from codehub.runtimes.docker.output_holders import OutputHolders
from codehub.runtimes.exec_directory import STDERR, STDOUT, ExecDirectory, ExecState
from codehub.runtimes.exec_monitor import WORKSPACE_STOPPED, CommandEnd, Store
from codehub.runtimes.exec_request import CommandRefused, ExecRequest, TerminalSize

_READ_BYTES = 256 << 10
_END_OF_TRANSMISSION = b"\x04"
_KILLED = 128 + signal.SIGKILL
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.002, 0.5
_START_POLL_SECONDS = 0.05
_SIGNAL_SECONDS = 10.0
_ANSWER_SECONDS = 60.0
_ENGINE_GONE = "EngineUnavailable"
_KILL_ROUNDS = 10


class EngineCommand:
    """`MonitoredCommand` that runs through the engine's exec."""

    def __init__(
        self, engine: EngineHttp, container: ContainerProcess, request: ExecRequest, directory: ExecDirectory
    ) -> None:
        self._engine = engine
        self._container = container
        self._request = request
        self._directory = directory
        self._process: ProcessId | None = None
        self._has_ended = False
        self._holders = OutputHolders(container)
        self._stream: socket.socket | None = None
        self._frames = FrameDecoder()
        self._poll_at: float | None = None
        self._pause = _START_POLL_SECONDS
        self._give_up_at: float | None = None

    # Start

    def start(self, selector: selectors.BaseSelector, store: Store) -> int | None:
        """Start the command, or raise CommandRefused if the engine starts nothing."""
        self._selector = selector
        self._store = store
        self._check_deadline()
        self._exec = EngineExec.create(self._engine, self._container.id, self._request)
        self._check_deadline()
        ExecNote(self._container.id, self._exec.id).write(self._directory)
        self._poll_at = time.monotonic() + self._pause
        try:
            stream = self._exec.start(self._request.tty)
        except (EngineGone, EngineSlow):
            self._poll_at = time.monotonic()  # the command may run: it counts as started
            return None
        if isinstance(stream, EngineAnswer):
            exec_note.remove(self._directory)
            raise CommandRefused(f"the Docker engine did not start the command: {stream.message}")
        stream.setblocking(False)
        self._stream = stream
        selector.register(stream, selectors.EVENT_READ, self._on_first_output)
        return os.dup(stream.fileno()) if has_input(self._request) else None

    def _check_deadline(self) -> None:
        until = self._request.start_until
        if until is not None and time.monotonic() > until:
            raise CommandRefused("the Docker engine took too long; no command was started")

    # Its end

    def poll_at(self) -> float | None:
        return self._poll_at

    def poll(self) -> CommandEnd | None:
        if self._poll_at is None or time.monotonic() < self._poll_at:
            return None
        self._poll_at = None
        try:
            end = self._find_process() if self._process is None else self._find_end_behind_stream()
        except EngineSlow:
            end = self._retry_slow_engine()
        except EngineGone:
            end = self._end_without_engine()
        if end is not None:
            self._release()
        return end

    def _find_process(self) -> CommandEnd | None:
        """Find out which process the command is. Before that its output may be the engine's message."""
        state = self._inspect()
        if self._set_process(state):
            if self._stream is None:
                return self._end_without_engine()
            self._read_from_now_on()
            return None
        if state.is_running:
            self._poll_again()
            return None
        return self._end_of_start()

    def _end_of_start(self) -> CommandEnd | None:
        """Return the end of a command that did not start.

        One that ended at once looks the same until the engine closes its stream.
        """
        output = self._rest_of_stream()
        if self._set_process(self._inspect()):
            for stream, content in output:
                self._store(stream, content)
            self._end_output()
            self._poll_soon()
            return None
        if self._container.init.is_exiting():
            return CommandEnd(ExecState.KILLED, None, WORKSPACE_STOPPED)
        text = b"".join(content for _, content in output).decode(errors="replace")
        code, message = explain_failed_start(text, self._request)
        self._store(STDERR, f"{message}\n".encode())
        return CommandEnd(ExecState.EXITED, code)

    def _rest_of_stream(self) -> list[tuple[str, bytes]]:
        if self._stream is None:
            return []
        self._stream.settimeout(_SIGNAL_SECONDS)
        text = b"".join(iter(lambda: self._receive() or b"", b""))
        if self._request.tty is not None:
            return [(STDOUT, text)]
        return [(stream, bytes(content)) for stream, content in self._frames.decode(text)]

    def _set_process(self, state: ExecInspection) -> bool:
        """Return whether the command has started."""
        if state.pid == 0:
            return False
        self._process = process_in(self._container.id, state.pid) or ProcessId(state.pid, 0)
        self._holders.find_pipes(self._process)
        with contextlib.suppress(OSError):  # the disk is full; the engine knows the process of the exec
            ExecNote(self._container.id, self._exec.id, self._process).write(self._directory)
        return True

    def _read_from_now_on(self) -> None:
        if self._request.tty is not None:
            with contextlib.suppress(OSError):  # it has ended; newer engines have set it before
                self.resize(self._request.tty)
        if self._stream is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._stream)
            self._selector.register(self._stream, selectors.EVENT_READ, self._read_output)

    def _find_end_behind_stream(self) -> CommandEnd | None:
        """Return the command's end once its stream has ended and the engine knows its exit code."""
        if self._stream is not None:
            return None
        state = self._inspect()
        if state.is_running:
            self._poll_again()
            return None
        code = state.exit_code
        if code in (None, _KILLED) and self._container.init.is_exiting():
            return CommandEnd(ExecState.KILLED, code, WORKSPACE_STOPPED)
        return CommandEnd(ExecState.EXITED, code)

    def _inspect(self) -> ExecInspection:
        found = self._exec.inspect()
        self._give_up_at = None
        return found

    def _poll_again(self) -> None:
        self._poll_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LAST_POLL_SECONDS)

    def _poll_soon(self) -> None:
        self._pause = _FIRST_POLL_SECONDS
        self._poll_at = time.monotonic()

    def _retry_slow_engine(self) -> CommandEnd | None:
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + _ANSWER_SECONDS
        if now >= self._give_up_at:
            return self._end_without_engine()
        self._poll_again()
        return None

    def _end_without_engine(self) -> CommandEnd:
        """End a command whose exit code nobody knows any more. No command runs without its streams."""
        if self._container.init.is_exiting():
            return CommandEnd(ExecState.KILLED, None, WORKSPACE_STOPPED)
        if self._process is not None:
            self.kill()
        return CommandEnd(ExecState.LOST, None, _ENGINE_GONE)

    def _release(self) -> None:
        self._has_ended = True
        self._end_output()
        exec_note.remove(self._directory)
        self._holders.watch(self._selector)

    # Streams

    def has_output(self) -> bool:
        return self._stream is not None or self._holders.are_watched

    def _on_first_output(self, _descriptor: int) -> None:
        assert self._stream is not None
        self._selector.unregister(self._stream)
        self._poll_soon()

    def _read_output(self, _descriptor: int) -> None:
        """Store one piece of output. More at once would delay signals and clients."""
        data = self._receive()
        if data is None:
            return
        if not data:
            self._end_output()
            self._poll_soon()
        elif self._request.tty is not None:
            self._store(STDOUT, data)
        else:
            for stream, content in self._frames.decode(data):
                self._store(stream, content)

    def _receive(self) -> bytes | None:
        """Return a piece of the stream: empty at its end, None if there is none yet."""
        assert self._stream is not None
        try:
            return self._stream.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _end_output(self) -> None:
        """Close the stream. The descriptor of the input is a copy of it, which fails from now on."""
        if self._stream is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._stream)
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
            self._stream.close()
            self._stream = None

    def end_input(self) -> bool:
        """End a terminal's input by the character that means this, and other input for the engine."""
        if self._stream is None:
            return False
        with contextlib.suppress(OSError):
            if self._request.tty is None:
                self._stream.shutdown(socket.SHUT_WR)
                return False
            self._stream.send(_END_OF_TRANSMISSION)
        return self._request.tty is not None

    # Signals

    def signal(self, number: int) -> None:
        """Signal the process group, or what the command has left: the group's number is then free."""
        process = self._wait_for_process()
        if self._has_ended:
            found = self._holders.find()
        else:
            found = [] if process is None else processes_of_group(process)
        for each in found:
            each.send(number)

    def kill(self) -> None:
        """Kill the command, all below it, and what it has left in the background with its output."""
        process = self._wait_for_process()
        if process is not None:
            kill_tree(process)
        for _ in range(_KILL_ROUNDS):  # one that is about to fork leaves another
            holders = self._holders.find()
            if not holders:
                return
            for each in holders:
                each.send(signal.SIGKILL)

    def resize(self, size: TerminalSize) -> None:
        if self._wait_for_process() is None:
            raise OSError("the command has not started")
        self._exec.resize(size)

    def stop_with_workspace(self) -> None:
        self.signal(signal.SIGTERM)

    def _wait_for_process(self) -> ProcessId | None:
        """Return the command's process. If it is about to start, wait for that a moment."""
        until = time.monotonic() + _SIGNAL_SECONDS
        while self._process is None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                state = self._inspect()
                if self._set_process(state):
                    self._read_from_now_on()
                elif not state.is_running:
                    return None
            if self._process is None:
                time.sleep(_START_POLL_SECONDS / 5)
        return self._process
