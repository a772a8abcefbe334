"""Control socket of a command's monitor (ADR 0033). Standard library only (see `keeper`).

Clients connect and send one line of JSON, `{"op": ...}`:

    watch                   one byte for each change of the output or the state; closed at the end
    stdin    close?         the frames after the line go to the command's input (see `exec_input`)
    signal   number         sent to the command's process group
    resize   rows, cols     the size of the terminal
    kill     reason         SIGKILL to all processes of the command, also after its end

The monitor answers each op but `watch` with a line of JSON, `{}` or `{"error": ...}`. Input without the
mark of its end stays open, because its sender was cut off.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import socket
from pathlib import Path
from typing import Any, Protocol

from codehub.runtimes.exec_directory import CONTROL_SOCKET
from codehub.runtimes.exec_input import InputFrames, InputQueue

_RECEIVE_BYTES = 64 << 10
_LONGEST_LINE = 4096
_MAX_STREAMS = 256
"""Connections that send input or watch. The others are for `kill` and `signal`, which are short."""
_MAX_CLIENTS = _MAX_STREAMS + 64
_BACKLOG = 128
_STREAMS = ("watch", "stdin")
_NO_INPUT = "the command's input is closed"
_TOO_MANY = "too many clients read the command's output or send input: try again later"


class Controlled(Protocol):
    """What clients control."""

    def perform(self, op: dict[str, Any]) -> str:
        """Perform `signal`, `resize` or `kill`. Return an error, or nothing."""

    def end_input(self) -> None:
        """End the command's input."""

    def has_ended(self) -> bool: ...


def handle_events(selector: selectors.BaseSelector, timeout: float | None) -> None:
    """Call the data of each key that is ready, unless a call before has unregistered the key."""
    for key, _ in selector.select(timeout):
        if selector.get_map().get(key.fd) is key:
            key.data(key.fd)


class _Client:
    """Connection to the control socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.line = b""
        self.op: dict[str, Any] | None = None
        self.frames = InputFrames()

    @property
    def is_stream(self) -> bool:
        return self.op is not None and self.op["op"] in _STREAMS

    def has_hung_up(self) -> bool:
        hung_up = select.poll()
        hung_up.register(self.socket, 0)
        return bool(hung_up.poll(0))

    def answer(self, error: str = "") -> None:
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps({"error": error} if error else {}).encode() + b"\n")


class ControlSocket:
    """Server of a monitor's clients."""

    def __init__(self, controlled: Controlled, selector: selectors.BaseSelector) -> None:
        self._controlled = controlled
        self._selector = selector
        self.input = InputQueue(selector, controlled.end_input, self._resume_senders)
        self._clients: set[_Client] = set()
        self._watchers: list[_Client] = []
        self._senders: list[_Client] = []
        """Clients whose input the command has not taken yet."""

    def listen(self, directory: Path) -> None:
        """Listen on the control socket, by a short path: that of a socket is limited."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        within = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{within}/{CONTROL_SOCKET}")
            os.chmod(CONTROL_SOCKET, 0o660, dir_fd=within)
        finally:
            os.close(within)
        self._listener.listen(_BACKLOG)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def notify_watchers(self) -> None:
        """Wake the watchers. One whose socket is full has not read the last wake-up yet."""
        for client in tuple(self._watchers):
            try:
                client.socket.send(b".")
            except BlockingIOError:
                pass
            except OSError:
                self._drop(client)

    def drop_watchers(self) -> None:
        """Close the connections of the watchers, which shows them that the command has ended."""
        for client in tuple(self._watchers):
            self._drop(client)

    def _accept(self, _descriptor: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        client = _Client(connection)
        self._clients.add(client)
        if len(self._clients) > _MAX_CLIENTS:
            self._answer(client, _TOO_MANY)
        else:
            self._read_when_ready(client)

    def _read_when_ready(self, client: _Client) -> None:
        def read(_descriptor: int) -> None:
            self._read(client)

        self._selector.register(client.socket, selectors.EVENT_READ, read)

    def _read(self, client: _Client) -> None:
        try:
            data = client.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        if client.op is None:
            frames = self._read_line(client, data)
            if frames:
                self._accept_input(client, frames)
        elif not data:
            self._drop(client)
        elif client.op["op"] == "stdin":
            self._accept_input(client, data)

    def _read_line(self, client: _Client, data: bytes) -> bytes:
        """Read and perform the op of a client. Return the frames that follow it, if that is its op."""
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
        except OSError as problem:
            error = f"it failed: {problem.strerror or problem}"
        if error is not None:
            self._answer(client, error)
            return b""
        return rest if client.op is not None and client.op["op"] == "stdin" else b""

    def _perform(self, client: _Client, op: dict[str, Any]) -> str | None:
        """Perform an op; return its error or "", or None if the client stays."""
        if self._controlled.has_ended() and op["op"] != "kill":
            return "the command has ended"
        if client.is_stream and not self._has_room():
            return _TOO_MANY
        if op["op"] == "watch":
            self._watchers.append(client)
            self.notify_watchers()
            return None
        if op["op"] == "stdin":
            return None if self.input.is_open else _NO_INPUT
        return self._controlled.perform(op)

    def _has_room(self) -> bool:
        """Return whether one more stream, already counted, may stay. Make room if senders are gone."""
        if self._count_streams() > _MAX_STREAMS:
            for client in tuple(self._senders):
                if client.has_hung_up():
                    self._drop(client)
        return self._count_streams() <= _MAX_STREAMS

    def _count_streams(self) -> int:
        return sum(client.is_stream for client in self._clients)

    def _accept_input(self, client: _Client, data: bytes) -> None:
        """Queue input of a client. It is not read again until the command has taken that."""
        content = client.frames.decode(data)
        if not self.input.is_open:
            self._answer(client, _NO_INPUT)
        elif content:
            self._selector.unregister(client.socket)
            self._senders.append(client)
            self.input.write(content)
        elif client.frames.is_complete:
            self._complete_input(client)

    def _complete_input(self, client: _Client) -> None:
        assert client.op is not None
        if client.op.get("close"):
            self.input.end()
        self._answer(client)

    def _resume_senders(self, is_taken: bool) -> None:
        senders, self._senders = self._senders, []
        for client in senders:
            if not is_taken:
                self._answer(client, _NO_INPUT)
            elif client.frames.is_complete:
                self._complete_input(client)
            else:
                self._read_when_ready(client)

    def _answer(self, client: _Client, error: str = "") -> None:
        """Answer a client, and close its connection."""
        client.answer(error)
        self._drop(client)

    def _drop(self, client: _Client) -> None:
        """Close a connection, if it is still open."""
        if client not in self._clients:
            return
        self._clients.remove(client)
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.socket)
        for clients in (self._watchers, self._senders):
            if client in clients:
                clients.remove(client)
        client.socket.close()
