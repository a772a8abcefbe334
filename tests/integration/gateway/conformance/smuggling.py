"""A request hidden in another one: both sides must see the same messages, or none."""

from tests.integration.gateway.conformance.case import (
    OK,
    Case,
    End,
    get,
    post,
    refused,
    saw,
    saw_chunked,
    saw_get,
)

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: {host}\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked"
INNER = get(target=b"{base}/inner")
INNER_SEEN = saw_get(target=b"/inner")


def both(name: str, *lines: bytes) -> Case:
    """Whichever framing a server believes, the other one leaves a request behind."""
    return refused(name, post(*lines, body=b"0\r\n\r\n" + HIDDEN))


CASES = (
    both("CL.TE", b"Content-Length: 5", CHUNKED),
    both("TE.CL", CHUNKED, b"Content-Length: 5"),
    both("CL.TE with a length of zero", b"Content-Length: 0", CHUNKED),
    both("TE.TE: twice", CHUNKED, CHUNKED),
    both("TE.TE: and identity", CHUNKED, b"Transfer-Encoding: identity"),
    both("TE.TE: a coding that does not exist", CHUNKED, b"Transfer-Encoding: cow"),
    both("TE.TE: a list", b"Transfer-Encoding: chunked, chunked"),
    both("TE.TE: chunked first", b"Transfer-Encoding: chunked, identity"),
    both("TE.TE: an empty list item", b"Transfer-Encoding: , chunked"),
    both("TE.TE: a list that ends with a comma", b"Transfer-Encoding: chunked,"),
    both("TE.TE: a parameter", b"Transfer-Encoding: chunked;q=1"),
    both("TE.TE: in quotes", b'Transfer-Encoding: "chunked"'),
    both("TE.TE: a longer word", b"Transfer-Encoding: xchunked"),
    both("TE.TE: a shorter word", b"Transfer-Encoding: chunke"),
    both("TE.TE: two words", b"Transfer-Encoding: chunked chunked"),
    both("TE.TE: a vertical tab", b"Transfer-Encoding: \x0bchunked"),
    both("TE.TE: NUL at the end", b"Transfer-Encoding: chunked\x00"),
    both("TE.TE: a no-break space", b"Transfer-Encoding: \xa0chunked"),
    both("TE.TE: a space before the colon", b"Transfer-Encoding : chunked"),
    both("TE.TE: a tab before the colon", b"Transfer-Encoding\t: chunked"),
    both("TE.TE: NUL before the colon", b"Transfer-Encoding\x00: chunked"),
    both("TE.TE: a space before the name", b" Transfer-Encoding: chunked"),
    both("TE.TE: folded", b"Transfer-Encoding:\r\n chunked"),
    both("TE.TE: the value in the folded line of another", b"X: 1\r\n Transfer-Encoding: chunked"),
    both("TE.TE: behind a bare LF", b"X: 1\nTransfer-Encoding: chunked"),
    both("TE.TE: behind a bare CR", b"X: 1\rTransfer-Encoding: chunked"),
    both("TE.TE: no colon", b"Transfer-Encoding chunked"),
    both("CL.CL: two lengths", b"Content-Length: 0", b"Content-Length: 5"),
    both("CL.CL: a space before the colon", b"Content-Length : 5"),
    both("CL.CL: folded", b"Content-Length:\r\n 5"),
    both("CL.CL: NUL in the name", b"Content-Length\x00: 5"),
    Case(
        "another spelling with an underscore frames nothing",
        post(b"Transfer_Encoding: chunked", b"Content_Length: 5"),
        saw(b"POST", b"transfer_encoding: chunked", b"content_length: 5"),
    ),
    Case(
        "a request in a body of a length is a body",
        post(b"Content-Length: 41", body=b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        saw(b"POST", b"content-length: 41", body=b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ),
    Case(
        "a request in a chunk is a body",
        post(CHUNKED, body=b"29\r\nGET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n0\r\n\r\n"),
        saw_chunked(b"29\r\nGET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n0\r\n\r\n"),
    ),
    Case(
        "a request in the body of a GET is a body",
        get(b"Content-Length: 41", body=b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        saw(b"GET", b"content-length: 41", body=b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ),
    Case(
        "what follows a body is the next request, and goes its own way",
        post(b"Content-Length: 3", body=b"abc") + INNER,
        saw(b"POST", b"content-length: 3", body=b"abc") + INNER_SEEN,
        OK * 2,
    ),
    Case(
        "what follows a chunked body is the next request",
        post(CHUNKED, body=b"0\r\n\r\n") + INNER,
        saw_chunked(b"0\r\n\r\n") + INNER_SEEN,
        OK * 2,
    ),
    Case(
        "what follows a request of an unknown host is looked at by itself",
        b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n" + INNER,
        INNER_SEEN,
        (421, 200),
    ),
    Case(
        "pipelined requests are answered in order",
        b"".join(get(target=b"{base}/%d" % n) for n in range(5)),
        b"".join(saw_get(target=b"/%d" % n) for n in range(5)),
        OK * 5,
    ),
    Case(
        "a pipelined request that is wrong ends the connection after the answers before it",
        get() + get(b"X : 1") + INNER,
        saw_get(),
        (200, 400),
        End.CLOSED,
    ),
    Case(
        "after Connection: close nothing more is read",
        get(b"Connection: close") + INNER,
        saw_get(),
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        End.CLOSED,
    ),
    Case(
        "after HTTP/1.0 nothing more is read",
        get(version=b"1.0") + INNER,
        saw(b"GET", version=b"1.0", added=(b"connection: close",)),
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        End.CLOSED,
    ),
    Case(
        "a refused request's body is not the next request",
        b"POST {base}/x HTTP/1.1\r\nHost: other.example\r\nContent-Length: 9\r\n\r\n" + INNER,
        gets=421,
        end=End.CLOSED,
    ),
)
