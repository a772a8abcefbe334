"""The response head of an upstream: checked, since a workspace may send anything, and its framing."""

import re
from functools import lru_cache
from typing import Final

from codehub.gateway.cookies import may_set
from codehub.gateway.http1.body_framing import Body, ChunkedBody, LengthBody, UntilCloseBody
from codehub.gateway.response_policy import ResponsePolicy

MAX_RESPONSE_HEAD: Final = 128 * 1024
SHORT: Final = 4 * 1024
_GRAMMAR = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t -~\x80-\xff]*+)?\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t -~\x80-\xff]*+\r\n)*+\r\n"
)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_NO_CONTENT: Final = 204
_NOT_MODIFIED: Final = 304

# RFC 9110, 7.6.1; and fields that frame or manage this one connection.
_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authentication-info te trailer upgrade "
    b"transfer-encoding".split()
)
# A workspace may not clear the platform's storage or move its origin elsewhere.
_SERVICE_WORKER: Final = b"service-worker-allowed"
"""On an origin that workspaces share with the platform, a service worker stays below its own path."""
_REFUSED_FROM_WORKSPACE: Final = frozenset(
    (
        _SERVICE_WORKER, b"clear-site-data", b"alt-svc", b"cross-origin-resource-policy",
        b"strict-transport-security",
    )
)  # fmt: skip
_FRAME_OPTIONS: Final = b"x-frame-options"
_DECIDING = re.compile(
    rb"\n(?i:(%b)):[ \t]*([^\r]*)"
    % b"|".join([*_HOP_BY_HOP, *_REFUSED_FROM_WORKSPACE, b"content-length", b"set-cookie", _FRAME_OPTIONS])
)
"""The lines that decide something here. Most do not, and pass unread."""


class BadResponseError(Exception):
    """The upstream's answer is not HTTP that can be passed on."""


class ResponseHead:
    __slots__ = (
        "_data",
        "_deciding",
        "_for_client",
        "connection",
        "frame_options",
        "length",
        "minor",
        "status",
        "transfer_encoding",
        "upgrade",
    )

    def __init__(self, minor: int, status: int, data: bytes) -> None:
        self.minor = minor
        self.status = status
        self.connection = b""
        self.upgrade = b""
        self.frame_options = b""
        self.length: int | None = None
        self.transfer_encoding = b""
        self._data = data
        self._deciding: list[tuple[bytes, re.Match[bytes]]] = []
        self._for_client: dict[tuple[bool, bool, bool], bytes] = {}
        self._read_lines()

    def _read_lines(self) -> None:
        for line in _DECIDING.finditer(self._data):
            name = line[1].lower()
            self._deciding.append((name, line))
            if name == b"content-length":
                self._take_length(line[2].rstrip())
            elif name == b"connection":
                self.connection += b"," + line[2].lower()
            elif name == _FRAME_OPTIONS:
                self.frame_options += b"," + line[2]
            elif name == b"upgrade":
                self.upgrade = line[2].rstrip().lower()
            elif name == b"transfer-encoding":
                self._take_encoding(line[2].rstrip().lower())
        if self.transfer_encoding and (self.length is not None or self.minor == 0):
            raise BadResponseError("the response has two kinds of framing")

    def _take_length(self, value: bytes) -> None:
        if self.length is not None or not _LENGTH.fullmatch(value):
            raise BadResponseError("the response's Content-Length is not valid")
        self.length = int(value)

    def _take_encoding(self, value: bytes) -> None:
        if self.transfer_encoding or value != b"chunked":
            raise BadResponseError("the response's Transfer-Encoding is not understood")
        self.transfer_encoding = value

    @property
    def _bodyless(self) -> bool:
        return self.status < 200 or self.status == _NO_CONTENT

    def body(self, method: bytes) -> Body:
        """RFC 9112, 6.3, in its order."""
        if method == b"HEAD" or self._bodyless or self.status == _NOT_MODIFIED:
            return LengthBody(0)
        if self.transfer_encoding:
            return ChunkedBody()
        if self.length is not None:
            return LengthBody(self.length)
        return UntilCloseBody()

    @property
    def keep_alive(self) -> bool:
        return self.minor == 1 and b"close" not in self.connection

    def for_client(
        self, *, from_workspace: bool, own_origin: bool, close: bool, policy: ResponsePolicy | None = None
    ) -> bytes:
        """The head as it goes on: what concerns the upstream's connection ends here.

        `own_origin`: the workspace shares its origin with nobody.
        """
        key = from_workspace, own_origin, close
        made = self._for_client.get(key)
        if made is None:
            made = self._for_client[key] = self._rewritten(from_workspace, own_origin, close)
        if policy is None or self.status < 200:
            return made
        return b"%b%b\r\n" % (made[:-2], policy.lines(self.frame_options))

    def _rewritten(self, from_workspace: bool, own_origin: bool, close: bool) -> bytes:
        parts, position = [b"HTTP/1.1 "], 9
        for name, line in self._deciding:
            if self._ends_here(name, line, from_workspace=from_workspace, own_origin=own_origin):
                parts.append(self._data[position : line.start() + 1])
                position = line.end() + 2
        parts.append(self._data[position:-2])
        if self.status == 101:
            parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
        else:
            if self.transfer_encoding and not self._bodyless:
                parts.append(b"Transfer-Encoding: chunked\r\n")
            if close and self.status >= 200:
                parts.append(b"Connection: close\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)

    def _ends_here(
        self, name: bytes, line: re.Match[bytes], *, from_workspace: bool, own_origin: bool
    ) -> bool:
        if name == b"content-length":
            return self._bodyless
        if name == b"set-cookie":
            return from_workspace and not may_set(line[2])
        if name == _FRAME_OPTIONS or (name == _SERVICE_WORKER and own_origin):
            return False
        return name in _HOP_BY_HOP or from_workspace


def parse_response(data: bytes) -> ResponseHead:
    """Upstreams repeat themselves, so what the bytes say is remembered; long heads would fill the memory."""
    return _remembered(data) if len(data) <= SHORT else _parse(data)


def _parse(data: bytes) -> ResponseHead:
    match = _GRAMMAR.fullmatch(data)
    if match is None:
        raise BadResponseError("the response head is not valid HTTP")
    head = ResponseHead(int(match[1]), int(match[2]), data)
    if head.connection and (rest := _without_nominated(data, head.connection)) != data:
        return ResponseHead(head.minor, head.status, rest)
    return head


_remembered = lru_cache(maxsize=256)(_parse)


def _without_nominated(data: bytes, connection: bytes) -> bytes:
    """RFC 9110, 7.6.1: fields that Connection names concern this one connection, too."""
    nominated = {option.strip() for option in connection.split(b",")} - {
        b"",
        b"content-length",
        b"transfer-encoding",
        b"connection",
    }
    nominated -= {b"keep-alive", b"close", b"upgrade"}
    if not nominated:
        return data
    first, *lines = data[:-4].split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].lower() not in nominated]
    return b"\r\n".join([first, *kept, b"", b""])
