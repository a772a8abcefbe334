"""Responses of an upstream that may send anything (RFC 9112, 4 to 6; RFC 9110, 15)."""

from tests.integration.gateway.conformance.case import (
    OK,
    OK_AND_CLOSE,
    Answer,
    Case,
    End,
    Mode,
    Then,
    get,
    post,
    request,
    saw,
    saw_get,
)

START = b"HTTP/1.1 200 OK\r\n"
CLOSE = b"Connection: close\r\n"
WIDER = START + b"Service-Worker-Allowed: /\r\nContent-Length: 2\r\n\r\nok"


def as_is(name: str, answer: bytes, *, to: bytes = get(), sees: bytes = saw_get()) -> Case:
    return Case(name, to, sees, answer, answer=answer)


def told(name: str, answer: bytes, gets: bytes, *, mode: Mode = Mode.BOTH) -> Case:
    return Case(name, get(), saw_get(), gets, answer=answer, mode=mode)


def bad(name: str, answer: bytes) -> Case:
    """Nothing of it reaches the client, who can go on."""
    return Case(name, get(), saw_get(), 502, answer=answer)


def broken(name: str, answer: bytes, gets: bytes) -> Case:
    return Case(name, get(), saw_get(), gets, End.BROKEN, Answer(answer, Then.CLOSE))


