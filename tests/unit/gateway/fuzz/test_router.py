"""The router and mutated heads: it always returns a result, and relays carry no secret."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.states import Operation, Phase
from codehub.gateway.http1.relay import Relay
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import BadRequestError, RequestHead, parse_head
from codehub.gateway.http1.route_result import PendingRoute
from tests.integration.gateway.harness import MINE, SESSION, THEIRS, World
from tests.unit.gateway.fuzz.mutations import fuzz, mutated
from tests.unit.gateway.fuzz.reference_parser import names_platform_cookie, read_request, read_response

NAVIGATE = b"Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\nAccept: text/html\r\n"
COOKIES = b"Cookie: a=1; session={session}; {cookie}; lang=ko\r\nAuthorization: Bearer chub_x\r\n"
TARGETS = (
    b"/w/{mine}/a?b=c", b"/w/{mine}", b"/w/{theirs}/", b"/w/{mine}/proxy/3000/", b"/w/{mine}/absproxy/80/a",
    b"/api/v1/events", b"/",
    b"/healthz", b"/.codehub/enter?ticket=ticket0&to=%2Fa", b"/a?reconnection=false",
    b"/.codehub/begin?to=%2Fa", b"/w/{mine}/.codehub/enter?nonce=" + b"0" * 64 + b"&port=3000&to=%2Fa",
)  # fmt: skip
HOSTS = (b"{platform}", b"{host}", b"3000--{host}", b"127.0.0.1:1", b"other.example")
GOOD = tuple(
    b"GET %b HTTP/1.1\r\nHost: %b\r\n%b%b\r\n" % (target, host, COOKIES, more)
    for target in TARGETS
    for host in HOSTS
    for more in (
        b"",
        NAVIGATE,
        b"Accept-Language: ko, en;q=0.5\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
    )
)


def a_world(apps: bool) -> World:
    made = World(Path("/nowhere"), apps=apps)
    made.gateway.revocation.on_channel_answered()
    made.set_phase(THEIRS, Phase.STANDBY, Operation.NONE)
    return made


def filled(made: World, data: bytes) -> bytes:
    values = {"mine": MINE, "theirs": THEIRS, "session": SESSION, "cookie": made.cookie()}
    for name, value in {**values, "platform": made.platform, "host": made.host}.items():
        data = data.replace(b"{%b}" % name.encode(), value.encode())
    return data


@fuzz(200)
@given(mutated(GOOD, most=3), st.booleans())
async def test_routing_always_returns_a_result(data: bytes, apps: bool) -> None:
    made = a_world(apps)
    data = filled(made, data)
    try:
        head = parse_head(data[: data.find(b"\r\n\r\n") + 4] or data)
    except BadRequestError:
        return
    for _ in range(2):  # the second time from memory
        result = made.gateway.router.route(head, "192.0.2.7")
        if isinstance(result, PendingRoute):
            result = await made.gateway.router.finish_lookup(result, head)
        if isinstance(result, Relay):
            check_relay(head, result)
        else:
            assert isinstance(result, Reply)
            check_reply(head, result)


def check_relay(head: RequestHead, relay: Relay) -> None:
    theirs = read_request(relay.wire)
    assert theirs is not None
    assert theirs.start[0] == head.method
    fields = dict(theirs.fields)
    assert fields[b"x-forwarded-for"] == b"192.0.2.7"
    if relay.workspace_id:
        assert relay.workspace_id == MINE
        assert not re.search(rb"\bchub_", fields.get(b"authorization", b""))
        assert not names_platform_cookie(fields.get(b"cookie", b""))


def check_reply(head: RequestHead, reply: Reply) -> None:
    wire = reply.wire(head_only=False, close=True)
    theirs = read_response(wire)
    assert theirs is not None
    assert theirs.end == len(wire)
    assert [name for name, _ in theirs.fields] == sorted(
        [b"connection", b"content-length", *(name.lower().encode() for name, _ in reply.headers)]
    )
