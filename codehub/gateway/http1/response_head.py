"""Response heads of upstreams: checks them, because a workspace may send anything, and rewrites them."""

import re
from functools import lru_cache
from typing import Final

from codehub.gateway.cookies import may_set
from codehub.gateway.http1.body_framing import Body, ChunkedBody, LengthBody, UntilCloseBody
from codehub.gateway.response_policy import ResponsePolicy

MAX_RESPONSE_HEAD: Final = 64 * 1024
MAX_RESPONSE_FIELDS: Final = 256
"""Each costs up to 1 us. The options of Connection and X-Frame-Options count alike."""
SHORT: Final = 4 * 1024
_GRAMMAR = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t -~\x80-\xff]*+)?\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t -~\x80-\xff]*+\r\n)*+\r\n"
)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_NO_CONTENT: Final = 204
_NOT_MODIFIED: Final = 304
_UPGRADE_REQUIRED: Final = 426

# Hop-by-hop fields (RFC 9110, 7.6.1).
_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authentication-info te trailer upgrade "
    b"transfer-encoding".split()
)
_SERVICE_WORKER: Final = b"service-worker-allowed"
"""On an origin that workspaces share with the platform, a service worker stays below its own path."""
_REFUSED_FROM_WORKSPACE: Final = frozenset(
    (
        _SERVICE_WORKER, b"clear-site-data", b"alt-svc", b"cross-origin-resource-policy",
        b"strict-transport-security",
    )
)  # fmt: skip
"""A workspace may not clear the platform's storage, or move its origin elsewhere."""
_FRAME_OPTIONS: Final = b"x-frame-options"
_RELEVANT_LINE = re.compile(
    rb"\n(?i:(%b)):[ \t]*([^\r]*)"
    % b"|".join([*_HOP_BY_HOP, *_REFUSED_FROM_WORKSPACE, b"content-length", b"set-cookie", _FRAME_OPTIONS])
)
"""The lines that the gateway reads. Most others are relayed unread."""


class BadResponseError(Exception):
    """Response of the upstream that is not HTTP that can be relayed."""


class TooManyFieldsError(BadResponseError):
    """Response of the upstream with more header fields than the gateway reads in one turn."""

    def __init__(self) -> None:
        super().__init__("the response has too many header fields")


class ResponseHead:
    """A response head that passed every check. It caches its rewritten forms."""

    __slots__ = (
        "_data",
        "_for_client",
        "_relevant_lines",
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
        self._relevant_lines: list[tuple[bytes, re.Match[bytes]]] = []
        self._for_client: dict[tuple[bool, bool, bool], bytes] = {}
        self._read_lines()

    def _read_lines(self) -> None:
        connection: list[bytes] = []
        frame_options: list[bytes] = []
        for line in _RELEVANT_LINE.finditer(self._data):
            name = line[1].lower()
            self._relevant_lines.append((name, line))
            if name == b"set-cookie":
                continue
            if name == b"content-length":
                self._parse_content_length(line[2].rstrip())
            elif name == b"connection":
                connection.append(line[2].lower())
            elif name == _FRAME_OPTIONS:
                frame_options.append(line[2])
            elif name == b"upgrade":
                self.upgrade = line[2].rstrip().lower()
            elif name == b"transfer-encoding":
                self._parse_transfer_encoding(line[2].rstrip().lower())
        self.connection = _join(connection) if connection else b""
        self.frame_options = _join(frame_options) if frame_options else b""
        if self.transfer_encoding and (self.length is not None or self.minor == 0):
            raise BadResponseError("the response has two kinds of framing")

    def _parse_content_length(self, value: bytes) -> None:
        if self.length is not None or not _LENGTH.fullmatch(value):
            raise BadResponseError("the response's Content-Length is not valid")
        self.length = int(value)

    def _parse_transfer_encoding(self, value: bytes) -> None:
        if self.transfer_encoding or value != b"chunked":
            raise BadResponseError("the response's Transfer-Encoding is not understood")
        self.transfer_encoding = value

    @property
    def _has_no_body(self) -> bool:
        return self.status < 200 or self.status == _NO_CONTENT

    def body(self, method: bytes) -> Body:
        """Return the framing of the body, by the rules of RFC 9112, 6.3, in their order."""
        if method == b"HEAD" or self._has_no_body or self.status == _NOT_MODIFIED:
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
        """Return the head for the client, without the fields of the upstream's connection.

        `own_origin`: the workspace has an origin for itself.
        """
        key = from_workspace, own_origin, close
        rewritten = self._for_client.get(key)
        if rewritten is None:
            rewritten = self._for_client[key] = self._rewrite(from_workspace, own_origin, close)
        if policy is None or self.status < 200:
            return rewritten
        return b"%b%b\r\n" % (rewritten[:-2], policy.lines(self.frame_options))

    def _rewrite(self, from_workspace: bool, own_origin: bool, close: bool) -> bytes:
        parts, position = [b"HTTP/1.1 "], 9
        for name, line in self._relevant_lines:
            if self._is_dropped_field(name, line, from_workspace=from_workspace, own_origin=own_origin):
                parts.append(self._data[position : line.start() + 1])
                position = line.end() + 2
        parts.append(self._data[position:-2])
        if self.status == 101:
            parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
        else:
            if self.status == _UPGRADE_REQUIRED and self.upgrade == b"websocket":
                parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")  # RFC 9110, 15.5.22
            if self.transfer_encoding and not self._has_no_body:
                parts.append(b"Transfer-Encoding: chunked\r\n")
            if close and self.status >= 200:
                parts.append(b"Connection: close\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)

    def _is_dropped_field(
        self, name: bytes, line: re.Match[bytes], *, from_workspace: bool, own_origin: bool
    ) -> bool:
        if name == b"set-cookie":
            return from_workspace and not may_set(line[2])
        if name == b"content-length":
            return self._has_no_body
        if name == _FRAME_OPTIONS or (name == _SERVICE_WORKER and own_origin):
            return False
        return name in _HOP_BY_HOP or from_workspace


def parse_response(data: bytes) -> ResponseHead:
    """Parse a head, or return the cached result: upstreams repeat heads. Long ones are not cached."""
    return _parse_cached(data) if len(data) <= SHORT else _parse(data)


def _parse(data: bytes) -> ResponseHead:
    if data.count(b"\r\n") > MAX_RESPONSE_FIELDS + 2:  # as the status line and the empty line end, too
        raise TooManyFieldsError
    match = _GRAMMAR.fullmatch(data)
    if match is None:
        raise BadResponseError("the response head is not valid HTTP")
    head = ResponseHead(int(match[1]), int(match[2]), data)
    if head.connection and (rest := _without_nominated(data, head.connection)) != data:
        return ResponseHead(head.minor, head.status, rest)
    return head


def _join(values: list[bytes]) -> bytes:
    joined = b",".join(values)
    if joined.count(b",") >= MAX_RESPONSE_FIELDS:
        raise TooManyFieldsError
    return joined


_parse_cached = lru_cache(maxsize=256)(_parse)


def _without_nominated(data: bytes, connection: bytes) -> bytes:
    """Remove the fields that Connection names, which are hop-by-hop, too (RFC 9110, 7.6.1)."""
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