CASES = (
    as_is("an empty body", START + b"Content-Length: 0\r\n\r\n"),
    as_is("a chunked body", START + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    as_is(
        "extensions and trailers",
        START + b"Transfer-Encoding: chunked\r\n\r\n2;a\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n",
    ),
    as_is("no reason phrase", b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"),
    as_is("not even a space before it", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"),
    as_is("a status that nobody knows", b"HTTP/1.1 799 Ok\xe9\r\nContent-Length: 0\r\n\r\n"),
    as_is(
        "an answer to HEAD has a length and no body",
        START + b"Content-Length: 99\r\n\r\n",
        to=request(b"HEAD"),
        sees=saw(b"HEAD"),
    ),
    as_is(
        "an answer to HEAD is chunked and has no body",
        START + b"Transfer-Encoding: chunked\r\n\r\n",
        to=request(b"HEAD"),
        sees=saw(b"HEAD"),
    ),
    as_is(
        "an answer to HEAD says nothing of a body", START + b"\r\n", to=request(b"HEAD"), sees=saw(b"HEAD")
    ),
    as_is("204 has no body", b"HTTP/1.1 204 No Content\r\n\r\n"),
    as_is("304 has a length and no body", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
    as_is("early hints", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK),
    as_is("several of them", b"HTTP/1.1 102 Processing\r\n\r\n" * 3 + OK),
    as_is("a continue that nobody waits for", b"HTTP/1.1 100 Continue\r\n\r\n" + OK),
    told(
        "204 with a length",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ),
    told(
        "204 with chunks",
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ),
    told(
        "codings have no case",
        START + b"transfer-encoding:CHUNKED \r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    told("the upstream's connection ends", OK_AND_CLOSE, OK),
    told(
        "fields of the upstream's connection",
        START + b"Connection: keep-alive, X-Hop\r\nKeep-Alive: 5\r\nX-Hop: 1\r\nProxy-Connection: a\r\n"
        b"Trailer: a\r\nUpgrade: h2c\r\nTE: a\r\nProxy-Authenticate: Basic\r\nX-End: 2\r\n"
        b"Content-Length: 0\r\n\r\n",
        START + b"X-End: 2\r\nContent-Length: 0\r\n\r\n",
    ),
    told(
        "Connection cannot take the length away",
        START + b"Connection: content-length\r\nContent-Length: 2\r\n\r\nok",
        OK,
    ),
    told(
        "nor the chunks",
        START + b"Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    told(
        "what a workspace may not say",
        START + b"Clear-Site-Data: *\r\nAlt-Svc: h3=x\r\nContent-Length: 2\r\n\r\nok",
        OK,
    ),
    told("a wider service worker on its own origin", WIDER, WIDER, mode=Mode.ORIGIN),
    told("a wider service worker on the platform's origin", WIDER, OK, mode=Mode.PATH),
    told("a body longer than it says", OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", OK),
    told(
        "a second answer behind chunks",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + OK,
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    told(
        "a second answer behind 204",
        b"HTTP/1.1 204 No Content\r\n\r\n" + OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ),
    Case(
        "a body in answer to HEAD",
        request(b"HEAD"),
        saw(b"HEAD"),
        START + b"Content-Length: 2\r\n\r\n",
        answer=OK,
    ),
    Case(
        "a body that ends with its connection",
        get(),
        saw_get(),
        START + CLOSE + b"\r\nall of it",
        End.CLOSED,
        Answer(START + b"\r\nall of it", Then.CLOSE),
    ),
    Case(
        "HTTP/1.0 with a length", get(), saw_get(), OK, answer=Answer(OK.replace(b"1.1", b"1.0"), Then.CLOSE)
    ),
    Case(
        "HTTP/1.0 without a length",
        get(),
        saw_get(),
        START + CLOSE + b"\r\nold",
        End.CLOSED,
        Answer(b"HTTP/1.0 200 OK\r\n\r\nold", Then.CLOSE),
    ),
    Case(
        "a chunked answer to HTTP/1.0",
        get(version=b"1.0"),
        saw(b"GET", version=b"1.0", added=(b"connection: close",)),
        502,
        End.CLOSED,
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    Case(
        "interim answers are not for HTTP/1.0",
        get(version=b"1.0"),
        saw(b"GET", version=b"1.0", added=(b"connection: close",)),
        OK_AND_CLOSE,
        End.CLOSED,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK,
    ),
    Case(
        "an answer before the end of the request is the last one",
        post(b"Content-Length: 9", body=b"abc"),
        saw(b"POST", b"content-length: 9", body=b"abc"),
        OK_AND_CLOSE,
        End.CLOSED,
        Answer(b"", early=OK),
    ),
    bad("no HTTP", b"SSH-2.0-OpenSSH\r\n\r\n"),
    bad("HTTP/2", b"HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n"),
    bad("HTTP/1.2", b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n"),
    bad("a status of four digits", b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"),
    bad("a status of two digits", b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"),
    bad("a status below 100", b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n"),
    bad("two spaces before the status", b"HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n"),
    bad("NUL in the reason", b"HTTP/1.1 200 O\x00K\r\nContent-Length: 0\r\n\r\n"),
    bad("a bare LF plants a field", START + b"X: 1\nSet-Cookie: session=evil\r\nContent-Length: 0\r\n\r\n"),
    bad("a bare CR plants a field", START + b"X: 1\rSet-Cookie: session=evil\r\nContent-Length: 0\r\n\r\n"),
    bad("a bare CR in the reason", b"HTTP/1.1 200 OK\rSet-Cookie: session=evil\r\nContent-Length: 0\r\n\r\n"),
    bad("a folded line", START + b"X: 1\r\n 2\r\nContent-Length: 0\r\n\r\n"),
    bad("a space before the colon", START + b"Content-Length : 0\r\n\r\n"),
    bad("a line without a colon", START + b"X\r\nContent-Length: 0\r\n\r\n"),
    bad("two lengths", START + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nok"),
    bad("the same length twice", START + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok"),
    bad("a list of lengths", START + b"Content-Length: 2, 2\r\n\r\nok"),
    bad("a length with a sign", START + b"Content-Length: +2\r\n\r\nok"),
    bad("a negative length", START + b"Content-Length: -1\r\n\r\nok"),
    bad("a length that overflows", START + b"Content-Length: 18446744073709551618\r\n\r\nok"),
    bad("a length and chunks", START + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    bad("chunks and a length", START + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n"),
    bad("two codings", START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    bad(
        "chunked twice", START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    bad("another coding", START + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n"),
    bad("chunks in HTTP/1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    bad("a head that is too long", START + b"X: " + b"a" * 200_000),
    Case(
        "interim answers without end",
        get(),
        saw_get(),
        (103,) * 16 + (502,),
        answer=b"HTTP/1.1 103 A\r\n\r\n" * 20 + OK,
    ),
    bad(
        "a protocol that nobody asked for", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
    ),
    Case("it closes without a word", (get(),), saw_get(), 502, answer=Answer(b"", Then.CLOSE)),
    Case("it closes in the head", get(), saw_get(), 502, answer=Answer(START + b"Content-Le", Then.CLOSE)),
    broken(
        "it closes in a body of a length",
        START + b"Content-Length: 9\r\n\r\npart",
        START + b"Content-Length: 9\r\n\r\npart",
    ),
    broken(
        "it closes in a chunk",
        START + b"Transfer-Encoding: chunked\r\n\r\n9\r\npart",
        START + b"Transfer-Encoding: chunked\r\n\r\n9\r\npart",
    ),
    broken(
        "it closes before the last chunk",
        START + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    ),
    broken(
        "it closes in the trailers",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: 1\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: 1\r\n",
    ),
    bad("a chunk size that is none", START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n"),
    bad(
        "a chunk longer than it says",
        START + b"Transfer-Encoding: chunked\r\n\r\n2\r\nokok\r\n0\r\n\r\n",
    ),
    bad(
        "a session in a trailer",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nSet-Cookie: session=evil\r\n\r\n",
    ),
)
