"""Fields of one connection end with it (RFC 9110, 7.6.1), and nobody says by himself where he came from."""

from tests.integration.gateway.conformance.case import OK_AND_CLOSE, Case, End, get, post, saw, saw_get


def dropped(name: str, *lines: bytes) -> Case:
    return Case(name, get(*lines), saw_get())


CASES = (
    dropped("Connection: keep-alive", b"Connection: keep-alive", b"Keep-Alive: timeout=5"),
    Case(
        "Connection: close is for this connection",
        get(b"Connection: close"),
        saw_get(),
        OK_AND_CLOSE,
        End.CLOSED,
    ),
    Case(
        "Connection: close among others, in any case",
        get(b"Connection: x, CLOSE"),
        saw_get(),
        OK_AND_CLOSE,
        End.CLOSED,
    ),
    dropped("a field that Connection names", b"Connection: X-Mine", b"X-Mine: 1"),
    dropped("a field that is named after it came", b"X-Mine: 1", b"Connection: x-mine"),
    dropped("every line of it", b"X-Mine: 1", b"Connection: x-mine", b"x-MINE: 2"),
    dropped(
        "fields that several lines of Connection name", b"Connection: a", b"A: 1", b"Connection: b", b"B: 1"
    ),
    dropped("fields in a list with empty items", b"Connection: , a ,,\tb", b"A: 1", b"B: 1"),
    Case(
        "Connection cannot take the length away",
        post(b"Connection: content-length", b"Content-Length: 3", body=b"abc"),
        saw(b"POST", b"content-length: 3", body=b"abc"),
    ),
    Case(
        "nor the chunks",
        post(b"Connection: transfer-encoding", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        saw(b"POST", added=(b"transfer-encoding: chunked",), body=b"0\r\n\r\n"),
    ),
    Case("nor Host", get(b"Connection: host"), saw_get()),
    Case(
        "nor Origin, by which an upstream decides",
        get(b"Connection: origin", b"Origin: http://{host}"),
        saw_get(b"origin: http://{host}"),
    ),
    Case(
        "nor credentials",
        get(b"Connection: authorization", b"Authorization: Basic YQ=="),
        saw_get(b"authorization: Basic YQ=="),
    ),
    Case(
        "nor where the request came from", get(b"Connection: x-forwarded-for, x-forwarded-proto"), saw_get()
    ),
    dropped("TE", b"TE: trailers"),
    dropped("TE that Connection names", b"TE: trailers, deflate", b"Connection: TE"),
    dropped("Trailer", b"Trailer: X-Sum"),
    dropped("Keep-Alive alone", b"Keep-Alive: 300"),
    dropped("Proxy-Connection", b"Proxy-Connection: keep-alive"),
    dropped("Proxy-Authorization", b"Proxy-Authorization: Basic YQ=="),
    dropped("Proxy, which CGI takes for a setting", b"Proxy: http://other.example"),
    dropped("Upgrade without Connection", b"Upgrade: websocket"),
    dropped(
        "an upgrade to HTTP/2", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA"
    ),
    dropped("X-Forwarded-For of a stranger", b"X-Forwarded-For: 192.0.2.1"),
    dropped("several of them", b"X-Forwarded-For: 192.0.2.1", b"x-forwarded-for: 192.0.2.2"),
    dropped("X-Forwarded-Host and -Proto", b"X-Forwarded-Host: other.example", b"X-Forwarded-Proto: https"),
    dropped("X-Forwarded-Port, -Prefix and -Server", b"X-Forwarded-Port: 1", b"X-Forwarded-Prefix: /a"),
    dropped("X-Forwarded- and whatever comes after it", b"X-Forwarded-User: root", b"X-Forwarded-Ssl: on"),
    dropped(
        "underscores, which CGI takes for hyphens", b"X_Forwarded_For: 192.0.2.1", b"X-Forwarded_Host: a"
    ),
    dropped("Forwarded", b"Forwarded: for=192.0.2.1;host=other.example"),
    dropped("X-Real-IP", b"X-Real-IP: 192.0.2.1"),
    dropped("X-Original-URL and X-Rewrite-URL", b"X-Original-URL: /admin", b"X-Rewrite-URL: /admin"),
    Case(
        "what only looks like one of them",
        get(b"X-Forward: 1", b"Via: 1.1 a"),
        saw_get(b"x-forward: 1", b"via: 1.1 a"),
    ),
    Case(
        "the API is told the same of a stranger",
        b"GET /api/v1/x HTTP/1.1\r\nHost: {platform}\r\nX-Forwarded-For: 192.0.2.1\r\nTE: trailers\r\n\r\n",
        b"GET /api/v1/x HTTP/1.1\r\nhost: {platform}\r\nx-forwarded-for: 127.0.0.1\r\n"
        b"x-forwarded-host: {platform}\r\nx-forwarded-proto: http\r\n\r\n",
        by_api=True,
    ),
)
