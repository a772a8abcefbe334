"""WebSocket, the one protocol that a connection may switch to (RFC 9110, 7.8; RFC 6455, 4)."""

from tests.integration.gateway.conformance.case import (
    OK,
    OK_AND_CLOSE,
    AfterResponse,
    Case,
    ClientAction,
    ClientReceived,
    End,
    UpstreamReceived,
    UpstreamResponse,
    get,
    post,
    refused,
    upstream_get,
    upstream_request,
)

HANDSHAKE = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: a2V5",
)
FORWARDED = upstream_request(
    b"GET",
    b"sec-websocket-version: 13",
    b"sec-websocket-key: a2V5",
    added=(b"connection: Upgrade", b"upgrade: websocket"),
)
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: b2s=\r\n"
CLIENT_101 = ACCEPTED + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
UPSTREAM_101 = ACCEPTED + b"Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\r\n"
INNER = get(target=b"{base}/inner")


CASES = (
    Case(
        "the upstream accepts, and bytes are relayed both ways",
        (
            get(*HANDSHAKE),
            ClientReceived(CLIENT_101 + b"hello"),
            b"\x81\x02hi",
            UpstreamReceived(b"\x81\x02hi"),
            ClientAction.ABORT,
        ),
        FORWARDED + b"\x81\x02hi",
        CLIENT_101 + b"hello",
        End.CLIENT_CLOSED,
        UPSTREAM_101 + b"hello",
    ),
    Case(
        "bytes before the 101 belong to the tunnel",
        (get(*HANDSHAKE) + INNER, UpstreamReceived(INNER), ClientAction.ABORT),
        FORWARDED + INNER,
        b"",
        End.CLIENT_CLOSED,
        UPSTREAM_101,
    ),
    Case(
        "requests after the 101 are opaque bytes",
        (get(*HANDSHAKE), ClientReceived(CLIENT_101), INNER, UpstreamReceived(INNER), ClientAction.ABORT),
        FORWARDED + INNER,
        CLIENT_101,
        End.CLIENT_CLOSED,
        UPSTREAM_101,
    ),
    Case(
        "the client half-closes, and both sides are closed",
        (
            get(*HANDSHAKE),
            ClientReceived(CLIENT_101),
            b"bye",
            UpstreamReceived(b"bye"),
            ClientAction.HALF_CLOSE,
        ),
        FORWARDED + b"bye",
        CLIENT_101,
        End.CLOSED,
        UPSTREAM_101,
    ),
    Case(
        "the upstream closes after its last data",
        (get(*HANDSHAKE),),
        FORWARDED,
        CLIENT_101 + b"last words",
        End.CLOSED,
        UpstreamResponse(UPSTREAM_101 + b"last words", AfterResponse.CLOSE),
    ),
    Case(
        "tokens in a list, in any case",
        (
            get(b"connection: KEEP-ALIVE,  UPGRADE", b"upgrade: WEBSOCKET"),
            ClientReceived(CLIENT_101),
            ClientAction.ABORT,
        ),
        upstream_request(b"GET", added=(b"connection: Upgrade", b"upgrade: websocket")),
        CLIENT_101,
        End.CLIENT_CLOSED,
        UPSTREAM_101,
    ),
    Case(
        "interim responses before the 101",
        (get(*HANDSHAKE), ClientReceived(CLIENT_101), ClientAction.ABORT),
        FORWARDED,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + CLIENT_101,
        End.CLIENT_CLOSED,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + UPSTREAM_101,
    ),
    Case(
        "the upstream refuses, and the connection is closed",
        get(*HANDSHAKE) + INNER,
        FORWARDED,
        OK_AND_CLOSE,
        End.CLOSED,
        OK,
    ),
    Case(
        "the upstream refuses with 426",
        get(*HANDSHAKE),
        FORWARDED,
        b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n"
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nConnection: close\r\n\r\n",
        End.CLOSED,
        b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
    ),
    Case(
        "the upstream switches to something else",
        get(*HANDSHAKE) + INNER,
        FORWARDED,
        502,
        End.CLOSED,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    ),
    Case(
        "the upstream switches without naming a protocol",
        get(*HANDSHAKE),
        FORWARDED,
        502,
        End.CLOSED,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ),
    Case(
        "the upstream closes without a response",
        get(*HANDSHAKE),
        FORWARDED,
        502,
        End.CLOSED,
        UpstreamResponse(b"", AfterResponse.CLOSE),
    ),
    Case(
        "a 101 that sets a cookie",
        (get(*HANDSHAKE), ClientReceived(CLIENT_101), ClientAction.ABORT),
        FORWARDED,
        CLIENT_101,
        End.CLIENT_CLOSED,
        UPSTREAM_101.replace(b"Upgrade: W", b"Set-Cookie: session=evil\r\nUpgrade: W"),
    ),
    refused("a handshake with a body", get(*HANDSHAKE, b"Content-Length: 3", body=b"abc")),
    refused("a handshake with chunks", get(*HANDSHAKE, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")),
    refused("two Upgrades", get(*HANDSHAKE, b"Upgrade: h2c")),
    refused("two keys", get(*HANDSHAKE, b"Sec-WebSocket-Key: b3RoZXI=")),
    Case("a handshake with another method is ignored", post(*HANDSHAKE[:2]), upstream_request(b"POST")),
    Case(
        "a list of protocols is ignored",
        get(b"Connection: Upgrade", b"Upgrade: websocket, h2c"),
        upstream_get(),
    ),
    Case("another protocol is ignored", get(b"Connection: Upgrade", b"Upgrade: TLS/1.2"), upstream_get()),
    Case(
        "Upgrade that Connection does not name",
        get(b"Connection: keep-alive", b"Upgrade: websocket"),
        upstream_get(),
    ),
    Case("Connection: Upgrade and no protocol", get(b"Connection: Upgrade"), upstream_get()),
    Case(
        "HTTP/1.0 cannot switch",
        get(*HANDSHAKE[:2], version=b"1.0"),
        upstream_request(b"GET", version=b"1.0", added=(b"connection: close",)),
        OK_AND_CLOSE,
        End.CLOSED,
    ),
    Case(
        "another origin's page",
        get(*HANDSHAKE, b"Origin: http://other.example"),
        returned=403,
        end=End.CLOSED,
    ),
    Case("an origin that is null", get(*HANDSHAKE, b"Origin: null"), returned=403, end=End.CLOSED),
    Case(
        "without the cookie",
        b"GET {base}/x HTTP/1.1\r\nHost: {host}\r\n" + b"\r\n".join(HANDSHAKE) + b"\r\n\r\n" + INNER,
        returned=401,
        end=End.CLOSED,
    ),
)
