"""Responses of an upstream that may send anything (RFC 9112, 4 to 6; RFC 9110, 15)."""

from codehub.gateway.http1.response_head import MAX_RESPONSE_FIELDS, MAX_RESPONSE_HEAD
from tests.integration.gateway.conformance.case import (
    OK,
    OK_AND_CLOSE,
    AfterResponse,
    Case,
    End,
    Mode,
    UpstreamResponse,
    get,
    post,
    request,
    upstream_get,
    upstream_request,
)

START = b"HTTP/1.1 200 OK\r\n"
CLOSE = b"Connection: close\r\n"
EMPTY = b"Content-Length: 0\r\n"
FIELD = b"X: 1\r\n"
WIDER = START + b"Service-Worker-Allowed: /\r\nContent-Length: 2\r\n\r\nok"


def unchanged(name: str, response: bytes, *, to: bytes = get(), forwarded: bytes = upstream_get()) -> Case:
    return Case(name, to, forwarded, response, response=response)


def rewritten(name: str, response: bytes, returned: bytes, *, mode: Mode = Mode.BOTH) -> Case:
    return Case(name, get(), upstream_get(), returned, response=response, mode=mode)


def bad_gateway(name: str, response: bytes) -> Case:
    """Return a case whose response is replaced by a 502. The connection stays open."""
    return Case(name, get(), upstream_get(), 502, response=response)


def truncated(name: str, response: bytes, returned: bytes) -> Case:
    return Case(
        name, get(), upstream_get(), returned, End.TRUNCATED, UpstreamResponse(response, AfterResponse.CLOSE)
    )


