"""Blocking client of the Docker Engine's API, for monitors of commands (ADR 0035).

Standard library only, without its HTTP client: a monitor must take little memory.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_SECONDS = 10
_START_SECONDS = 60
DEFAULT_PORT = 2375
LONGEST_HEAD = 16 << 10
_SWITCHING_PROTOCOLS, _OK = 101, 200


class EngineGone(OSError):  # noqa: N818 - a fact, not a fault
    """The engine cannot be reached, or closed the connection."""


class EngineSlow(OSError):  # noqa: N818 - a fact, not a fault
    """The engine did not answer in time."""


@dataclass(frozen=True)
class EngineAnswer:
    status: int
    content: bytes

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self.content)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {}

    @property
    def message(self) -> str:
        return str(self.json().get("message") or f"status {self.status}")


@dataclass(frozen=True)
class EngineHttp:
    """The engine at a URL, `unix:///path` or `tcp://host:port`."""

    url: str

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> EngineAnswer:
        """Send a request, with HTTP/1.0: the engine closes the connection behind its answer."""
        with self._connect(_SECONDS) as connection:
            try:
                connection.sendall(request_head(method, path, "1.0", body))
                content = b"".join(iter(lambda: connection.recv(64 << 10), b""))
            except OSError as error:
                raise _failure(error) from error
        head, _, rest = content.partition(b"\r\n\r\n")
        return EngineAnswer(status_of(head), rest)

    def open_stream(self, path: str, body: Mapping[str, Any]) -> socket.socket | EngineAnswer:
        """Return the connection as a raw stream in both directions, or the engine's refusal."""
        connection = self._connect(_START_SECONDS)
        try:
            connection.sendall(request_head("POST", path, "1.1", body, "Connection: Upgrade", "Upgrade: tcp"))
            status = status_of(_read_head(connection))
            if status in (_SWITCHING_PROTOCOLS, _OK):
                return connection
            with connection:
                return EngineAnswer(status, connection.recv(64 << 10))
        except OSError as error:
            connection.close()
            raise _failure(error) from error

    def _connect(self, seconds: int) -> socket.socket:
        """Connect with a limit that the kernel enforces.

        With a timeout of Python's, a Unix socket refuses a connection when many wait already.
        """
        parts = urlsplit(self.url)
        is_unix = parts.scheme == "unix"
        is_ipv6 = ":" in (parts.hostname or "")
        family = socket.AF_UNIX if is_unix else socket.AF_INET6 if is_ipv6 else socket.AF_INET
        connection = socket.socket(family)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
        try:
            connection.connect(parts.path if is_unix else (parts.hostname, parts.port or DEFAULT_PORT))
        except OSError as error:
            connection.close()
            raise _failure(error) from error
        return connection


def request_head(method: str, path: str, version: str, body: Mapping[str, Any] | None, *fields: str) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/{version}",
        "Host: docker",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        *fields,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def _read_head(connection: socket.socket) -> bytes:
    """Read the head byte by byte: what follows belongs to the stream."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(head) > LONGEST_HEAD:
            raise EngineGone("the Docker engine closed the connection")
        head += byte
    return head


def status_of(head: bytes) -> int:
    words = head.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        raise EngineGone("the Docker engine closed the connection")
    return int(words[1])


def _failure(error: OSError) -> OSError:
    if isinstance(error, EngineGone | EngineSlow):
        return error
    if isinstance(error, BlockingIOError):
        return EngineSlow("the Docker engine did not answer in time")
    return EngineGone(f"the Docker engine does not answer: {error.strerror or error}")
