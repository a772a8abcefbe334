"""Response heads beside a second parser: no crash, the same framing, and no planted cookies."""

from hypothesis import given
from hypothesis import strategies as st

from codehub.gateway.http1.body_framing import FramingError, UntilCloseBody
from codehub.gateway.http1.response_head import BadResponseError, ResponseHead, parse_response
from tests.unit.gateway.fake_transport import feed_all
from tests.unit.gateway.fuzz.mutations import fuzz, mutated
from tests.unit.gateway.fuzz.reference_parser import names_platform_cookie, read_response

CHUNKS = b"2\r\nok\r\n0\r\n\r\n"
HEADS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nSet-Cookie: a=1; Path=/\r\nX-A: 1\r\nX-A: 2\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\nConnection: close, x-a\r\nX-A: 1\r\nTE: a\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nEtag: x\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nSet-Cookie: session=evil\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    b"HTTP/1.0 200\r\nServer: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 5\r\n\r\n",
)
NEXT = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
OF_ONE_CONNECTION = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authentication-info te trailer "
    b"upgrade".split()
)


def parsed(data: bytes) -> ResponseHead | None:
    try:
        return parse_response(data)
    except BadResponseError:
        return None


def first_head(data: bytes) -> bytes:
    return data[: data.find(b"\r\n\r\n") + 4] if b"\r\n\r\n" in data else data + b"\r\n\r\n"


@fuzz(300)
@given(mutated(HEADS), st.sampled_from([b"", b"hello", CHUNKS]), st.sampled_from([b"GET", b"HEAD"]))
def test_both_read_the_same_status_and_end(data: bytes, body: bytes, method: bytes) -> None:
    head = first_head(data)
    ours = parsed(head)
    if ours is None or ours.status == 101:
        return
    stream = head + body + NEXT
    theirs = read_response(stream, method)
    framing = ours.body(method)
    try:
        taken = feed_all(framing, stream[len(head) :])
    except FramingError:
        return
    if theirs is None:
        return
    assert theirs.start == (ours.status, b"1.%d" % ours.minor)
    if isinstance(framing, UntilCloseBody) or not framing.done:
        assert theirs.end is None
    else:
        assert theirs.end == len(head) + taken
        assert not ours.keep_alive or theirs.keep_alive is not False


@fuzz(250)
@given(mutated(HEADS), st.booleans(), st.booleans(), st.booleans())
def test_the_rewritten_head_means_the_same(
    data: bytes, from_workspace: bool, own_origin: bool, close: bool
) -> None:
    head = first_head(data)
    ours = parsed(head)
    if ours is None or ours.status == 101:
        return
    wire = ours.for_client(from_workspace=from_workspace, own_origin=own_origin, close=close)
    assert first_head(wire) == wire
    before, after = read_response(head + CHUNKS), read_response(wire + CHUNKS)
    if before is None or after is None:
        assert before is after
        return
    assert after.start == (ours.status, b"1.1")
    names = {name for name, _ in after.fields}
    assert names & OF_ONE_CONNECTION <= ({b"connection"} if close else set())
    connection = b",".join(value for name, value in before.fields if name == b"connection").lower()
    gone = {option.strip() for option in connection.split(b",")} | OF_ONE_CONNECTION
    framing = {b"content-length", b"transfer-encoding"}
    kept = [field for field in before.fields if field[0] not in gone | framing]
    if not from_workspace:
        assert kept == [field for field in after.fields if field[0] not in framing | {b"connection"}]
    for name, value in after.fields:
        if from_workspace and name == b"set-cookie":
            assert not names_platform_cookie(value.partition(b";")[0])


@fuzz(200)
@given(st.binary(max_size=300), st.sampled_from(HEADS), st.integers(0, 60))
def test_noise_is_refused_or_parsed(noise: bytes, good: bytes, at: int) -> None:
    for data in (noise, good[:at] + noise + good[at:]):
        parsed(first_head(data))
