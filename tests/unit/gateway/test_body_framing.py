"""Where bodies end, and how response heads are checked and rewritten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.gateway.http1.body_framing import LINES, ChunkedBody, FramingError, LengthBody
from codehub.gateway.http1.response_head import BadResponseError, parse_response

CHUNKED = b'4\r\nWiki\r\nA;ext="v"\r\n0123456789\r\n0\r\nX-Sum: x\r\n\r\n'


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.binary(max_size=20))
def test_a_chunked_body_ends_at_the_same_byte_however_it_is_cut(cuts: list[int], after: bytes) -> None:
    data, body, position = CHUNKED + after, ChunkedBody(), 0
    pieces = [*cuts, len(data)]
    while not body.done and position < len(data):
        size = pieces.pop(0) if pieces else len(data)
        position += body.feed(data[position : position + size])
    assert body.done
    assert position == len(CHUNKED)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"0x4\r\n",
        b"4 \r\n",
        b"4\n",
        b"4\r\nWikiX\r\n",
        b"4\r\nWiki\n",
        b"1" * 16 + b"\r\n",
        b"4;a\x00\r\n",
        b"4;" + b"a" * 10000,
        b"0\r\nno colon\r\n",
        b"0\r\n folded: x\r\n",
    ],
)
def test_an_ambiguous_chunked_body_is_refused(data: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkedBody().feed(data)


def test_one_call_reads_a_few_chunks_and_the_rest_follows() -> None:
    data, after = b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n", b"GET / HTTP/1.1\r\n"
    body, position = ChunkedBody(), 0
    while not body.done:
        taken = body.feed(memoryview(data + after)[position : position + 4096])
        assert 0 < taken <= LINES * len(b"1\r\nx\r\n") / 2
        position += taken
    assert position == len(data)


def test_large_chunks_pass_in_one_call() -> None:
    data = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    assert ChunkedBody().feed(data * 4) == len(data * 4)


def test_a_length_body_takes_no_more_bytes_than_its_length() -> None:
    body = LengthBody(5)
    assert body.feed(b"abc") == 3
    assert not body.done
    assert body.feed(b"defgh") == 2
    assert body.done


def body_of(text: bytes, method: bytes = b"GET") -> str:
    return type(parse_response(text + b"\r\n").body(method)).__name__


def test_response_framing_follows_rfc_9112() -> None:
    assert body_of(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n") == "LengthBody"
    assert body_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n") == "ChunkedBody"
    assert body_of(b"HTTP/1.1 200 OK\r\n") == "UntilCloseBody"
    for text, method in (
        (b"HTTP/1.1 200 OK\r\n", b"HEAD"),
        (b"HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n", b"GET"),
        (b"HTTP/1.1 304 X\r\n", b"GET"),
        (b"HTTP/1.1 100 X\r\n", b"GET"),
    ):
        assert parse_response(text + b"\r\n").body(method).done


def test_which_responses_keep_the_connection_alive() -> None:
    assert parse_response(b"HTTP/1.1 200 OK\r\n\r\n").keep_alive
    assert not parse_response(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").keep_alive
    assert not parse_response(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n").keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nX: a\nb: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rb: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 O\x00K\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_an_ambiguous_response_head_is_refused(data: bytes) -> None:
    with pytest.raises(BadResponseError):
        parse_response(data)


def passed_on(
    *lines: str,
    status: str = "200 OK",
    from_workspace: bool = True,
    own_origin: bool = False,
    close: bool = False,
) -> bytes:
    head = parse_response("\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode())
    return head.for_client(from_workspace=from_workspace, own_origin=own_origin, close=close)


def test_service_worker_allowed_is_relayed_only_on_a_workspaces_own_origin() -> None:
    lines = ("Service-Worker-Allowed: /", "Clear-Site-Data: *", "Alt-Svc: h3=x")
    assert passed_on(*lines) == b"HTTP/1.1 200 OK\r\n\r\n"
    assert passed_on(*lines, own_origin=True) == b"HTTP/1.1 200 OK\r\nService-Worker-Allowed: /\r\n\r\n"


def test_a_connection_option_cannot_remove_the_length() -> None:
    wire = passed_on("Connection: content-length", "Content-Length: 3")
    assert wire == b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"


def test_fields_of_the_upstreams_connection_are_removed() -> None:
    wire = passed_on(
        "A: 1",
        "CONNECTION: Keep-Alive, x-hop",
        "Keep-Alive: timeout=5",
        "B:",
        "X-Hop: 1",
        "Trailer: T",
        "C: 3",
    )
    assert wire == b"HTTP/1.1 200 OK\r\nA: 1\r\nB:\r\nC: 3\r\n\r\n"


def test_other_lines_are_relayed_byte_for_byte() -> None:
    lines = ("x-Connection: 1", "Connectionx: 2", "Via:  a \t", "X: content-length: 7", "Empty:")
    assert passed_on(*lines) == ("HTTP/1.1 200 OK\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode()


def test_the_platform_may_send_fields_that_a_workspace_may_not() -> None:
    lines = ("Set-Cookie: session=1", "set-cookie: own=1", "Alt-Svc: h3", "Clear-Site-Data: *", "Date: now")
    assert passed_on(*lines) == b"HTTP/1.1 200 OK\r\nset-cookie: own=1\r\nDate: now\r\n\r\n"
    assert passed_on(*lines, from_workspace=False).count(b"\r\n") == len(lines) + 2


@pytest.mark.parametrize("status", ["204 No Content", "100 Continue"])
def test_a_response_without_a_body_has_no_length(status: str) -> None:
    assert passed_on("Content-Length: 0", status=status) == f"HTTP/1.1 {status}\r\n\r\n".encode()


def test_framing_and_connection_fields_are_rewritten() -> None:
    wire = passed_on("transfer-encoding: Chunked", "Connection: close", close=True)
    assert wire == b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    switched = passed_on("Upgrade: websocket", "Connection: Upgrade", status="101 Switching Protocols")
    assert switched.endswith(b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert switched.lower().count(b"upgrade: websocket") == 1
