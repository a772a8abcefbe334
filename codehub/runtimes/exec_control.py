"""Control socket of a command's monitor (ADR 0033). Standard library only (see `keeper`).

Clients connect and send one line of JSON, `{"op": ...}`:

    watch                   one byte for each change of the output or the state; closed at the end
    stdin    close?         everything after the line goes to the command's input
    signal   number         sent to the command's process group
    resize   rows, cols     the size of the terminal
    kill     reason         SIGKILL to all processes of the command

The monitor answers each op but `watch` with a line of JSON, `{}` or `{"error": ...}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from pathlib import Path
from typing import Any, Protocol

from codehub.runtimes.exec_directory import CONTROL_SOCKET
from codehub.runtimes.exec_input import InputQueue

_RECEIVE_BYTES = 64 << 10
_LONGEST_LINE = 4096
_MAX_CLIENTS = 256
_BACKLOG = 128
_NO_INPUT = "the command's input is closed"


class Controlled(Protocol):
    """What clients control."""

    def perform(self, op: dict[str, Any]) -> str:
        """Perform `signal`, `resize` or `kill`. Return an error, or nothing."""

    def end_input(self) -> None:
        """End the command's input."""

    def has_ended(self) -> bool: ...


class _Client:
    """Connection to the control socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.line = b""
        self.op: dict[str, Any] | None = None

    def answer(self, error: str = "") -> None:
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps({"error": error} if error else {}).encode() + b"\n")


class ControlSocket:
    """Server of a monitor's clients."""

    def __init__(self, controlled: Controlled, selector: selectors.BaseSelector) -> None:
        self._controlled = controlled
        self._selector = selector
        self.input = InputQueue(selector, self._resume_senders)
        self._senders: list[_Client] = []
        self._watchers: list[_Client] = []
        self._clients = 0

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
        if self._clients >= _MAX_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        self._clients += 1
        self._read_when_ready(_Client(connection))

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
        if self._controlled.has_ended():
            return "the command has ended"
        if op["op"] == "watch":
            self._watchers.append(client)
            self.notify_watchers()
            return None
        if op["op"] == "stdin":
            return None if self.input.is_open else _NO_INPUT
        return self._controlled.perform(op)

    def _accept_input(self, client: _Client, data: bytes) -> None:
        """Queue input of a client. It is not read again until the command has taken that."""
        if not self.input.is_open:
            client.answer(_NO_INPUT)
            self._drop(client)
        elif data:
            self._selector.unregister(client.socket)
            self._senders.append(client)
            self.input.write(data)
        else:
            self._end_input(client)

    def _end_input(self, client: _Client) -> None:
        assert client.op is not None
        if client.op.get("close"):
            self._controlled.end_input()
        client.answer()
        self._drop(client)

    def _resume_senders(self) -> None:
        for client in self._senders:
            self._read_when_ready(client)
        self._senders.clear()

    def _drop(self, client: _Client) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.socket)
        if client in self._watchers:
            self._watchers.remove(client)
        client.socket.close()
        self._clients -= 1
