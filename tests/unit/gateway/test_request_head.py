"""Request heads: which are parsed, and which are refused before an upstream receives a byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.gateway.http1.request_head import BadRequestError, RequestHead, parse_head

GOOD = "GET / HTTP/1.1\r\nHost: localhost:8080\r\n"


def parse(text: str) -> RequestHead:
    return parse_head(text.encode("latin-1") + b"\r\n")


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        GOOD + "Content-Length: 5\r\nContent-Length: 5\r\n",
        GOOD + "Content-Length: 5, 5\r\n",
        GOOD + "Content-Length: +5\r\n",
        GOOD + "Content-Length: 0x5\r\n",
        GOOD + "Content-Length: -1\r\n",
        GOOD + "Content-Length: 5 6\r\n",
        GOOD + "Content-Length: \r\n",
        GOOD + "Content-Length: 99999999999999999999\r\n",
        GOOD + "Transfer-Encoding: gzip\r\n",
        GOOD + "Transfer-Encoding: gzip, chunked\r\n",
        GOOD + "Transfer-Encoding: chunked, chunked\r\n",
        GOOD + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        GOOD + "Transfer-Encoding: xchunked\r\n",
        GOOD + "Transfer-Encoding : chunked\r\n",
        GOOD + "Transfer-Encoding:\x0bchunked\r\n",
        GOOD + " Transfer-Encoding: chunked\r\n",
        GOOD + "X: a\r\n\tb\r\n",
        GOOD + "X: a\nY: b\r\n",
        GOOD + "X: a\rY: b\r\n",
        GOOD + "X: a\x00b\r\n",
        GOOD + "X\r\n",
        GOOD + ": x\r\n",
        GOOD + "X y: z\r\n",
        GOOD + "Host: other\r\n",
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: \r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n",
        "GET / HTTP/1.1\r\nHost: user@host\r\n",
        "GET / HTTP/1.1\r\nHost: host/path\r\n",
        "GET / HTTP/1.1\r\nHost: host:port\r\n",
        "GET / HTTP/2.0\r\nHost: x\r\n",
        "GET / HTTP/0.9\r\nHost: x\r\n",
        "GET / HTTP/1.2\r\nHost: x\r\n",
        "GET /\r\nHost: x\r\n",
        "get / HTTP/1.1\r\nHost: x\r\n",
        "BREW / HTTP/1.1\r\nHost: x\r\n",
        "CONNECT x:443 HTTP/1.1\r\nHost: x\r\n",
        "TRACE / HTTP/1.1\r\nHost: x\r\n",
        "GET * HTTP/1.1\r\nHost: x\r\n",
        "GET a/b HTTP/1.1\r\nHost: x\r\n",
        "GET /a b HTTP/1.1\r\nHost: x\r\n",
        "GET /a#b HTTP/1.1\r\nHost: x\r\n",
        "GET /\xe9 HTTP/1.1\r\nHost: x\r\n",
        "GET http://other/ HTTP/1.1\r\nHost: x\r\n",
        "GET file:///etc HTTP/1.1\r\nHost: x\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: x\r\n",
        "PRI * HTTP/2.0\r\n",
        "GET / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n",
        GOOD + "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n",
        GOOD + "Upgrade: websocket\r\nUpgrade: h2c\r\n",
        GOOD + "Authorization: a\r\nAuthorization: b\r\n",
    ],
)
def test_an_ambiguous_head_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse(text)


def test_a_valid_head_is_parsed() -> None:
    head = parse(
        "POST /a?b=c HTTP/1.1\r\nHost: Example.COM:80\r\nContent-Length: 12\r\nX-One: 1\r\nx-one: 2\r\n"
    )
    assert (head.method, head.target, head.path) == (b"POST", b"/a?b=c", b"/a")
    assert (head.host, head.length, head.chunked, head.keep_alive) == ("example.com:80", 12, False, True)
    assert head.get(b"x-one") == b"1, 2"
    assert head.repeated == [(b"x-one", b"2")]


def test_the_absolute_form_that_agrees_with_host_is_its_path() -> None:
    assert parse("GET http://x:1/a?b HTTP/1.1\r\nHost: x:1\r\n").target == b"/a?b"
    assert parse("GET http://x HTTP/1.1\r\nHost: x\r\n").target == b"/"


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        (GOOD, True),
        (GOOD + "Connection: close\r\n", False),
        (GOOD + "Connection: X, Close\r\n", False),
        ("GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n", False),
    ],
)
def test_persistence(text: str, keeps: bool) -> None:
    assert parse(text).keep_alive is keeps


def test_only_websocket_is_an_upgrade() -> None:
    ask = GOOD + "Connection: keep-alive, Upgrade\r\n"
    assert parse(ask + "Upgrade: WebSocket\r\n").wants_websocket
    assert not parse(ask + "Upgrade: h2c\r\n").wants_websocket
    assert not parse(GOOD + "Upgrade: websocket\r\n").wants_websocket


NAVIGATE = "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"


@pytest.mark.parametrize(
    ("more", "is_navigation"),
    [
        (NAVIGATE, True),
        ("Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\nAccept: text/html\r\n", False),
        ("Sec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\nAccept: text/html\r\n", False),
        ("Accept: text/html,*/*\r\n", True),
        ("Accept: */*\r\n", False),
        ("", False),
        ("Accept: text/html\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", False),
        (f"{NAVIGATE}Connection: Upgrade\r\nUpgrade: websocket\r\n", False),
        (f"{NAVIGATE}Sec-Purpose: prefetch;prerender\r\n", False),
    ],
)
def test_only_a_person_opening_a_page_is_a_navigation(more: str, is_navigation: bool) -> None:
    assert parse(GOOD + more).is_navigation is is_navigation
    assert not parse(GOOD.replace("GET", "POST") + more).is_navigation


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(noise: bytes) -> None:
    for data in (noise + b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n" + noise + b"\r\n\r\n"):
        try:
            head = parse_head(data)
        except BadRequestError:
            continue
        assert head.host
        assert head.target.startswith(b"/")
