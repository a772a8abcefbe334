"""No head costs much more processor time than an ordinary page, however it is filled.

Each figure is the shortest of several times, because other work of the machine only adds to a time.
"""

from time import process_time
from typing import Any, cast

import pytest

from codehub.gateway.cookies import MAX_COOKIES
from codehub.gateway.http1.body_framing import LengthBody
from codehub.gateway.http1.request_head import LONG_HEAD, MAX_HEAD
from codehub.gateway.http1.response_head import (
    MAX_RESPONSE_FIELDS,
    MAX_RESPONSE_HEAD,
    BadResponseError,
    _parse,
)
from codehub.gateway.http1.turn_queue import COSTLY_A_TICK
from codehub.gateway.response_policy import ResponsePolicy
from tests.integration.gateway.harness import MINE
from tests.unit.gateway.fake_transport import FakeTransport, deliver
from tests.unit.gateway.test_turn_queue import ConnectionFixture

ROOM = MAX_HEAD - 1000
ROUNDS = 20
MOST = 40
"""How many times the cost of the gateway's shortest page a head may cost; before there were limits, 500."""
NAVIGATION = "Accept: text/html\r\n"
POLICY = ResponsePolicy(b"'self'", b"X: y\r\n")


def filled(piece: str, room: int = ROOM) -> str:
    return piece * (room // len(piece))


REQUESTS: dict[str, tuple[str, str, str]] = {
    "many fields": ("/", "", filled("a:b\r\n")),
    "many field names": ("/", "", "".join(f"a{number}:b\r\n" for number in range(3000))),
    "options of Connection": ("/", "platform", f"Connection: {filled('a,')}\r\n"),
    "languages": ("/", "", f"{NAVIGATION}Accept-Language: {filled('x,')}\r\n"),
    "a long field": ("/", "", f"X: {filled('a')}\r\n"),
    "cookies within their size": (
        f"/w/{MINE}/",
        "platform",
        f"{NAVIGATION}Cookie: {filled(';', 12_000)}session\r\n",
    ),
    "cookies beyond their size": (
        "/",
        "platform",
        f"{NAVIGATION}Cookie: codehub-language{filled(';')}\r\n",
    ),
    "names of cookies": (
        "/",
        "platform",
        f"Cookie: {''.join(f'{number}=;' for number in range(MAX_COOKIES - 1))}\r\n",
    ),
    "an escaped target for the API": (f"/{filled('%41')}", "platform", ""),
    "percent signs to sign in": (f"/w/{MINE}/{filled('%')}", "platform", NAVIGATION),
    "shorter percent signs to sign in": (f"/w/{MINE}/{filled('%', 8000)}", "platform", NAVIGATION),
    "values of a form": (f"/w/{MINE}/.codehub/form?{filled('a=b&', 8000)}", "platform", ""),
    "percent signs in a form": (f"/w/{MINE}/.codehub/form?to=/{filled('%', 8000)}", "platform", ""),
}


def shortest(function: Any) -> float:
    times = []
    for _ in range(ROUNDS):
        before = process_time()
        function()
        times.append(process_time() - before)
    return min(times)


class RequestCosts:
    def __init__(self) -> None:
        self.fixture = ConnectionFixture()
        self.fixture.gateway.start = lambda work: work.close()  # type: ignore[method-assign,assign,return-value]

    def of(self, target: str, host: str, fields: str) -> float:
        host = self.fixture.world.platform if host == "platform" else "unknown"
        data = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n".encode()
        assert len(data) <= MAX_HEAD

        def send() -> None:
            client = self.fixture.another()
            client.connection_made(cast(Any, FakeTransport()))
            client._share.costly = -1000
            client.data_received(data)

        return shortest(send)


@pytest.mark.parametrize("case", REQUESTS)
async def test_no_request_head_costs_much_more_than_a_page(case: str) -> None:
    costs = RequestCosts()
    page = costs.of("/", "", NAVIGATION)
    assert costs.of(*REQUESTS[case]) < MOST * page


RESPONSES: dict[str, bytes] = {
    "many fields": filled("a:\r\n", MAX_RESPONSE_HEAD).encode(),
    "many fields for the gateway": filled("te:\r\n", MAX_RESPONSE_HEAD).encode(),
    "fields and options": b"Connection: te, x\r\n" + b"te:\r\n" * (MAX_RESPONSE_FIELDS - 5),
    "values of X-Frame-Options": b"x-frame-options: %b\r\n" % (b"a," * 30_000),
    "options of Connection": b"connection: %b\r\n" % (b"a," * 30_000),
    "cookies": b"set-cookie:a=b\r\n" * (MAX_RESPONSE_FIELDS - 5),
    "cookies with attributes": b"set-cookie:a=b;;;;;;;;;;;;;;;;\r\n" * (MAX_RESPONSE_FIELDS - 5),
    "attributes of a cookie": b"set-cookie: a=b%b\r\n" % (b";" * 60_000),
    "a long field": b"x: %b\r\n" % (b"a" * 60_000),
}


def response_cost(fields: bytes) -> float:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + fields + b"\r\n"

    def relay() -> None:
        try:
            head = _parse(data)
        except BadResponseError:
            return
        assert isinstance(head.body(b"GET"), LengthBody)
        head.for_client(from_workspace=True, own_origin=True, close=False, policy=POLICY)

    return shortest(relay)


@pytest.mark.parametrize("case", RESPONSES)
def test_no_response_head_costs_much_more_than_twenty_fields(case: str) -> None:
    """Before there were limits, the costliest took 1,500 times as long."""
    ordinary = response_cost(b"".join(b"X-Field-%d: some value\r\n" % number for number in range(20)))
    assert response_cost(RESPONSES[case]) < 2 * MOST * ordinary


async def test_long_request_heads_wait_for_their_turn() -> None:
    fixture = ConnectionFixture()
    long = fixture.request(more=f"X: {'a' * LONG_HEAD}\r\n")
    await fixture.connected(long)
    for _ in range(COSTLY_A_TICK):
        assert fixture.up.sent
        fixture.up.sent.clear()
        deliver(fixture.upstream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        fixture.client.data_received(long)
    assert not fixture.up.sent
    await fixture.until(lambda: fixture.up.sent)


async def test_long_response_heads_wait_for_their_turn() -> None:
    fixture = ConnectionFixture()
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: %b\r\n\r\n" % (b"a" * 5000)
    await fixture.connected(fixture.request())
    for _ in range(COSTLY_A_TICK):
        fixture.down.sent.clear()
        deliver(fixture.upstream, long)
        assert fixture.down.sent
        fixture.client.data_received(fixture.request())
    fixture.down.sent.clear()
    deliver(fixture.upstream, long)
    assert not fixture.down.sent
    await fixture.until(lambda: fixture.down.sent)


async def test_interim_responses_are_relayed_one_a_turn() -> None:
    fixture, interim = ConnectionFixture(), b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    await fixture.connected(fixture.request())
    deliver(fixture.upstream, interim * 10 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert fixture.down.sent == [interim] and not fixture.up.is_read
    await fixture.until(lambda: fixture.up.is_read)
    assert fixture.down.sent[:10] == [interim] * 10
    assert fixture.down.sent[10].endswith(b"\r\n\r\nok") and len(fixture.down.sent) == 11
