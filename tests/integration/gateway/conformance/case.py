"""A row of the conformance table: the bytes sent, forwarded and returned.

All bytes are exact, except for placeholders: `{host}`, `{base}` (the path of the workspace, which
is empty on the workspace's origin), `{cookie}` (the cookie of the owner) and `{platform}`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class End(Enum):
    """The state of the client's connection after the case."""

    OPEN = "the next request on it gets a response"
    CLOSED = "the gateway has closed it"
    TRUNCATED = "the response broke off and must not look complete"
    CLIENT_CLOSED = "the client has closed it"


class Mode(Enum):
    """The modes of the gateway to which a row applies."""

    BOTH = ("path", "origin")
    PATH = ("path",)
    ORIGIN = ("origin",)


class AfterResponse(Enum):
    """The action of the upstream after its response."""

    KEEP = "waits for the next request"
    CLOSE = "closes"
    HALF_CLOSE = "closes its side, and continues to read"


@dataclass(frozen=True)
class UpstreamResponse:
    """Response of the upstream, in one or two parts."""

    data: bytes
    """The bytes that it sends after the whole request."""
    then: AfterResponse = AfterResponse.KEEP
    early: bytes = b""
    """The bytes that it sends after the head of the request."""


@dataclass(frozen=True)
class UpstreamReceived:
    """Step that waits until the upstream has received this."""

    data: bytes


@dataclass(frozen=True)
class ClientReceived:
    """Step that waits until the client has received this."""

    data: bytes


class ClientAction(Enum):
    """Step that closes the client's connection or its sending side."""

    HALF_CLOSE = "the client closes its sending side"
    ABORT = "the client aborts the connection"


Step = bytes | UpstreamReceived | ClientReceived | ClientAction

OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
OK_AND_CLOSE: Final = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
NOTHING: Final = b""
HARMLESS: Final = b"GET {base}/harmless HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n"
FORWARDED_FIELDS: Final = (
    b"x-forwarded-for: 127.0.0.1\r\nx-forwarded-host: {host}\r\nx-forwarded-proto: http\r\n\r\n"
)
HARMLESS_FORWARDED: Final = b"GET /harmless HTTP/1.1\r\nhost: {host}\r\n" + FORWARDED_FIELDS


@dataclass(frozen=True)
class Case:
    """One row."""

    name: str
    sent: bytes | tuple[Step, ...]
    forwarded: bytes = NOTHING
    returned: int | tuple[int, ...] | bytes = OK
    """The statuses of all responses, or all bytes."""
    end: End = End.OPEN
    response: bytes | UpstreamResponse = OK
    """The response of the upstream."""
    to_api: bool = False
    """The upstream is the API and not the workspace."""
    mode: Mode = Mode.BOTH

    @property
    def is_repeatable(self) -> bool:
        """Return whether the case is bytes only, so that it can follow others on one connection."""
        return isinstance(self.sent, bytes)

    @property
    def steps(self) -> tuple[Step, ...]:
        return (self.sent,) if isinstance(self.sent, bytes) else self.sent


def refused(name: str, sent: bytes, status: int = 400, *, forwarded: bytes = NOTHING) -> Case:
    """Return a case in which the gateway rejects the request. By default no upstream gets a byte."""
    return Case(name, sent, forwarded, status, End.CLOSED)


def request(
    method: bytes, *lines: bytes, target: bytes = b"{base}/x", version: bytes = b"1.1", body: bytes = b""
) -> bytes:
    """Return a request whose own lines come first, so that it ends like the request before it."""
    start = b"%b %b HTTP/%b" % (method, target, version)
    return b"\r\n".join([start, *lines, b"Host: {host}", b"Cookie: {cookie}", b"", body])


def get(*lines: bytes, target: bytes = b"{base}/x", version: bytes = b"1.1", body: bytes = b"") -> bytes:
    return request(b"GET", *lines, target=target, version=version, body=body)


def post(*lines: bytes, target: bytes = b"{base}/x", version: bytes = b"1.1", body: bytes = b"") -> bytes:
    return request(b"POST", *lines, target=target, version=version, body=body)


def upstream_request(
    method: bytes,
    *lines: bytes,
    target: bytes = b"/x",
    version: bytes = b"1.1",
    added: tuple[bytes, ...] = (),
    body: bytes = b"",
) -> bytes:
    """Return a forwarded request. `added` are the gateway's fields about its own connection."""
    start = b"%b %b HTTP/%b" % (method, target, version)
    return b"\r\n".join([start, *lines, b"host: {host}", *added, FORWARDED_FIELDS]) + body


def upstream_get(*lines: bytes, target: bytes = b"/x") -> bytes:
    return upstream_request(b"GET", *lines, target=target)


def upstream_chunked(body: bytes, *lines: bytes) -> bytes:
    return upstream_request(b"POST", *lines, added=(b"transfer-encoding: chunked",), body=body)
