"""For a second parser, the upstreams receive exactly the requests that the gateway relayed.

Only the sockets are not real. A connection gets a stream of bytes in pieces, and h11 reads what the
upstreams receive, request by request.
"""

import asyncio
from pathlib import Path
from typing import Any, cast

import h11
from hypothesis import given
from hypothesis import strategies as st

from codehub.gateway.http1.body_framing import Body
from codehub.gateway.http1.client_connection import ClientConnection
from codehub.gateway.http1.relay import Relay
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.http1.upstream import UpstreamConnection
from tests.integration.gateway.harness import MINE, SESSION, World
from tests.unit.gateway.fake_transport import FakeTransport, deliver
from tests.unit.gateway.fuzz.mutations import fuzz, in_pieces, mutated

FIELDS = b"Host: {host}\r\nCookie: session=%b; a=1\r\n" % SESSION.encode()
BODY = b"3\r\nabc\r\n5;x=y\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
IDE = b"/w/%b/" % MINE.encode()
REQUESTS = (
    b"GET %ba HTTP/1.1\r\n%b\r\n" % (IDE, FIELDS),
    b"GET %bb HTTP/1.1\r\n%b\r\n" % (IDE, FIELDS),
    b"GET %bc HTTP/1.1\r\n%bConnection: x-a\r\nX-A: 1\r\n\r\n" % (IDE, FIELDS),
    b"HEAD %ba HTTP/1.1\r\n%b\r\n" % (IDE, FIELDS),
    b"POST %ba HTTP/1.1\r\n%bContent-Length: 5\r\n\r\nhello" % (IDE, FIELDS),
    b"POST %ba HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n%b" % (IDE, FIELDS, BODY),
    b"POST /api/v1/x HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (FIELDS, len(HIDDEN), HIDDEN),
    b"GET /api/v1/x HTTP/1.1\r\n%b\r\n" % FIELDS,
    b"GET %bs HTTP/1.1\r\n%bConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" % (IDE, FIELDS),
)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class UpstreamLog:
    """What the upstreams received, as h11 reads it."""

    def __init__(self) -> None:
        self.begun: list[tuple[bytes, bytes]] = []
        self.whole = 0


class H11Transport(FakeTransport):
    """Transport to an upstream that answers everything that h11 accepts as a request."""

    def __init__(self, received: UpstreamLog) -> None:
        super().__init__()
        self.received = received
        self.connection: UpstreamConnection
        self._parser = h11.Connection(h11.SERVER)

    def write(self, data: bytes) -> None:
        if data:
            self._parser.receive_data(data)
        while (event := self._parser.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Request):
                self.received.begun.append((event.method, event.target))
            elif isinstance(event, h11.EndOfMessage):
                self._answer()

    def _answer(self) -> None:
        rest, self._parser = self._parser.trailing_data[0], h11.Connection(h11.SERVER)
        assert rest == b"", "more than one request at a time"
        self.received.whole += 1
        answer = ANSWER if self.received.begun[-1][0] != b"HEAD" else ANSWER.removesuffix(b"ok")
        asyncio.get_running_loop().call_soon(deliver, self.connection, answer)


class RecordingConnection(ClientConnection):
    """Connection that records the requests it relays."""

    def __init__(self, gateway: Any) -> None:
        super().__init__(gateway)
        self.relayed: list[tuple[bytes, bytes]] = []
        self.bodies: list[Body | None] = []

    def _start_exchange(self, head: RequestHead, relay: Relay) -> None:
        self.relayed.append(tuple(relay.wire.split(b" ", 2)[:2]))  # type: ignore[arg-type]
        self.bodies.append(self._body)
        super()._start_exchange(head, relay)

    @property
    def whole(self) -> int:
        return sum(body is None or body.done for body in self.bodies)


class StreamFixture:
    def __init__(self) -> None:
        self.world = World(Path("/nowhere"), apps=False)
        self.received = UpstreamLog()
        gateway = self.world.gateway
        gateway.revocation.on_channel_answered()
        gateway.pool.connect = self._connect  # type: ignore[method-assign]
        self.client = RecordingConnection(gateway)
        self.wire = FakeTransport()
        self.client.connection_made(cast(Any, self.wire))

    async def _connect(self, address: str) -> UpstreamConnection:
        wire, connection = H11Transport(self.received), UpstreamConnection(address, self.world.gateway.pool)
        wire.connection = connection
        connection.connection_made(cast(Any, wire))
        return connection

    def fill(self, data: bytes) -> bytes:
        return data.replace(b"{host}", self.world.platform.encode())

    async def send(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            if piece and not self.wire.closed:
                self.client.data_received(piece)
            await self._rest()

    async def _rest(self) -> None:
        """Wait until nothing happens."""
        before, quiet = None, 0
        while quiet < 5:
            await asyncio.sleep(0)
            now = (len(self.client.relayed), self.received.whole, len(self.wire.sent), self.client._state)
            quiet = quiet + 1 if now == before else 0
            before = now


@fuzz(150)
@given(st.data())
async def test_upstreams_receive_the_requests_that_the_gateway_relayed(data: st.DataObject) -> None:
    requests = data.draw(st.lists(mutated(REQUESTS, most=2), min_size=1, max_size=5))
    fixture = StreamFixture()
    await fixture.send(data.draw(in_pieces(fixture.fill(b"".join(requests)))))
    assert fixture.received.begun == fixture.client.relayed
    assert fixture.received.whole == fixture.client.whole


async def test_unchanged_requests_all_reach_upstreams() -> None:
    """This shows that the test above can fail."""
    fixture = StreamFixture()
    await fixture.send([fixture.fill(b"".join(REQUESTS))])
    assert fixture.received.begun == fixture.client.relayed
    assert len(fixture.received.begun) == fixture.received.whole == len(REQUESTS)
    assert b"".join(fixture.wire.sent).count(b"HTTP/1.1 200 OK") == len(REQUESTS)
