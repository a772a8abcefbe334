"""Hop-by-hop fields (RFC 9110, 7.6.1) and a client's forwarding fields are not forwarded."""

from tests.integration.gateway.conformance.case import (
    OK_AND_CLOSE,
    Case,
    End,
    get,
    post,
    upstream_get,
    upstream_request,
)


def dropped(name: str, *lines: bytes) -> Case:
    return Case(name, get(*lines), upstream_get())


CASES = (
    dropped("Connection: keep-alive", b"Connection: keep-alive", b"Keep-Alive: timeout=5"),
    Case(
        "Connection: close is for this connection",
        get(b"Connection: close"),
        upstream_get(),
        OK_AND_CLOSE,
        End.CLOSED,
    ),
    Case(
        "Connection: close among others, in any case",
        get(b"Connection: x, CLOSE"),
        upstream_get(),
        OK_AND_CLOSE,
        End.CLOSED,
    ),
    dropped("a field that Connection names", b"Connection: X-Mine", b"X-Mine: 1"),
    dropped("a field that a later Connection names", b"X-Mine: 1", b"Connection: x-mine"),
    dropped("every line of a named field", b"X-Mine: 1", b"Connection: x-mine", b"x-MINE: 2"),
    dropped(
        "fields that several lines of Connection name", b"Connection: a", b"A: 1", b"Connection: b", b"B: 1"
    ),
    dropped("fields in a list with empty items", b"Connection: , a ,,\tb", b"A: 1", b"B: 1"),
    Case(
        "Connection cannot remove the length",
        post(b"Connection: content-length", b"Content-Length: 3", body=b"abc"),
        upstream_request(b"POST", b"content-length: 3", body=b"abc"),
    ),
    Case(
        "Connection cannot remove the chunked encoding",
        post(b"Connection: transfer-encoding", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        upstream_request(b"POST", added=(b"transfer-encoding: chunked",), body=b"0\r\n\r\n"),
    ),
    Case("Connection cannot remove Host", get(b"Connection: host"), upstream_get()),
    Case(
        "Connection cannot remove Origin",
        get(b"Connection: origin", b"Origin: http://{host}"),
        upstream_get(b"origin: http://{host}"),
    ),
    Case(
        "Connection cannot remove credentials",
        get(b"Connection: authorization", b"Authorization: Basic YQ=="),
        upstream_get(b"authorization: Basic YQ=="),
    ),
    Case(
        "Connection cannot remove forwarding fields",
        get(b"Connection: x-forwarded-for, x-forwarded-proto"),
        upstream_get(),
    ),
    dropped("TE", b"TE: trailers"),
    dropped("TE that Connection names", b"TE: trailers, deflate", b"Connection: TE"),
    dropped("Trailer", b"Trailer: X-Sum"),
    dropped("Keep-Alive alone", b"Keep-Alive: 300"),
    dropped("Proxy-Connection", b"Proxy-Connection: keep-alive"),
    dropped("Proxy-Authorization", b"Proxy-Authorization: Basic YQ=="),
    dropped("Proxy, which CGI reads as a setting", b"Proxy: http://other.example"),
    dropped("Upgrade without Connection", b"Upgrade: websocket"),
    dropped(
        "an upgrade to HTTP/2", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA"
    ),
    dropped("X-Forwarded-For of a client", b"X-Forwarded-For: 192.0.2.1"),
    dropped("several lines of X-Forwarded-For", b"X-Forwarded-For: 192.0.2.1", b"x-forwarded-for: 192.0.2.2"),
    dropped("X-Forwarded-Host and -Proto", b"X-Forwarded-Host: other.example", b"X-Forwarded-Proto: https"),
    dropped("X-Forwarded-Port, -Prefix and -Server", b"X-Forwarded-Port: 1", b"X-Forwarded-Prefix: /a"),
    dropped("other X-Forwarded- fields", b"X-Forwarded-User: root", b"X-Forwarded-Ssl: on"),
    dropped("underscores, which CGI reads as hyphens", b"X_Forwarded_For: 192.0.2.1", b"X-Forwarded_Host: a"),
    dropped("Forwarded", b"Forwarded: for=192.0.2.1;host=other.example"),
    dropped("X-Real-IP", b"X-Real-IP: 192.0.2.1"),
    dropped("X-Original-URL and X-Rewrite-URL", b"X-Original-URL: /admin", b"X-Rewrite-URL: /admin"),
    Case(
        "fields with similar names",
        get(b"X-Forward: 1", b"Via: 1.1 a"),
        upstream_get(b"x-forward: 1", b"via: 1.1 a"),
    ),
    Case(
        "the API gets the same forwarding fields",
        b"GET /api/v1/x HTTP/1.1\r\nHost: {platform}\r\nX-Forwarded-For: 192.0.2.1\r\nTE: trailers\r\n\r\n",
        b"GET /api/v1/x HTTP/1.1\r\nhost: {platform}\r\nx-forwarded-for: 127.0.0.1\r\n"
        b"x-forwarded-host: {platform}\r\nx-forwarded-proto: http\r\n\r\n",
        to_api=True,
    ),
)
