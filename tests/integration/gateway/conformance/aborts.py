"""Whoever goes takes the other side along at once, and nothing stays behind."""

from tests.integration.gateway.conformance.case import (
    OK,
    Act,
    Answer,
    Case,
    ClientGot,
    End,
    Then,
    UpstreamSaw,
    get,
    post,
    saw,
    saw_chunked,
    saw_get,
)

PART = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart"
SILENT = Answer(b"")
CHUNKED = b"Transfer-Encoding: chunked"
BODY_SEEN = saw(b"POST", b"content-length: 9", body=b"abc")


def leaves(
    name: str, *steps: object, sees: bytes = b"", gets: bytes = b"", answer: bytes | Answer = SILENT
) -> Case:
    return Case(name, (*steps, Act.LEAVE), sees, gets, End.GONE, answer)  # type: ignore[arg-type]


CASES = (
    leaves("the client goes without a word"),
    leaves("the client goes in the request line", b"GET {base}/x HT"),
    leaves("the client goes in the head", get()[:-2]),
    leaves("the client goes between two requests", get(), ClientGot(OK), sees=saw_get(), gets=OK, answer=OK),
    leaves(
        "the client goes in a body",
        post(b"Content-Length: 9", body=b"abc"),
        UpstreamSaw(b"abc"),
        sees=BODY_SEEN,
    ),
    leaves(
        "the client goes in a chunk",
        post(CHUNKED, body=b"9\r\nabc"),
        UpstreamSaw(b"abc"),
        sees=saw_chunked(b"9\r\nabc"),
    ),
    leaves(
        "the client goes before the last chunk",
        post(CHUNKED, body=b"3\r\nabc\r\n"),
        UpstreamSaw(b"abc\r\n"),
        sees=saw_chunked(b"3\r\nabc\r\n"),
    ),
    leaves(
        "the client goes in the trailers",
        post(CHUNKED, body=b"0\r\nX: 1\r\n"),
        UpstreamSaw(b"X: 1"),
        sees=saw_chunked(b"0\r\nX: 1\r\n"),
    ),
    leaves("the client goes while it waits", get(), UpstreamSaw(b"GET /x"), sees=saw_get()),
    leaves("the client goes in the response", get(), ClientGot(PART), sees=saw_get(), gets=PART, answer=PART),
    leaves(
        "the client goes in a response without end",
        get(),
        ClientGot(b"2\r\nok\r\n"),
        sees=saw_get(),
        gets=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        answer=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    ),
    leaves(
        "the client goes with requests in the pipe",
        get() + get(target=b"{base}/next"),
        UpstreamSaw(b"GET /x"),
        sees=saw_get(),
    ),
    Case("a half-closed head", (get()[:-2], Act.HALF_CLOSE), gets=b"", end=End.CLOSED),
    Case(
        "a half-closed body is not finished by anybody",
        (post(b"Content-Length: 9", body=b"abc"), UpstreamSaw(b"abc"), Act.HALF_CLOSE),
        BODY_SEEN,
        b"",
        End.CLOSED,
        SILENT,
    ),
    Case(
        "who half-closes while he waits has gone",
        (get(), UpstreamSaw(b"GET /x"), Act.HALF_CLOSE),
        saw_get(),
        b"",
        End.CLOSED,
        SILENT,
    ),
    Case(
        "who half-closes after the answer is let go",
        (get(), ClientGot(OK), Act.HALF_CLOSE),
        saw_get(),
        OK,
        End.CLOSED,
    ),
    Case(
        "the upstream goes while the body comes",
        (post(b"Content-Length: 9", body=b"abcdefghi"),),
        saw(b"POST", b"content-length: 9", body=b"abcdefghi"),
        502,
        answer=Answer(b"", Then.CLOSE),
    ),
    Case(
        "the upstream half-closes without an answer",
        (get(),),
        saw_get(),
        502,
        answer=Answer(b"", Then.HALF_CLOSE),
    ),
    Case(
        "the upstream half-closes after its answer",
        (get(), ClientGot(OK)),
        saw_get(),
        OK,
        answer=Answer(OK, Then.HALF_CLOSE),
    ),
    Case(
        "a bad chunk after good ones is the end of both sides",
        (post(CHUNKED, body=b"3\r\nabc\r\n"), UpstreamSaw(b"abc\r\n"), b"zz\r\n"),
        saw_chunked(b"3\r\nabc\r\n"),
        400,
        End.CLOSED,
        SILENT,
    ),
)
