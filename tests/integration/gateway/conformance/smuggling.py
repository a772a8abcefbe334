"""Hidden requests: the gateway and the upstream must read the same messages, or none."""

from tests.integration.gateway.conformance.case import (
    OK,
    Case,
    End,
    get,
    post,
    refused,
    upstream_chunked,
    upstream_get,
    upstream_request,
)

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: {host}\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked"
INNER = get(target=b"{base}/inner")
INNER_FORWARDED = upstream_get(target=b"/inner")


def two_framings(name: str, *lines: bytes) -> Case:
    """Return a case in which one of two framings would leave a hidden request."""
    return refused(name, post(*lines, body=b"0\r\n\r\n" + HIDDEN))


CASES = (
    two_framings("CL.TE", b"Content-Length: 5", CHUNKED),
    two_framings("TE.CL", CHUNKED, b"Content-Length: 5"),
    two_framings("CL.TE with a length of zero", b"Content-Length: 0", CHUNKED),
    two_framings("TE.TE: twice", CHUNKED, CHUNKED),
    two_framings("TE.TE: and identity", CHUNKED, b"Transfer-Encoding: identity"),
    two_framings("TE.TE: a coding that does not exist", CHUNKED, b"Transfer-Encoding: cow"),
    two_framings("TE.TE: a list", b"Transfer-Encoding: chunked, chunked"),
    two_framings("TE.TE: chunked first", b"Transfer-Encoding: chunked, identity"),
    two_framings("TE.TE: an empty list item", b"Transfer-Encoding: , chunked"),
    two_framings("TE.TE: a list that ends with a comma", b"Transfer-Encoding: chunked,"),
    two_framings("TE.TE: a parameter", b"Transfer-Encoding: chunked;q=1"),
    two_framings("TE.TE: in quotes", b'Transfer-Encoding: "chunked"'),
    two_framings("TE.TE: a longer word", b"Transfer-Encoding: xchunked"),
    two_framings("TE.TE: a shorter word", b"Transfer-Encoding: chunke"),
    two_framings("TE.TE: two words", b"Transfer-Encoding: chunked chunked"),
    two_framings("TE.TE: a vertical tab", b"Transfer-Encoding: \x0bchunked"),
    two_framings("TE.TE: NUL at the end", b"Transfer-Encoding: chunked\x00"),
    two_framings("TE.TE: a no-break space", b"Transfer-Encoding: \xa0chunked"),
    two_framings("TE.TE: a space before the colon", b"Transfer-Encoding : chunked"),
    two_framings("TE.TE: a tab before the colon", b"Transfer-Encoding\t: chunked"),
    two_framings("TE.TE: NUL before the colon", b"Transfer-Encoding\x00: chunked"),
    two_framings("TE.TE: a space before the name", b" Transfer-Encoding: chunked"),
    two_framings("TE.TE: folded", b"Transfer-Encoding:\r\n chunked"),
    two_framings("TE.TE: the value in the folded line of another", b"X: 1\r\n Transfer-Encoding: chunked"),
    two_framings("TE.TE: after a bare LF", b"X: 1\nTransfer-Encoding: chunked"),
    two_framings("TE.TE: after a bare CR", b"X: 1\rTransfer-Encoding: chunked"),
    two_framings("TE.TE: no colon", b"Transfer-Encoding chunked"),
    two_framings("CL.CL: two lengths", b"Content-Length: 0", b"Content-Length: 5"),
    two_framings("CL.CL: a space before the colon", b"Content-Length : 5"),
    two_framings("CL.CL: folded", b"Content-Length:\r\n 5"),
    two_framings("CL.CL: NUL in the name", b"Content-Length\x00: 5"),
    Case(
        "another spelling with an underscore frames nothing",
        post(b"Transfer_Encoding: chunked", b"Content_Length: 5"),
        upstream_request(b"POST", b"transfer_encoding: chunked", b"content_length: 5"),
    ),
    Case(
        "a request in a body with a length is a body",
        post(b"Content-Length: 41", body=b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        upstream_request(
            b"POST", b"content-length: 41", body=b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ),
    ),
    Case(
        "a request in a chunk is a body",
        post(CHUNKED, body=b"29\r\nGET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n0\r\n\r\n"),
        upstream_chunked(b"29\r\nGET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n0\r\n\r\n"),
    ),
    Case(
        "a request in the body of a GET is a body",
        get(b"Content-Length: 41", body=b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        upstream_request(
            b"GET", b"content-length: 41", body=b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ),
    ),
    Case(
        "the bytes after a body are the next request",
        post(b"Content-Length: 3", body=b"abc") + INNER,
        upstream_request(b"POST", b"content-length: 3", body=b"abc") + INNER_FORWARDED,
        OK * 2,
    ),
    Case(
        "the bytes after a chunked body are the next request",
        post(CHUNKED, body=b"0\r\n\r\n") + INNER,
        upstream_chunked(b"0\r\n\r\n") + INNER_FORWARDED,
        OK * 2,
    ),
    Case(
        "a request after one to an unknown host is routed independently",
        b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n" + INNER,
        INNER_FORWARDED,
        (421, 200),
    ),
    Case(
        "pipelined requests get responses in order",
        b"".join(get(target=b"{base}/%d" % n) for n in range(5)),
        b"".join(upstream_get(target=b"/%d" % n) for n in range(5)),
        OK * 5,
    ),
    Case(
        "an invalid pipelined request closes the connection after earlier responses",
        get() + get(b"X : 1") + INNER,
        upstream_get(),
        (200, 400),
        End.CLOSED,
    ),
    Case(
        "requests after Connection: close are not read",
        get(b"Connection: close") + INNER,
        upstream_get(),
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        End.CLOSED,
    ),
    Case(
        "requests after HTTP/1.0 are not read",
        get(version=b"1.0") + INNER,
        upstream_request(b"GET", version=b"1.0", added=(b"connection: close",)),
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        End.CLOSED,
    ),
    Case(
        "the body of a refused request is not the next request",
        b"POST {base}/x HTTP/1.1\r\nHost: other.example\r\nContent-Length: 9\r\n\r\n" + INNER,
        returned=421,
        end=End.CLOSED,
    ),
)
