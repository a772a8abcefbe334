"""A row of the conformance table: what a client sends, what the upstream sees of it, what the client gets.

All bytes are exact. They may name what differs from run to run: `{host}`, `{base}` (the path under which the
workspace is: empty on its own origin), `{who}` (the cookie that lets its owner in) and `{platform}`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class End(Enum):
    """What becomes of the client's connection."""

    STAYS = "the next request on it is answered"
    CLOSED = "the gateway has ended it"
    BROKEN = "it was broken off: what came must not look whole"
    GONE = "the client itself has left"


class Mode(Enum):
    """Where a row holds."""

    BOTH = ("path", "origin")
    PATH = ("path",)
    ORIGIN = ("origin",)


class Then(Enum):
    """What the upstream does after its answer."""

    KEEP = "waits for the next request"
    CLOSE = "closes"
    HALF_CLOSE = "says that it will send no more, and goes on reading"


@dataclass(frozen=True)
class Answer:
    data: bytes
    """When the whole request is there."""
    then: Then = Then.KEEP
    early: bytes = b""
    """As soon as its head is there."""


@dataclass(frozen=True)
class UpstreamSaw:
    """Wait until the upstream has got this."""

    data: bytes


@dataclass(frozen=True)
class ClientGot:
    """Wait until the client has got this."""

    data: bytes


class Act(Enum):
    HALF_CLOSE = "the client says that it will send no more"
    LEAVE = "the client closes"


Step = bytes | UpstreamSaw | ClientGot | Act

OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
OK_AND_CLOSE: Final = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
NOTHING: Final = b""
HARMLESS: Final = b"GET {base}/harmless HTTP/1.1\r\nHost: {host}\r\nCookie: {who}\r\n\r\n"
VIA: Final = b"x-forwarded-for: 127.0.0.1\r\nx-forwarded-host: {host}\r\nx-forwarded-proto: http\r\n\r\n"
HARMLESS_SEEN: Final = b"GET /harmless HTTP/1.1\r\nhost: {host}\r\n" + VIA


@dataclass(frozen=True)
class Case:
    name: str
    sends: bytes | tuple[Step, ...]
    sees: bytes = NOTHING
    gets: int | tuple[int, ...] | bytes = OK
    """The statuses of all answers, or all bytes."""
    end: End = End.STAYS
    answer: bytes | Answer = OK
    """What the upstream says to it."""
    by_api: bool = False
    """The upstream is the platform's API, and not the workspace."""
    mode: Mode = Mode.BOTH

    @property
    def is_plain(self) -> bool:
        """Whether it is bytes only, which can follow others on one connection."""
        return isinstance(self.sends, bytes)

    @property
    def steps(self) -> tuple[Step, ...]:
        return (self.sends,) if isinstance(self.sends, bytes) else self.sends


def refused(name: str, sends: bytes, status: int = 400, *, sees: bytes = NOTHING) -> Case:
    """The gateway answers by itself and closes; by default no upstream has seen a byte."""
    return Case(name, sends, sees, status, End.CLOSED)


def request(
    method: bytes, *lines: bytes, target: bytes = b"{base}/x", version: bytes = b"1.1", body: bytes = b""
) -> bytes:
    """The lines come first, so that what follows them is what the request before it ended with."""
    start = b"%b %b HTTP/%b" % (method, target, version)
    return b"\r\n".join([start, *lines, b"Host: {host}", b"Cookie: {who}", b"", body])


def get(*lines: bytes, target: bytes = b"{base}/x", version: bytes = b"1.1", body: bytes = b"") -> bytes:
    return request(b"GET", *lines, target=target, version=version, body=body)


def post(*lines: bytes, target: bytes = b"{base}/x", version: bytes = b"1.1", body: bytes = b"") -> bytes:
    return request(b"POST", *lines, target=target, version=version, body=body)


def saw(
    method: bytes,
    *lines: bytes,
    target: bytes = b"/x",
    version: bytes = b"1.1",
    added: tuple[bytes, ...] = (),
    body: bytes = b"",
) -> bytes:
    """A request as the upstream sees it; `added` is what the gateway says of its own connection."""
    start = b"%b %b HTTP/%b" % (method, target, version)
    return b"\r\n".join([start, *lines, b"host: {host}", *added, VIA]) + body


def saw_get(*lines: bytes, target: bytes = b"/x") -> bytes:
    return saw(b"GET", *lines, target=target)


def saw_chunked(body: bytes, *lines: bytes) -> bytes:
    return saw(b"POST", *lines, added=(b"transfer-encoding: chunked",), body=body)
