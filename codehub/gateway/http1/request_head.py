"""Request heads: parsed by llhttp, and restricted to what all HTTP implementations read alike."""

import re
from typing import Final

import httptools

MAX_HEAD: Final = 32 * 1024
LONG_HEAD: Final = 4 * 1024
"""A longer head counts as costly (ADR 0024)."""
MAX_FIELDS: Final = 128
"""Browsers send about 20. Each costs 0.2 us, and as much again when the head is relayed."""
MAX_TARGET: Final = 8 * 1024
"""To quote a target for a redirect costs 25 ns a byte. Other servers have the same limit."""
MAX_COOKIE: Final = 12 * 1024
"""Node, on which code-server runs, closes the connection on a head of 16 KiB."""
MAX_OPTIONS: Final = 16
"""How many options Connection may have."""
_CONTROL: Final = bytes(range(9)) + b"\x0b\x0c" + bytes(range(14, 32)) + b"\x7f"
_LINE = re.compile(rb"[A-Z]+ [!-~\x80-\xff]+ HTTP/[0-9]\.[0-9]\r\n")
"""llhttp also accepts more spaces, and the names of protocols that resemble HTTP."""
_FOLDED = re.compile(rb"\n[ \t]")
_TARGET = re.compile(rb"[!-\"$-~]+")  # printable, without a fragment
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HOST = re.compile(rb"(?:[a-zA-Z0-9._-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(?::[0-9]{1,5})?")
_METHODS: Final = frozenset(
    b"GET HEAD POST PUT PATCH DELETE OPTIONS PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK REPORT "
    b"SEARCH".split()
)
_SAFE: Final = frozenset((b"GET", b"HEAD", b"OPTIONS"))
_ONCE: Final = frozenset(
    b"host content-length transfer-encoding upgrade origin authorization content-type expect "
    b"sec-fetch-site sec-fetch-mode sec-fetch-dest sec-websocket-key sec-websocket-version".split()
)
"""Fields that the gateway decides by. Two lines of one could be read in two ways."""


class BadRequestError(Exception):
    """Request that two implementations could interpret differently. It is not relayed."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class RequestHead:
    """One request head that passed every check. Field names are lower-case."""

    __slots__ = (
        "chunked",
        "fields",
        "host",
        "keep_alive",
        "length",
        "method",
        "minor",
        "repeated",
        "target",
        "wants_websocket",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.minor = 1
        self.fields: dict[bytes, bytes] = {}
        self.repeated: list[tuple[bytes, bytes]] = []
        """Further lines of fields that may come several times."""
        self.host = ""
        self.length = 0
        self.chunked = False
        self.keep_alive = True
        self.wants_websocket = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.rstrip(b" \t")
        if name in self.fields:
            if name in _ONCE:
                raise BadRequestError(f"more than one {name.decode('ascii')} field")
            self.repeated.append((name, value))
        else:
            self.fields[name] = value

    def get(self, name: bytes) -> bytes:
        """Return the field's value, or nothing. Lines of a repeated field are joined as a list."""
        value = self.fields.get(name, b"")
        if self.repeated:
            separator = b"; " if name == b"cookie" else b", "
            return separator.join([value, *(other for key, other in self.repeated if key == name)])
        return value

    @property
    def has_body(self) -> bool:
        return self.chunked or self.length > 0

    @property
    def is_safe(self) -> bool:
        return self.method in _SAFE

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    @property
    def sends_fetch_metadata(self) -> bool:
        return b"sec-fetch-site" in self.fields or b"sec-fetch-mode" in self.fields

    @property
    def is_navigation(self) -> bool:
        """Whether a person opens a page in a tab. Only such a request may wake a workspace."""
        if self.method != b"GET" or self.wants_websocket:
            return False
        if b"prefetch" in self.fields.get(b"sec-purpose", b""):
            return False  # the browser loads it ahead of time
        if self.sends_fetch_metadata:
            fields = self.fields
            return (
                fields.get(b"sec-fetch-mode") == b"navigate" and fields.get(b"sec-fetch-dest") == b"document"
            )
        return b"text/html" in self.get(b"accept")


