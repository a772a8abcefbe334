"""Chunked bodies (RFC 9112, 7.1): relayed as they are, or refused and never finished."""

from tests.integration.gateway.conformance.case import Case, UpstreamSaw, post, refused, saw_chunked

END = b"0\r\n\r\n"


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


def passes(name: str, body: bytes) -> Case:
    return Case(name, chunked(body), saw_chunked(body))


def bad(name: str, body: bytes) -> Case:
    """Bodies are streamed, so that the head has gone ahead; of a body that is wrong, nothing follows it."""
    return refused(name, chunked(body), sees=saw_chunked(b""))


CASES = (
    passes("several chunks", b"3\r\nabc\r\nA\r\n0123456789\r\n" + END),
    passes("a size in either case", b"a\r\n0123456789\r\nB\r\n0123456789a\r\n" + END),
    passes("a size with leading zeros", b"0003\r\nabc\r\n" + END),
    passes("a last chunk of several zeros", b"000\r\n\r\n"),
    passes("a chunk extension", b"3;a=b\r\nabc\r\n" + END),
    passes("a quoted chunk extension", b'3;a="b;c\\"d"\r\nabc\r\n' + END),
    passes("an extension of the last chunk", b"3\r\nabc\r\n0;a=b\r\n\r\n"),
    passes("line ends inside of a chunk", b"6\r\n\r\n0\r\n\r\r\n" + END),
    passes("a trailer", b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"),
    passes("several trailers", b"0\r\nX-Sum: 1\r\nX-Sum: 2\r\n\r\n"),
    passes("a chunk as large as a segment", b"10000\r\n" + b"a" * 65536 + b"\r\n" + END),
    bad("no chunk size", b"\r\nabc\r\n" + END),
    bad("a size that is no hex", b"g\r\nabc\r\n" + END),
    bad("a size with a prefix", b"0x3\r\nabc\r\n" + END),
    bad("a size with a plus sign", b"+3\r\nabc\r\n" + END),
    bad("a negative size", b"-3\r\nabc\r\n" + END),
    bad("a size with an underscore", b"1_0\r\n0123456789abcdef\r\n" + END),
    bad("a space before the size", b" 3\r\nabc\r\n" + END),
    bad("a space after the size", b"3 \r\nabc\r\n" + END),
    bad("a size in 32 bits too many", b"100000000000000003\r\nabc\r\n" + END),
    bad("a size that is 3 when it overflows 64 bits", b"10000000000000003\r\nabc\r\n" + END),
    bad("a size of 64 bits, which is -1 to some", b"FFFFFFFFFFFFFFFF\r\nabc\r\n" + END),
    bad("a size of many zeros", b"0" * 100 + b"3\r\nabc\r\n" + END),
    bad("a size line that ends with a bare LF", b"3\nabc\r\n" + END),
    bad("a size line that ends with a bare CR", b"3\rabc\r\n" + END),
    bad("a bare LF in an extension", b"3;a\nabc\r\n" + END),
    bad("a bare CR in an extension", b"3;a\rb\r\nabc\r\n" + END),
    bad("NUL in an extension", b"3;\x00\r\nabc\r\n" + END),
    bad("an extension that is too long", b"3;" + b"a" * 9000 + b"\r\nabc\r\n" + END),
    bad("a chunk longer than it says", b"3\r\nabcd\r\n" + END),
    bad("a chunk shorter than it says", b"5\r\nabc\r\n" + END),
    bad("a chunk that ends with a bare LF", b"3\r\nabc\n" + END),
    bad("a chunk that ends with a bare CR", b"3\r\nabc\r" + END),
    bad("a chunk that does not end", b"3\r\nabc" + END),
    bad("a body that ends with a bare LF", b"3\r\nabc\r\n0\r\n\n"),
    bad("a trailer without a colon", b"0\r\nX\r\n\r\n"),
    bad("a folded trailer", b"0\r\nX: 1\r\n 2\r\n\r\n"),
    bad("a trailer with a space before its colon", b"0\r\nX : 1\r\n\r\n"),
    bad("a trailer with a bare CR", b"0\r\nX: 1\rY: 2\r\n\r\n"),
    bad("a trailer with NUL", b"0\r\nX: \x00\r\n\r\n"),
    bad("trailers that are too long", b"0\r\n" + b"X: %b\r\n" % (b"a" * 8000) * 5 + b"\r\n"),
    bad("a trailer that frames", b"0\r\nContent-Length: 3\r\n\r\n"),
    bad("a trailer that frames in another way", b"0\r\ntransfer-encoding: chunked\r\n\r\n"),
    bad("a trailer that routes", b"0\r\nHost: other.example\r\n\r\n"),
    bad("a trailer that says who asks", b"0\r\nCookie: session=x\r\n\r\n"),
    bad("a trailer that authorizes", b"0\r\nAuthorization: Bearer chub_x\r\n\r\n"),
    bad("a trailer that says where from", b"0\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"),
    bad("a trailer that claims to be a gateway", b"0\r\nX-CodeHub-Internal-Key: key\r\n\r\n"),
    bad("a trailer that says which page asks", b"0\r\nOrigin: http://{host}\r\n\r\n"),
    bad("a trailer about the connection", b"0\r\nConnection: close\r\n\r\n"),
    Case(
        "a chunk in many pieces",
        (
            chunked(b""),
            b"3",
            UpstreamSaw(b"proto: http\r\n\r\n3"),
            b"\r\na",
            UpstreamSaw(b"3\r\na"),
            b"bc\r",
            UpstreamSaw(b"abc\r"),
            b"\n0\r\n",
            UpstreamSaw(b"\n0\r\n"),
            b"\r\n",
        ),
        saw_chunked(b"3\r\nabc\r\n" + END),
    ),
)
