"""WebSocket, the one protocol that a connection may switch to (RFC 9110, 7.8; RFC 6455, 4)."""

from tests.integration.gateway.conformance.case import (
    OK,
    OK_AND_CLOSE,
    Act,
    Answer,
    Case,
    ClientGot,
    End,
    Then,
    UpstreamSaw,
    get,
    post,
    refused,
    saw,
    saw_get,
)

ASK = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: a2V5",
)
SEEN = saw(
    b"GET",
    b"sec-websocket-version: 13",
    b"sec-websocket-key: a2V5",
    added=(b"connection: Upgrade", b"upgrade: websocket"),
)
AGREED = b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: b2s=\r\n"
SWITCHED = AGREED + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
UPGRADED = AGREED + b"Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\r\n"
INNER = get(target=b"{base}/inner")


CASES = (
    Case(
        "the upstream agrees, and bytes pass both ways",
        (get(*ASK), ClientGot(SWITCHED + b"hello"), b"\x81\x02hi", UpstreamSaw(b"\x81\x02hi"), Act.LEAVE),
        SEEN + b"\x81\x02hi",
        SWITCHED + b"hello",
        End.GONE,
        UPGRADED + b"hello",
    ),
    Case(
        "what is sent ahead of the agreement belongs to it",
        (get(*ASK) + INNER, UpstreamSaw(INNER), Act.LEAVE),
        SEEN + INNER,
        b"",
        End.GONE,
        UPGRADED,
    ),
    Case(
        "after the agreement requests are bytes like others",
        (get(*ASK), ClientGot(SWITCHED), INNER, UpstreamSaw(INNER), Act.LEAVE),
        SEEN + INNER,
        SWITCHED,
        End.GONE,
        UPGRADED,
    ),
    Case(
        "the client ends its side, and so ends the other",
        (get(*ASK), ClientGot(SWITCHED), b"bye", UpstreamSaw(b"bye"), Act.HALF_CLOSE),
        SEEN + b"bye",
        SWITCHED,
        End.CLOSED,
        UPGRADED,
    ),
    Case(
        "the upstream ends, after its last words",
        (get(*ASK),),
        SEEN,
        SWITCHED + b"last words",
        End.CLOSED,
        Answer(UPGRADED + b"last words", Then.CLOSE),
    ),
    Case(
        "tokens in a list, in any case",
        (get(b"connection: KEEP-ALIVE,  UPGRADE", b"upgrade: WEBSOCKET"), ClientGot(SWITCHED), Act.LEAVE),
        saw(b"GET", added=(b"connection: Upgrade", b"upgrade: websocket")),
        SWITCHED,
        End.GONE,
        UPGRADED,
    ),
    Case(
        "interim answers before the agreement",
        (get(*ASK), ClientGot(SWITCHED), Act.LEAVE),
        SEEN,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + SWITCHED,
        End.GONE,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + UPGRADED,
    ),
    Case("the upstream refuses, and that is the end", get(*ASK) + INNER, SEEN, OK_AND_CLOSE, End.CLOSED, OK),
    Case(
        "the upstream refuses with 426",
        get(*ASK),
        SEEN,
        b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        End.CLOSED,
        b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
    ),
    Case(
        "the upstream switches to something else",
        get(*ASK) + INNER,
        SEEN,
        502,
        End.CLOSED,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    ),
    Case(
        "the upstream switches without saying to what",
        get(*ASK),
        SEEN,
        502,
        End.CLOSED,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ),
    Case("the upstream goes without a word", get(*ASK), SEEN, 502, End.CLOSED, Answer(b"", Then.CLOSE)),
    Case(
        "an agreement that plants a cookie",
        (get(*ASK), ClientGot(SWITCHED), Act.LEAVE),
        SEEN,
        SWITCHED,
        End.GONE,
        UPGRADED.replace(b"Upgrade: W", b"Set-Cookie: session=evil\r\nUpgrade: W"),
    ),
    refused("a handshake with a body", get(*ASK, b"Content-Length: 3", body=b"abc")),
    refused("a handshake with chunks", get(*ASK, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")),
    refused("two Upgrades", get(*ASK, b"Upgrade: h2c")),
    refused("two keys", get(*ASK, b"Sec-WebSocket-Key: b3RoZXI=")),
    Case("a handshake with another method asks for nothing", post(*ASK[:2]), saw(b"POST")),
    Case(
        "a list of protocols asks for nothing",
        get(b"Connection: Upgrade", b"Upgrade: websocket, h2c"),
        saw_get(),
    ),
    Case("another protocol asks for nothing", get(b"Connection: Upgrade", b"Upgrade: TLS/1.2"), saw_get()),
    Case(
        "Upgrade that Connection does not name",
        get(b"Connection: keep-alive", b"Upgrade: websocket"),
        saw_get(),
    ),
    Case("Connection: Upgrade and no protocol", get(b"Connection: Upgrade"), saw_get()),
    Case(
        "HTTP/1.0 cannot switch",
        get(*ASK[:2], version=b"1.0"),
        saw(b"GET", version=b"1.0", added=(b"connection: close",)),
        OK_AND_CLOSE,
        End.CLOSED,
    ),
    Case("another origin's page", get(*ASK, b"Origin: http://other.example"), gets=403, end=End.CLOSED),
    Case("an origin that is null", get(*ASK, b"Origin: null"), gets=403, end=End.CLOSED),
    Case(
        "without the cookie",
        b"GET {base}/x HTTP/1.1\r\nHost: {host}\r\n" + b"\r\n".join(ASK) + b"\r\n\r\n" + INNER,
        gets=401,
        end=End.CLOSED,
    ),
)
