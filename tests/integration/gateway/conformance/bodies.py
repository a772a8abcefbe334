"""Chunked bodies (RFC 9112, 7.1) are relayed unchanged, or refused and left incomplete."""

from tests.integration.gateway.conformance.case import Case, UpstreamReceived, post, refused, upstream_chunked

END = b"0\r\n\r\n"


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


def relayed(name: str, body: bytes) -> Case:
    return Case(name, chunked(body), upstream_chunked(body))


def malformed(name: str, body: bytes) -> Case:
    """Return a case whose head is forwarded before the body is found to be invalid."""
    return refused(name, chunked(body), forwarded=upstream_chunked(b""))


CASES = (
    relayed("several chunks", b"3\r\nabc\r\nA\r\n0123456789\r\n" + END),
    relayed("a size in either case", b"a\r\n0123456789\r\nB\r\n0123456789a\r\n" + END),
    relayed("a size with leading zeros", b"0003\r\nabc\r\n" + END),
    relayed("a last chunk of several zeros", b"000\r\n\r\n"),
    relayed("a chunk extension", b"3;a=b\r\nabc\r\n" + END),
    relayed("a quoted chunk extension", b'3;a="b;c\\"d"\r\nabc\r\n' + END),
    relayed("an extension of the last chunk", b"3\r\nabc\r\n0;a=b\r\n\r\n"),
    relayed("line ends inside a chunk", b"6\r\n\r\n0\r\n\r\r\n" + END),
    relayed("a trailer", b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"),
    relayed("several trailers", b"0\r\nX-Sum: 1\r\nX-Sum: 2\r\n\r\n"),
    relayed("a chunk as large as a segment", b"10000\r\n" + b"a" * 65536 + b"\r\n" + END),
    malformed("no chunk size", b"\r\nabc\r\n" + END),
    malformed("a size that is not hexadecimal", b"g\r\nabc\r\n" + END),
    malformed("a size with a prefix", b"0x3\r\nabc\r\n" + END),
    malformed("a size with a plus sign", b"+3\r\nabc\r\n" + END),
    malformed("a negative size", b"-3\r\nabc\r\n" + END),
    malformed("a size with an underscore", b"1_0\r\n0123456789abcdef\r\n" + END),
    malformed("a space before the size", b" 3\r\nabc\r\n" + END),
    malformed("a space after the size", b"3 \r\nabc\r\n" + END),
    malformed("a size of more than 64 bits", b"100000000000000003\r\nabc\r\n" + END),
    malformed("a size that is 3 when it overflows 64 bits", b"10000000000000003\r\nabc\r\n" + END),
    malformed("a size that is -1 as a signed 64-bit number", b"FFFFFFFFFFFFFFFF\r\nabc\r\n" + END),
    malformed("a size of many zeros", b"0" * 100 + b"3\r\nabc\r\n" + END),
    malformed("a size line that ends with a bare LF", b"3\nabc\r\n" + END),
    malformed("a size line that ends with a bare CR", b"3\rabc\r\n" + END),
    malformed("a bare LF in an extension", b"3;a\nabc\r\n" + END),
    malformed("a bare CR in an extension", b"3;a\rb\r\nabc\r\n" + END),
    malformed("NUL in an extension", b"3;\x00\r\nabc\r\n" + END),
    malformed("an extension that is too long", b"3;" + b"a" * 9000 + b"\r\nabc\r\n" + END),
    malformed("a chunk longer than its size", b"3\r\nabcd\r\n" + END),
    malformed("a chunk shorter than its size", b"5\r\nabc\r\n" + END),
    malformed("a chunk that ends with a bare LF", b"3\r\nabc\n" + END),
    malformed("a chunk that ends with a bare CR", b"3\r\nabc\r" + END),
    malformed("a chunk that does not end", b"3\r\nabc" + END),
    malformed("a body that ends with a bare LF", b"3\r\nabc\r\n0\r\n\n"),
    malformed("a trailer without a colon", b"0\r\nX\r\n\r\n"),
    malformed("a folded trailer", b"0\r\nX: 1\r\n 2\r\n\r\n"),
    malformed("a trailer with a space before its colon", b"0\r\nX : 1\r\n\r\n"),
    malformed("a trailer with a bare CR", b"0\r\nX: 1\rY: 2\r\n\r\n"),
    malformed("a trailer with NUL", b"0\r\nX: \x00\r\n\r\n"),
    malformed("trailers that are too long", b"0\r\n" + b"X: %b\r\n" % (b"a" * 8000) * 5 + b"\r\n"),
    malformed("a trailer that frames by a length", b"0\r\nContent-Length: 3\r\n\r\n"),
    malformed("a trailer that frames by an encoding", b"0\r\ntransfer-encoding: chunked\r\n\r\n"),
    malformed("a trailer that routes", b"0\r\nHost: other.example\r\n\r\n"),
    malformed("a trailer with a session", b"0\r\nCookie: session=x\r\n\r\n"),
    malformed("a trailer that authorizes", b"0\r\nAuthorization: Bearer chub_x\r\n\r\n"),
    malformed("a trailer with an address", b"0\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"),
    malformed("a trailer with the internal key", b"0\r\nX-CodeHub-Internal-Key: key\r\n\r\n"),
    malformed("a trailer with an origin", b"0\r\nOrigin: http://{host}\r\n\r\n"),
    malformed("a trailer about the connection", b"0\r\nConnection: close\r\n\r\n"),
    Case(
        "a chunk in many pieces",
        (
            chunked(b""),
            b"3",
            UpstreamReceived(b"proto: http\r\n\r\n3"),
            b"\r\na",
            UpstreamReceived(b"3\r\na"),
            b"bc\r",
            UpstreamReceived(b"abc\r"),
            b"\n0\r\n",
            UpstreamReceived(b"\n0\r\n"),
            b"\r\n",
        ),
        upstream_chunked(b"3\r\nabc\r\n" + END),
    ),
)
