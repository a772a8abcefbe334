"""Monitor of one command: holds its streams, stores its output, and records its end (ADR 0033).

It runs as long as the command, whatever happens to the process that asked for it. Standard library
only (see `keeper`).

Clients connect to the control socket and send one line of JSON, `{"op": ...}`:

    watch                   one byte for each change of the output or the state; closed at the end
    stdin    close?         everything after the line goes to the command's input
    signal   number         sent to the command's process group
    resize   rows, cols     the size of the terminal
    kill     reason         SIGKILL to all processes of the command

The monitor answers each op but `watch` with a line of JSON, `{}` or `{"error": ...}`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from codehub.host.processes import ProcessId, boot_id, descendants
from codehub.runtimes.exec_directory import (
    CONTROL_SOCKET,
    STDERR,
    STDOUT,
    ExecDirectory,
    ExecRecord,
    ExecState,
    OutputWriter,
)
from codehub.runtimes.exec_request import ExecRequest, TerminalSize

_READ_BYTES = 1 << 20
_PIPE_BYTES = 1 << 20
_INPUT_BYTES = 64 << 10
_LONGEST_LINE = 4096
_MAX_CLIENTS = 256
_BACKLOG = 128
_END_OF_TRANSMISSION = b"\x04"
_CANNOT_RUN, _NOT_FOUND = 126, 127


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


class _Client:
    """Connection to the control socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.line = b""
        self.op: dict[str, Any] | None = None

    def answer(self, error: str = "") -> None:
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps({"error": error} if error else {}).encode() + b"\n")