CASES = (
    unchanged("an empty body", START + b"Content-Length: 0\r\n\r\n"),
    unchanged("a chunked body", START + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    unchanged(
        "extensions and trailers",
        START + b"Transfer-Encoding: chunked\r\n\r\n2;a\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n",
    ),
    unchanged("no reason phrase", b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"),
    unchanged("not even a space before it", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"),
    unchanged("an unknown status", b"HTTP/1.1 799 Ok\xe9\r\nContent-Length: 0\r\n\r\n"),
    unchanged(
        "a response to HEAD with a length has no body",
        START + b"Content-Length: 99\r\n\r\n",
        to=request(b"HEAD"),
        forwarded=upstream_request(b"HEAD"),
    ),
    unchanged(
        "a chunked response to HEAD has no body",
        START + b"Transfer-Encoding: chunked\r\n\r\n",
        to=request(b"HEAD"),
        forwarded=upstream_request(b"HEAD"),
    ),
    unchanged(
        "a response to HEAD without framing",
        START + b"\r\n",
        to=request(b"HEAD"),
        forwarded=upstream_request(b"HEAD"),
    ),
    unchanged("204 has no body", b"HTTP/1.1 204 No Content\r\n\r\n"),
    unchanged("304 has a length and no body", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
    unchanged("early hints", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK),
    unchanged("several interim responses", b"HTTP/1.1 102 Processing\r\n\r\n" * 3 + OK),
    unchanged("an unexpected 100 Continue", b"HTTP/1.1 100 Continue\r\n\r\n" + OK),
    rewritten(
        "204 with a length",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ),
    rewritten(
        "204 with chunks",
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ),
    rewritten(
        "encodings are case-insensitive",
        START + b"transfer-encoding:CHUNKED \r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    rewritten("the upstream closes its connection", OK_AND_CLOSE, OK),
    rewritten(
        "fields of the upstream's connection",
        START + b"Connection: keep-alive, X-Hop\r\nKeep-Alive: 5\r\nX-Hop: 1\r\nProxy-Connection: a\r\n"
        b"Trailer: a\r\nUpgrade: h2c\r\nTE: a\r\nProxy-Authenticate: Basic\r\nX-End: 2\r\n"
        b"Content-Length: 0\r\n\r\n",
        START + b"X-End: 2\r\nContent-Length: 0\r\n\r\n",
    ),
    rewritten(
        "Connection cannot remove the length",
        START + b"Connection: content-length\r\nContent-Length: 2\r\n\r\nok",
        OK,
    ),
    rewritten(
        "Connection cannot remove the chunked encoding",
        START + b"Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    rewritten(
        "fields that a workspace may not set",
        START + b"Clear-Site-Data: *\r\nAlt-Svc: h3=x\r\nContent-Length: 2\r\n\r\nok",
        OK,
    ),
    rewritten("a wider service worker on its own origin", WIDER, WIDER, mode=Mode.ORIGIN),
    rewritten("a wider service worker on the platform's origin", WIDER, OK, mode=Mode.PATH),
    rewritten("a body longer than its length", OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", OK),
    rewritten(
        "a second response after chunks",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + OK,
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    rewritten(
        "a second response after 204",
        b"HTTP/1.1 204 No Content\r\n\r\n" + OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ),
    Case(
        "a body in a response to HEAD",
        request(b"HEAD"),
        upstream_request(b"HEAD"),
        START + b"Content-Length: 2\r\n\r\n",
        response=OK,
    ),
    Case(
        "a body that ends with its connection",
        get(),
        upstream_get(),
        START + CLOSE + b"\r\nall of it",
        End.CLOSED,
        UpstreamResponse(START + b"\r\nall of it", AfterResponse.CLOSE),
    ),
    Case(
        "HTTP/1.0 with a length",
        get(),
        upstream_get(),
        OK,
        response=UpstreamResponse(OK.replace(b"1.1", b"1.0"), AfterResponse.CLOSE),
    ),
    Case(
        "HTTP/1.0 without a length",
        get(),
        upstream_get(),
        START + CLOSE + b"\r\nold",
        End.CLOSED,
        UpstreamResponse(b"HTTP/1.0 200 OK\r\n\r\nold", AfterResponse.CLOSE),
    ),
    Case(
        "a chunked response to HTTP/1.0",
        get(version=b"1.0"),
        upstream_request(b"GET", version=b"1.0", added=(b"connection: close",)),
        502,
        End.CLOSED,
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    Case(
        "interim responses are not sent to HTTP/1.0",
        get(version=b"1.0"),
        upstream_request(b"GET", version=b"1.0", added=(b"connection: close",)),
        OK_AND_CLOSE,
        End.CLOSED,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK,
    ),
    Case(
        "a response before the end of the request closes the connection",
        post(b"Content-Length: 9", body=b"abc"),
        upstream_request(b"POST", b"content-length: 9", body=b"abc"),
        OK_AND_CLOSE,
        End.CLOSED,
        UpstreamResponse(b"", early=OK),
    ),
    bad_gateway("not HTTP", b"SSH-2.0-OpenSSH\r\n\r\n"),
    bad_gateway("HTTP/2", b"HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n"),
    bad_gateway("HTTP/1.2", b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n"),
    bad_gateway("a status of four digits", b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"),
    bad_gateway("a status of two digits", b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"),
    bad_gateway("a status below 100", b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n"),
    bad_gateway("two spaces before the status", b"HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n"),
    bad_gateway("NUL in the reason", b"HTTP/1.1 200 O\x00K\r\nContent-Length: 0\r\n\r\n"),
    bad_gateway(
        "a bare LF plants a field", START + b"X: 1\nSet-Cookie: session=evil\r\nContent-Length: 0\r\n\r\n"
    ),
    bad_gateway(
        "a bare CR plants a field", START + b"X: 1\rSet-Cookie: session=evil\r\nContent-Length: 0\r\n\r\n"
    ),
    bad_gateway(
        "a bare CR in the reason", b"HTTP/1.1 200 OK\rSet-Cookie: session=evil\r\nContent-Length: 0\r\n\r\n"
    ),
    bad_gateway("a folded line", START + b"X: 1\r\n 2\r\nContent-Length: 0\r\n\r\n"),
    bad_gateway("a space before the colon", START + b"Content-Length : 0\r\n\r\n"),
    bad_gateway("a line without a colon", START + b"X\r\nContent-Length: 0\r\n\r\n"),
    bad_gateway("two lengths", START + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nok"),
    bad_gateway("the same length twice", START + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok"),
    bad_gateway("a list of lengths", START + b"Content-Length: 2, 2\r\n\r\nok"),
    bad_gateway("a length with a sign", START + b"Content-Length: +2\r\n\r\nok"),
    bad_gateway("a negative length", START + b"Content-Length: -1\r\n\r\nok"),
    bad_gateway("a length that overflows", START + b"Content-Length: 18446744073709551618\r\n\r\nok"),
    bad_gateway(
        "a length and chunks", START + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    bad_gateway(
        "chunks and a length", START + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n"
    ),
    bad_gateway("two codings", START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    bad_gateway(
        "chunked twice", START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    bad_gateway("another coding", START + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n"),
    bad_gateway("chunks in HTTP/1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    bad_gateway("a head that is too long", START + b"X: " + b"a" * MAX_RESPONSE_HEAD),
    bad_gateway("one field too many", START + EMPTY + FIELD * MAX_RESPONSE_FIELDS + b"\r\n"),
    bad_gateway("a list that is too long", START + EMPTY + b"Connection: " + b"a," * 300 + b"\r\n\r\n"),
    unchanged("as many fields as are allowed", START + EMPTY + FIELD * (MAX_RESPONSE_FIELDS - 1) + b"\r\n"),
    Case(
        "endless interim responses",
        get(),
        upstream_get(),
        (103,) * 16 + (502,),
        response=b"HTTP/1.1 103 A\r\n\r\n" * 20 + OK,
    ),
    bad_gateway(
        "an unrequested protocol switch", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
    ),
    Case(
        "the upstream closes without a response",
        (get(),),
        upstream_get(),
        502,
        response=UpstreamResponse(b"", AfterResponse.CLOSE),
    ),
    Case(
        "the upstream closes in the head",
        get(),
        upstream_get(),
        502,
        response=UpstreamResponse(START + b"Content-Le", AfterResponse.CLOSE),
    ),
    truncated(
        "the upstream closes in a body with a length",
        START + b"Content-Length: 9\r\n\r\npart",
        START + b"Content-Length: 9\r\n\r\npart",
    ),
    truncated(
        "the upstream closes in a chunk",
        START + b"Transfer-Encoding: chunked\r\n\r\n9\r\npart",
        START + b"Transfer-Encoding: chunked\r\n\r\n9\r\npart",
    ),
    truncated(
        "the upstream closes before the last chunk",
        START + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    ),
    truncated(
        "the upstream closes in the trailers",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: 1\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: 1\r\n",
    ),
    bad_gateway("an invalid chunk size", START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n"),
    bad_gateway(
        "a chunk longer than its size",
        START + b"Transfer-Encoding: chunked\r\n\r\n2\r\nokok\r\n0\r\n\r\n",
    ),
    bad_gateway(
        "a session in a trailer",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nSet-Cookie: session=evil\r\n\r\n",
    ),
)
