"""Client and upstream close at once when the other one does, and no connection stays open."""

from tests.integration.gateway.conformance.case import (
    OK,
    AfterResponse,
    Case,
    ClientAction,
    ClientReceived,
    End,
    UpstreamReceived,
    UpstreamResponse,
    get,
    post,
    upstream_chunked,
    upstream_get,
    upstream_request,
)

PART = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart"
SILENT = UpstreamResponse(b"")
CHUNKED = b"Transfer-Encoding: chunked"
FORWARDED_BODY = upstream_request(b"POST", b"content-length: 9", body=b"abc")


def client_aborts(
    name: str,
    *steps: object,
    forwarded: bytes = b"",
    returned: bytes = b"",
    response: bytes | UpstreamResponse = SILENT,
) -> Case:
    return Case(name, (*steps, ClientAction.ABORT), forwarded, returned, End.CLIENT_CLOSED, response)  # type: ignore[arg-type]


CASES = (
    client_aborts("the client closes without a request"),
    client_aborts("the client closes in the request line", b"GET {base}/x HT"),
    client_aborts("the client closes in the head", get()[:-2]),
    client_aborts(
        "the client closes between two requests",
        get(),
        ClientReceived(OK),
        forwarded=upstream_get(),
        returned=OK,
        response=OK,
    ),
    client_aborts(
        "the client closes in a body",
        post(b"Content-Length: 9", body=b"abc"),
        UpstreamReceived(b"abc"),
        forwarded=FORWARDED_BODY,
    ),
    client_aborts(
        "the client closes in a chunk",
        post(CHUNKED, body=b"9\r\nabc"),
        UpstreamReceived(b"abc"),
        forwarded=upstream_chunked(b"9\r\nabc"),
    ),
    client_aborts(
        "the client closes before the last chunk",
        post(CHUNKED, body=b"3\r\nabc\r\n"),
        UpstreamReceived(b"abc\r\n"),
        forwarded=upstream_chunked(b"3\r\nabc\r\n"),
    ),
    client_aborts(
        "the client closes in the trailers",
        post(CHUNKED, body=b"0\r\nX: 1\r\n"),
        UpstreamReceived(b"X: 1"),
        forwarded=upstream_chunked(b"0\r\nX: 1\r\n"),
    ),
    client_aborts(
        "the client closes while it waits", get(), UpstreamReceived(b"GET /x"), forwarded=upstream_get()
    ),
    client_aborts(
        "the client closes in the response",
        get(),
        ClientReceived(PART),
        forwarded=upstream_get(),
        returned=PART,
        response=PART,
    ),
    client_aborts(
        "the client closes in an endless response",
        get(),
        ClientReceived(b"2\r\nok\r\n"),
        forwarded=upstream_get(),
        returned=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        response=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    ),
    client_aborts(
        "the client closes with pipelined requests",
        get() + get(target=b"{base}/next"),
        UpstreamReceived(b"GET /x"),
        forwarded=upstream_get(),
    ),
    Case("a half-closed head", (get()[:-2], ClientAction.HALF_CLOSE), returned=b"", end=End.CLOSED),
    Case(
        "a half-closed body stays incomplete",
        (post(b"Content-Length: 9", body=b"abc"), UpstreamReceived(b"abc"), ClientAction.HALF_CLOSE),
        FORWARDED_BODY,
        b"",
        End.CLOSED,
        SILENT,
    ),
    Case(
        "a client that half-closes while it waits is disconnected",
        (get(), UpstreamReceived(b"GET /x"), ClientAction.HALF_CLOSE),
        upstream_get(),
        b"",
        End.CLOSED,
        SILENT,
    ),
    Case(
        "a client that half-closes after the response is disconnected",
        (get(), ClientReceived(OK), ClientAction.HALF_CLOSE),
        upstream_get(),
        OK,
        End.CLOSED,
    ),
    Case(
        "the upstream closes during the body",
        (post(b"Content-Length: 9", body=b"abcdefghi"),),
        upstream_request(b"POST", b"content-length: 9", body=b"abcdefghi"),
        502,
        response=UpstreamResponse(b"", AfterResponse.CLOSE),
    ),
    Case(
        "the upstream half-closes without a response",
        (get(),),
        upstream_get(),
        502,
        response=UpstreamResponse(b"", AfterResponse.HALF_CLOSE),
    ),
    Case(
        "the upstream half-closes after its response",
        (get(), ClientReceived(OK)),
        upstream_get(),
        OK,
        response=UpstreamResponse(OK, AfterResponse.HALF_CLOSE),
    ),
    Case(
        "an invalid chunk after valid ones closes both sides",
        (post(CHUNKED, body=b"3\r\nabc\r\n"), UpstreamReceived(b"abc\r\n"), b"zz\r\n"),
        upstream_chunked(b"3\r\nabc\r\n"),
        400,
        End.CLOSED,
        SILENT,
    ),
)
