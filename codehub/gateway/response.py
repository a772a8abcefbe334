"""The response head of an upstream: checked, since a workspace may send anything, and its framing."""

import re
from typing import Final

from codehub.gateway.framing import Body, ChunkedBody, LengthBody, UntilCloseBody

MAX_RESPONSE_HEAD: Final = 128 * 1024
_GRAMMAR = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t -~\x80-\xff]*+)?\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t -~\x80-\xff]*+\r\n)*+\r\n"
)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_BODYLESS: Final = frozenset((204, 304))


class BadResponseError(Exception):
    """The upstream's answer is not HTTP that can be passed on."""


class ResponseHead:
    __slots__ = (
        "connection",
        "length",
        "lines",
        "minor",
        "reason_line",
        "status",
        "transfer_encoding",
        "upgrade",
    )

    def __init__(self, minor: int, status: int, reason_line: bytes) -> None:
        self.minor = minor
        self.status = status
        self.reason_line = reason_line
        self.lines: list[tuple[bytes, bytes]] = []
        """Every end-to-end field: its lower-case name and its whole line."""
        self.connection = b""
        self.upgrade = b""
        self.length: int | None = None
        self.transfer_encoding = b""

    def body(self, method: bytes) -> Body:
        """RFC 9112, 6.3, in its order."""
        if method == b"HEAD" or self.status in _BODYLESS or self.status < 200:
            return LengthBody(0)
        if self.transfer_encoding:
            return ChunkedBody()
        if self.length is not None:
            return LengthBody(self.length)
        return UntilCloseBody()

    @property
    def keep_alive(self) -> bool:
        return self.minor == 1 and b"close" not in self.connection


# RFC 9110, 7.6.1; and fields that frame or manage this one connection.
_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authentication-info te trailer upgrade "
    b"transfer-encoding".split()
)


def parse_response(data: bytes) -> ResponseHead:
    match = _GRAMMAR.fullmatch(data)
    if match is None:
        raise BadResponseError("the response head is not valid HTTP")
    lines = data[:-4].split(b"\r\n")
    head = ResponseHead(int(match[1]), int(match[2]), lines[0][9:])
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in _HOP_BY_HOP:
            _hop_by_hop(head, name, value.strip())
        else:
            if name == b"content-length":
                _length(head, value.strip())
            head.lines.append((name, line))
    if head.transfer_encoding and (head.length is not None or head.minor == 0):
        raise BadResponseError("the response has two kinds of framing")
    if head.connection:
        nominated = {option.strip() for option in head.connection.split(b",")} - {b"content-length"}
        head.lines = [(name, line) for name, line in head.lines if name not in nominated]
    return head


def _hop_by_hop(head: ResponseHead, name: bytes, value: bytes) -> None:
    if name == b"connection":
        head.connection += b"," + value.lower()
    elif name == b"upgrade":
        head.upgrade = value.lower()
    elif name == b"transfer-encoding":
        if head.transfer_encoding or value.lower() != b"chunked":
            raise BadResponseError("the response's Transfer-Encoding is not understood")
        head.transfer_encoding = b"chunked"


def _length(head: ResponseHead, value: bytes) -> None:
    if head.length is not None or not _LENGTH.fullmatch(value):
        raise BadResponseError("the response's Content-Length is not valid")
    head.length = int(value)
