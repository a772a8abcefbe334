"""Request heads and bodies beside a second parser: no crash, and no disagreement about messages."""

from hypothesis import given
from hypothesis import strategies as st

from codehub.gateway.http1.body_framing import ChunkedBody, FramingError, request_body
from codehub.gateway.http1.head_rewrite import Forwarding, request_for_api, request_for_workspace
from codehub.gateway.http1.request_head import BadRequestError, RequestHead, parse_head
from tests.unit.gateway.fake_transport import feed_all
from tests.unit.gateway.fuzz.mutations import fuzz, in_pieces, mutated
from tests.unit.gateway.fuzz.reference_parser import names_platform_cookie, read_request

BODY = b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n"
HEADS = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a?b=c HTTP/1.1\r\nHost: x:80\r\nX-A: 1\r\nCookie: a=1; session=s\r\nAccept: text/html\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nX-A: 1\r\nX-A: 2\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: x-a\r\nX-A: 1\r\n\r\n",
    b"GET http://x/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer chub_x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n\r\n",
    b"HEAD / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\nEmpty:\r\n\r\n",
)
AFTER = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
HERE = Forwarding(b"192.0.2.7", "x", "http")


def first_head(data: bytes) -> bytes:
    """Return the head as a connection cuts it from its input, or nothing if it is incomplete."""
    return data[: data.find(b"\r\n\r\n") + 4] if b"\r\n\r\n" in data else b""


def parsed(head: bytes) -> RequestHead | None:
    try:
        return parse_head(head)
    except BadRequestError:
        return None


def end_of_body(head: RequestHead, data: bytes) -> int | None:
    body = request_body(head.length, head.chunked)
    taken = feed_all(body, data)
    return taken if body.done else None


def check_agreement(data: bytes, body: bytes) -> None:
    head = first_head(data)
    ours = parsed(head)
    if ours is None:
        return
    stream = head + body + AFTER
    theirs = read_request(stream)
    try:
        end = end_of_body(ours, stream[len(head) :])
    except FramingError:
        return
    if theirs is None:
        return
    target = theirs.start[1]
    assert isinstance(target, bytes)
    assert (ours.method, b"1.%d" % ours.minor) == (theirs.start[0], theirs.start[2])
    assert ours.target == target or target.lower().startswith((b"http://x", b"https://x"))
    assert sorted([*ours.fields.items(), *ours.repeated]) == theirs.fields
    assert theirs.end == (None if end is None else len(head) + end)
    assert theirs.keep_alive in (ours.keep_alive, None)


@fuzz(300)
@given(mutated(HEADS), st.sampled_from([b"", b"hello", BODY]))
def test_both_read_the_same_message_and_its_end(data: bytes, body: bytes) -> None:
    check_agreement(data, body)


def test_heads_that_are_cut_at_any_point() -> None:
    for good in HEADS:
        for at in range(len(good)):
            for rest in (b"\r\n", b"\r\n\r\n", b"\n\r\n\r\n", good):
                check_agreement(good[:at] + rest, b"hello")


@fuzz(300)
@given(mutated(HEADS))
def test_h11_accepts_every_head_that_the_gateway_accepts(data: bytes) -> None:
    """Therefore no head that h11 rejects is relayed."""
    head = first_head(data)
    if parsed(head) is not None:
        assert read_request(head) is not None


@fuzz(300)
@given(mutated(HEADS))
def test_the_rewritten_request_is_one_message_with_the_same_framing(data: bytes) -> None:
    head = first_head(data)
    ours = parsed(head)
    if ours is None:
        return
    for wire in (
        request_for_api(ours, HERE),
        request_for_workspace(ours, ours.target, HERE, strip_extensions=True),
    ):
        assert first_head(wire) == wire
        body = BODY if ours.chunked else b"x" * ours.length if ours.length < 1000 else b""
        theirs = read_request(wire + body + AFTER)
        assert theirs is not None
        assert theirs.start[:2] == (ours.method, ours.target)
        if ours.length < 1000:
            assert theirs.end == len(wire + body)
        names = [name for name, _ in theirs.fields]
        assert names.count(b"x-forwarded-for") == names.count(b"host") == 1
        assert not {b"te", b"trailer", b"keep-alive", b"proxy-connection"} & set(names)
    assert b"chub_x" not in wire or b"authorization" not in names
    assert not any(names_platform_cookie(value) for name, value in theirs.fields if name == b"cookie")


@fuzz(200)
@given(st.binary(max_size=300), st.sampled_from(HEADS), st.integers(0, 100))
def test_noise_is_refused_or_parsed(noise: bytes, good: bytes, at: int) -> None:
    for data in (noise, good[:at] + noise + good[at:], noise + b"\r\n\r\n"):
        parsed(first_head(data) or data)


def chunks_end(pieces: list[bytes]) -> int | str | None:
    body, position = ChunkedBody(), 0
    for piece in pieces:
        if body.done:
            break
        try:
            position += feed_all(body, piece)
        except FramingError:
            return "bad"
    return position if body.done else None


@fuzz(250)
@given(st.data())
def test_both_find_the_same_end_of_a_chunked_body(data: st.DataObject) -> None:
    body = data.draw(mutated((BODY, b"0\r\n\r\n", b"5\r\n0\r\n\r\n\r\n0\r\n\r\n"), most=3)) + AFTER
    ours = chunks_end([body])
    assert ours == chunks_end(data.draw(in_pieces(body)))
    theirs = read_request(CHUNKED_HEAD + body)
    if theirs is not None and ours != "bad":
        assert theirs.end == (None if ours is None else len(CHUNKED_HEAD) + int(ours))