def parse_head(data: bytes) -> RequestHead:
    """Parse a head that ends with its empty line. Raise BadRequestError if it is ambiguous."""
    _check_lines(data)
    head = RequestHead()
    parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # the tunnel begins only after the upstream's 101
    except httptools.HttpParserCallbackError as error:
        if isinstance(error.__context__, BadRequestError):
            raise error.__context__ from None
        raise
    except httptools.HttpParserError as error:
        raise BadRequestError(f"not HTTP: {error}") from None
    head.method = parser.get_method()
    head.minor = _minor_version(parser.get_http_version())
    _check_line(head)
    _check_framing(head)
    _check_connection(head)
    return head


def parse_beginning(data: bytes) -> RequestHead | None:
    """Return the beginning of a head that is too large, or None if it is ambiguous. It is not relayed."""
    try:
        return parse_head(data[:MAX_HEAD].rstrip(b"\r\n") + b"\r\n\r\n")
    except BadRequestError:
        return None


def looks_broken(data: bytes) -> bool:
    """Return whether an unfinished head can never become valid."""
    return data.count(b"\n") != data.count(b"\r\n") or b"\x00" in data


def _check_lines(data: bytes) -> None:
    if len(data.translate(None, _CONTROL)) != len(data):
        raise BadRequestError("a control character in the head")
    ends = data.count(b"\r\n")
    if data.count(b"\n") != ends or data.count(b"\r") != ends:
        raise BadRequestError("a bare CR or LF in the head")
    if ends > MAX_FIELDS + 2:  # the request line and the empty line end in the same way
        raise BadRequestError("too many header fields", 431)
    if _FOLDED.search(data):
        raise BadRequestError("a folded header line")
    if not _LINE.match(data):
        raise BadRequestError("not a valid request line")


def _minor_version(version: str) -> int:
    if version == "1.1":
        return 1
    if version == "1.0":
        return 0
    raise BadRequestError("this HTTP version is not supported", 505)


def _check_line(head: RequestHead) -> None:
    if head.method not in _METHODS:
        raise BadRequestError("this method is not supported")
    host = head.fields.get(b"host")
    if not host or not _HOST.fullmatch(host):
        raise BadRequestError("no valid Host field")
    head.host = host.decode("ascii").lower()
    if len(head.target) > MAX_TARGET:
        raise BadRequestError("the request target is too long", 414)
    if head.target[:1] != b"/":
        head.target = _origin_form(head.target, host)
    if not _TARGET.fullmatch(head.target):
        raise BadRequestError("this request target is not valid")


def _origin_form(target: bytes, host: bytes) -> bytes:
    """Return the path of an absolute form, which must agree with Host (RFC 9112, 3.2.2)."""
    scheme, separator, rest = target.partition(b"://")
    authority, slash, path = rest.partition(b"/")
    if not separator or scheme.lower() not in (b"http", b"https") or authority.lower() != host.lower():
        raise BadRequestError("this request target is not valid")
    return slash + path or b"/"


def _check_framing(head: RequestHead) -> None:
    """Apply the rules of RFC 9112, 6.3, without the lenient ones."""
    length = head.fields.get(b"content-length")
    coding = head.fields.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise BadRequestError("both Content-Length and Transfer-Encoding")
        if coding.lower() != b"chunked" or head.minor == 0:
            raise BadRequestError("this Transfer-Encoding is not supported")
        head.chunked = True
    elif length is not None:
        if not _LENGTH.fullmatch(length):
            raise BadRequestError("not a valid Content-Length")
        head.length = int(length)


def _check_connection(head: RequestHead) -> None:
    connection = head.get(b"connection").lower() if b"connection" in head.fields else b""
    if connection.count(b",") >= MAX_OPTIONS:
        raise BadRequestError("too many options in Connection", 431)
    options = connection.replace(b" ", b"").replace(b"\t", b"").split(b",") if connection else ()
    head.keep_alive = head.minor == 1 and b"close" not in options
    if b"upgrade" in head.fields and b"upgrade" in options:
        is_websocket = head.fields[b"upgrade"].lower() == b"websocket"
        head.wants_websocket = is_websocket and head.method == b"GET" and head.minor == 1
        if head.wants_websocket and head.has_body:
            raise BadRequestError("a WebSocket handshake has no body")