class ExecMonitor:
    """Monitor of the command of one request, in a directory that it has created."""

    def __init__(self, directory: ExecDirectory, request: ExecRequest) -> None:
        self._directory = directory
        self._request = request
        self._selector = selectors.DefaultSelector()
        self._writers = {
            name: OutputWriter(directory, name, request.output_bytes) for name in (STDOUT, STDERR)
        }
        self._outputs: dict[int, str] = {}
        self._stdin: int | None = None
        self._input = bytearray()
        self._is_stdin_polled = False
        self._senders: list[_Client] = []
        self._watchers: list[_Client] = []
        self._clients = 0
        self._child = 0
        self._kill_reason: str | None = None
        self._stopping = False
        me = ProcessId.of(os.getpid())
        assert me is not None
        self._record = ExecRecord(ExecState.RUNNING, boot_id(), me, time.time())
        self._deadline = (
            None if request.timeout_seconds is None else time.monotonic() + request.timeout_seconds
        )
        self._kill_at: float | None = None

    def run(self, start: Callable[[Streams], int], started: Callable[[], None]) -> None:
        """Start the command, call `started`, and return when it and its output have ended."""
        self._directory.write_record(self._record)
        self._install_signal_handlers()
        self._listen()
        streams = self._open_streams()
        try:
            self._child = start(streams)
        except OSError as error:
            self._record_failed_start(error)
            started()
            return
        finally:
            streams.close()
        started()
        self._serve_until_end()
        self._serve_remaining_output()

    def _record_failed_start(self, error: OSError) -> None:
        """Record what a shell would: 127 for an unknown command, 126 for one that cannot run."""
        code = _NOT_FOUND if error.errno == errno.ENOENT else _CANNOT_RUN
        self._writers[STDERR].write(f"{self._request.command[0]}: {error.strerror or error}\n".encode())
        self._record_end(ExecState.EXITED, code)

    def _open_streams(self) -> Streams:
        size = self._request.tty
        if size is not None:
            ours, theirs = os.openpty()
            _set_size(ours, size)
            self._stdin = os.dup(ours)
            os.set_blocking(self._stdin, False)
            self._add_output(ours, STDOUT)
            return Streams(theirs, os.dup(theirs), os.dup(theirs), is_terminal=True)
        stdin, self._stdin = os.pipe()
        os.set_blocking(self._stdin, False)
        if not self._request.stdin:
            self._discard_stdin()
        return Streams(stdin, self._pipe_for(STDOUT), self._pipe_for(STDERR), is_terminal=False)

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

    def _listen(self) -> None:
        """Listen on the control socket, by a short path: that of a socket is limited."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        within = os.open(self._directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{within}/{CONTROL_SOCKET}")
            os.chmod(CONTROL_SOCKET, 0o660, dir_fd=within)
        finally:
            os.close(within)
        self._listener.listen(_BACKLOG)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

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
        """Let the command end with its workspace, which signals the command itself."""
        self._stopping = True
        self._kill_reason = self._kill_reason or "WorkspaceStopped"

    def _read_wakeups(self, _descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeups.recv(4096)

    def _serve_until_end(self) -> None:
        while (code := self._reap()) is None:
            self._enforce_deadlines()
            self._handle_events(self._select_timeout())
        for descriptor in list(self._outputs):
            self._read_rest(descriptor)
        killed = self._kill_reason is not None
        self._record_end(ExecState.KILLED if killed else ExecState.EXITED, code)

    def _serve_remaining_output(self) -> None:
        """Store what background processes of the command still write, until they end."""
        while self._outputs and not self._stopping:
            self._handle_events(None)

    def _handle_events(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data(key.fd)

    def _reap(self) -> int | None:
        """Return the command's exit code once it has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return _CANNOT_RUN
            if pid == 0:
                return None
            if pid == self._child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code

    def _select_timeout(self) -> float | None:
        times = [at for at in (self._deadline, self._kill_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._kill_reason = self._kill_reason or "Timeout"
            self._signal_group(signal.SIGTERM)
            self._kill_at = now + self._request.kill_after_seconds
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._kill_tree()

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child, number)

    def _kill_tree(self) -> None:
        self._signal_group(signal.SIGKILL)
        for process in descendants(os.getpid()):
            process.send(signal.SIGKILL)

    def _record_end(self, state: ExecState, code: int) -> None:
        for writer in self._writers.values():
            writer.close()
        self._record = replace(
            self._record,
            state=state,
            ended_at=time.time(),
            exit_code=code,
            reason=self._kill_reason,
            dropped=sum(writer.dropped for writer in self._writers.values()),
        )
        self._directory.write_record(self._record)
        for client in tuple(self._watchers):
            self._drop(client)

    # Output

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
        if not data:
            self._end_output(descriptor)
            return
        self._writers[self._outputs[descriptor]].write(data)
        self._notify_watchers()

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

    def _notify_watchers(self) -> None:
        """Wake the watchers. One whose socket is full has not read the last wake-up yet."""
        for client in tuple(self._watchers):
            try:
                client.socket.send(b".")
            except BlockingIOError:
                pass
            except OSError:
                self._drop(client)

    # Clients

    def _accept(self, _descriptor: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if self._clients >= _MAX_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        self._clients += 1
        client = _Client(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._read_client(client))

    def _read_client(self, client: _Client) -> None:
        try:
            data = client.socket.recv(_INPUT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        if client.op is None:
            input_after_line = self._read_line(client, data)
            if input_after_line:
                self._accept_input(client, input_after_line)
        elif client.op["op"] == "stdin":
            self._accept_input(client, data)
        elif not data:
            self._drop(client)

    def _read_line(self, client: _Client, data: bytes) -> bytes:
        """Read and perform the op of a client. Return the input that follows it, if that is its op."""
        client.line += data
        line, newline, rest = client.line.partition(b"\n")
        if not newline:
            if not data or len(line) > _LONGEST_LINE:
                self._drop(client)
            return b""
        try:
            op = json.loads(line)
            client.op = {"op": str(op["op"]), **op}
            error = self._perform(client, client.op)
        except (ValueError, KeyError, TypeError) as problem:
            error = f"not a request: {problem}"
        if error is not None:
            client.answer(error)
            self._drop(client)
            return b""
        return rest if client.op is not None and client.op["op"] == "stdin" else b""

    def _perform(self, client: _Client, op: dict[str, Any]) -> str | None:
        """Perform an op; return its error or "", or None if the client stays."""
        if self._record.state is not ExecState.RUNNING:
            return "the command has ended"
        match op["op"]:
            case "watch":
                self._watchers.append(client)
                self._notify_watchers()
                return None
            case "stdin":
                return None if self._stdin is not None else "the command's input is closed"
            case "signal":
                self._signal_group(int(op["number"]))
            case "resize":
                return self._resize(TerminalSize(int(op["rows"]), int(op["cols"])))
            case "kill":
                self._kill_reason = self._kill_reason or str(op["reason"])
                self._kill_tree()
            case unknown:
                return f"unknown op {unknown!r}"
        return ""

    def _resize(self, size: TerminalSize) -> str:
        if self._request.tty is None or self._stdin is None:
            return "the command has no terminal"
        _set_size(self._stdin, size)
        return ""

    def _accept_input(self, client: _Client, data: bytes) -> None:
        """Queue input of a client. It is not read again until the command has taken that."""
        if self._stdin is None:
            client.answer("the command's input is closed")
            self._drop(client)
        elif data:
            self._input += data
            self._selector.unregister(client.socket)
            self._senders.append(client)
            self._write_input(self._stdin)
        else:
            self._end_input(client)

    def _end_input(self, client: _Client) -> None:
        assert client.op is not None
        if client.op.get("close"):
            self._close_stdin()
        client.answer()
        self._drop(client)

    def _write_input(self, stdin: int) -> None:
        """Write queued input, as far as the command takes it."""
        try:
            while self._input:
                del self._input[: os.write(stdin, self._input[:_INPUT_BYTES])]
        except BlockingIOError:
            self._poll_stdin(stdin, polled=True)
            return
        except OSError:  # the command has closed its input, or ended
            self._input.clear()
            self._discard_stdin()
        else:
            self._poll_stdin(stdin, polled=False)
        for client in self._senders:
            self._selector.register(
                client.socket, selectors.EVENT_READ, lambda _, client=client: self._read_client(client)
            )
        self._senders.clear()

    def _poll_stdin(self, stdin: int, *, polled: bool) -> None:
        if polled == self._is_stdin_polled:
            return
        self._is_stdin_polled = polled
        if polled:
            self._selector.register(stdin, selectors.EVENT_WRITE, self._write_input)
        else:
            self._selector.unregister(stdin)

    def _close_stdin(self) -> None:
        """End the command's input: for a terminal by the character that means this."""
        if self._stdin is not None and self._request.tty is not None:
            with contextlib.suppress(OSError):
                os.write(self._stdin, _END_OF_TRANSMISSION)
        else:
            self._discard_stdin()

    def _discard_stdin(self) -> None:
        if self._stdin is not None:
            self._poll_stdin(self._stdin, polled=False)
            os.close(self._stdin)
            self._stdin = None

    def _drop(self, client: _Client) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.socket)
        if client in self._watchers:
            self._watchers.remove(client)
        client.socket.close()
        self._clients -= 1


def _set_size(terminal: int, size: TerminalSize) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.cols, 0, 0))


def _is_readable(descriptor: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(0))
