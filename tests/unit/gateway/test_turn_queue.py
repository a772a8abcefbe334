"""Input that arrives at once is processed in small steps and in order, and nothing is read meanwhile."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from codehub.domain.states import Phase
from codehub.gateway.http1 import turn_queue
from codehub.gateway.http1.body_framing import LINES
from codehub.gateway.http1.client_connection import ClientConnection
from codehub.gateway.http1.turn_queue import COSTLY_A_TICK, TurnQueue
from codehub.gateway.http1.upstream import UpstreamConnection
from codehub.gateway.websocket_frames import BUDGET, FRAME_COST
from tests.integration.gateway.harness import MINE, SESSION, World, without_policy
from tests.unit.gateway.fake_transport import FakeTransport, deliver

CHUNK = b"1\r\nx\r\n"
CHUNKS_A_TURN = LINES // 2
FRAMES_A_TURN = BUDGET // FRAME_COST
FIELDS = f"Cookie: session={SESSION}\r\n"
UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


@pytest.fixture(autouse=True)
def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_queue, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(turn_queue, "REST", 0)


class ConnectionFixture:
    """A client's and an upstream's connection, with a gateway in between and no network."""

    def __init__(self, image: str = "any") -> None:
        self.world = World(Path("/nowhere"), apps=False)
        self.world.set_phase(MINE, Phase.RUNNING, image=image)
        self.gateway = self.world.gateway
        self.gateway.revocation.on_channel_answered()
        self.gateway.pool.connect = self._connect  # type: ignore[method-assign]
        self.up, self.down = FakeTransport(), FakeTransport()
        self.upstream = UpstreamConnection("", self.gateway.pool)
        self.client = self.another()
        self.client.connection_made(cast(Any, self.down))

    def another(self) -> ClientConnection:
        return ClientConnection(self.gateway)

    async def _connect(self, address: str) -> UpstreamConnection:
        self.upstream = UpstreamConnection(address, self.gateway.pool)
        self.upstream.connection_made(cast(Any, self.up))
        return self.upstream

    def request(self, method: str = "GET", more: str = "", host: str = "") -> bytes:
        start = f"{method} /w/{MINE}/ HTTP/1.1\r\nHost: {host or self.world.platform}\r\n"
        return f"{start}{FIELDS}{more}\r\n".encode()

    async def connected(self, first: bytes) -> None:
        """Send a request, and wait until an upstream has its head."""
        self.client.data_received(first)
        await self.until(lambda: self.up.sent)

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(100):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not happen")

    async def processed(self, wire: FakeTransport, other: FakeTransport, most: int) -> None:
        """Wait until `wire` is read again. In no turn may `other` receive more than `most` bytes."""
        while not wire.is_read:
            before = len(b"".join(other.sent))
            await asyncio.sleep(0)
            assert len(b"".join(other.sent)) - before <= most
            other.sent[:] = [b"".join(other.sent)]


async def test_pipelined_requests_are_answered_one_a_turn_and_in_order() -> None:
    fixture, count = ConnectionFixture(), 500
    hosts = [f"unknown{number}" for number in range(count)]
    accept = "Accept: text/html\r\n"
    fixture.client.data_received(b"".join(fixture.request(more=accept, host=host) for host in hosts))
    assert len(fixture.down.sent) == 1 and not fixture.down.is_read
    while not fixture.down.is_read:
        before = len(fixture.down.sent)
        await asyncio.sleep(0)
        assert len(fixture.down.sent) - before <= 1
    assert len(fixture.down.sent) == count
    assert all(answer.startswith(b"HTTP/1.1 421 ") for answer in fixture.down.sent)


async def test_relayed_requests_that_came_at_once_are_answered_in_order() -> None:
    fixture, count = ConnectionFixture(), 20
    await fixture.connected(
        b"".join(fixture.request(more=f"X-Number: {number}\r\n") for number in range(count))
    )
    for number in range(count):
        await fixture.until(lambda: fixture.up.sent)
        assert f"number: {number}\r\n".encode() in fixture.up.sent.pop()
        deliver(fixture.upstream, OK)
    assert without_policy(b"".join(fixture.down.sent)) == OK * count


async def test_a_request_that_comes_in_single_bytes_among_others_is_read() -> None:
    fixture = ConnectionFixture()
    for byte in fixture.request(host="unknown") * 3:
        fixture.client.data_received(bytes((byte,)))
        await fixture.until(lambda: fixture.down.is_read)
    assert len(fixture.down.sent) == 3


async def test_chunks_of_a_request_are_relayed_a_few_a_turn_and_all_arrive() -> None:
    fixture, body = ConnectionFixture(), CHUNK * 2000 + b"0\r\n\r\n"
    await fixture.connected(fixture.request("POST", "Transfer-Encoding: chunked\r\n"))
    fixture.up.sent.clear()
    fixture.client.data_received(body + fixture.request(host="unknown"))
    assert not fixture.down.is_read
    most = CHUNKS_A_TURN * len(CHUNK)
    while b"".join(fixture.up.sent) != body:
        assert not fixture.down.is_read
        before = len(b"".join(fixture.up.sent))
        await asyncio.sleep(0)
        assert 0 < len(b"".join(fixture.up.sent)) - before <= most
    deliver(fixture.upstream, OK)
    await fixture.until(lambda: len(fixture.down.sent) == 2)
    assert fixture.down.sent[1].startswith(b"HTTP/1.1 421 ")


async def test_a_request_body_waits_until_its_upstream_takes_more() -> None:
    fixture, body = ConnectionFixture(), CHUNK * 1000
    await fixture.connected(fixture.request("POST", "Transfer-Encoding: chunked\r\n"))
    fixture.client.data_received(body)
    fixture.upstream.pause_writing()
    await asyncio.sleep(0)
    passed = len(fixture.up.sent)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(fixture.up.sent) == passed and not fixture.down.is_read
    fixture.upstream.resume_writing()
    await fixture.processed(fixture.down, fixture.up, CHUNKS_A_TURN * len(CHUNK))
    assert b"".join(fixture.up.sent).endswith(body)


async def test_chunks_of_a_response_are_relayed_a_few_a_turn_and_all_arrive() -> None:
    fixture, body = ConnectionFixture(), CHUNK * 20_000 + b"0\r\n\r\n"
    await fixture.connected(fixture.request())
    deliver(fixture.upstream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert not fixture.up.is_read
    assert len(b"".join(fixture.down.sent)) < 2000
    await fixture.processed(fixture.up, fixture.down, CHUNKS_A_TURN * len(CHUNK))
    assert b"".join(fixture.down.sent).endswith(b"\r\n\r\n" + body)
    assert sum(map(len, fixture.gateway.pool._idle.values())) == 1


async def test_data_after_a_chunked_response_never_answers_the_next_request() -> None:
    fixture, body = ConnectionFixture(), CHUNK * 5000 + b"0\r\n\r\n"
    await fixture.connected(fixture.request())
    deliver(fixture.upstream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + OK * 2000)
    while not fixture.up.closed:
        await asyncio.sleep(0)
    assert b"".join(fixture.down.sent).endswith(body)
    assert not any(fixture.gateway.pool._idle.values())


async def test_a_response_waits_for_its_client_and_is_complete_although_its_upstream_closed() -> None:
    fixture, body = ConnectionFixture(), CHUNK * 1000 + b"0\r\n\r\n"
    await fixture.connected(fixture.request())
    deliver(fixture.upstream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    fixture.client.pause_writing()
    fixture.up.closed = True
    fixture.upstream.connection_lost(None)
    sent = len(fixture.down.sent)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(fixture.down.sent) == sent
    fixture.client.resume_writing()
    while not b"".join(fixture.down.sent).endswith(body):
        await asyncio.sleep(0)
    assert not fixture.down.closed


async def test_frames_are_relayed_a_few_a_turn_both_ways_and_all_arrive() -> None:
    fixture = ConnectionFixture()
    await fixture.connected(fixture.request(more=UPGRADE))
    down, up = b"\x82\x00\x82\x01x" * 5000, b"\x82\x80mask\x82\x81maskx" * 5000
    deliver(fixture.upstream, SWITCH + down)
    fixture.client.data_received(up)
    assert not fixture.up.is_read and not fixture.down.is_read
    while not (fixture.up.is_read and fixture.down.is_read):
        before = len(b"".join(fixture.up.sent)), len(b"".join(fixture.down.sent))
        await asyncio.sleep(0)
        assert len(b"".join(fixture.up.sent)) - before[0] <= FRAMES_A_TURN * 7
        assert len(b"".join(fixture.down.sent)) - before[1] <= FRAMES_A_TURN * 3
    assert b"".join(fixture.up.sent).endswith(up)
    assert b"".join(fixture.down.sent).endswith(down)
    assert fixture.gateway.recorder.collect()


async def test_an_upstream_is_read_again_after_its_client_read_a_response_late() -> None:
    """The transport pauses the upstream during the last write. The next request on it needs a response."""
    fixture = ConnectionFixture()
    await fixture.connected(fixture.request())
    paused: list[bool] = []

    def send_in_part(_data: bytes) -> None:
        fixture.client.pause_writing()
        paused.append(not fixture.up.is_read)

    fixture.down.write = send_in_part  # type: ignore[method-assign]
    deliver(fixture.upstream, OK)
    assert paused == [True] and fixture.up.is_read
    assert sum(map(len, fixture.gateway.pool._idle.values())) == 1


async def test_groups_take_turns_and_so_do_their_members() -> None:
    queue, done = TurnQueue(), []
    for group, name in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")):
        queue.add(group, partial(done.append, name))
    while len(done) < 5:
        await asyncio.sleep(0)
    assert done == ["a1", "b1", "c1", "a2", "a3"]


async def test_the_queue_rests_after_a_long_step_so_that_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(turn_queue, "perf_counter", lambda: now)
    monkeypatch.setattr(turn_queue, "TURN_SECONDS", 10.0)
    monkeypatch.setattr(turn_queue, "LONGEST_REST", 100.0)
    monkeypatch.setattr(turn_queue, "REST", 2)
    queue, done = TurnQueue(), []

    def step() -> None:
        nonlocal now
        now += 30
        done.append(now)

    for _ in range(2):
        queue.add("a", step)
    for _ in range(5):
        await asyncio.sleep(0)
    assert done == [30]
    now = 90  # twice as long as the step
    await asyncio.sleep(0)
    assert done == [30, 120]
    now, done[:] = 300, []
    queue.add("a", partial(done.append, 1))
    queue.add("a", queue.end_turn)
    queue.add("a", partial(done.append, 2))
    await asyncio.sleep(0)
    assert done == [1]
    await asyncio.sleep(0)
    assert done == [1, 2]


async def test_an_error_in_a_step_ends_its_connection_and_not_the_queue() -> None:
    fixture = ConnectionFixture()
    await fixture.connected(fixture.request("POST", "Transfer-Encoding: chunked\r\n"))
    fixture.client.data_received(CHUNK * 100)
    fixture.client._body = cast(Any, None)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    await fixture.until(lambda: fixture.down.closed)
    assert errors
    done: list[bool] = []
    fixture.gateway.turns.add("next", lambda: done.append(True))
    await fixture.until(lambda: done)


async def test_a_costly_address_waits_for_its_turn_until_its_cost_is_forgotten() -> None:
    fixture = ConnectionFixture()
    for _ in range(COSTLY_A_TICK):
        fixture.client.data_received(fixture.request(host="unknown"))
    assert len(fixture.down.sent) == COSTLY_A_TICK
    again = fixture.another()
    again.connection_made(cast(Any, FakeTransport()))
    wire = cast(FakeTransport, again.transport)
    again.data_received(fixture.request(host="unknown"))
    assert not wire.sent and not wire.is_read
    await fixture.until(lambda: wire.sent and wire.is_read)
    fixture.gateway.addresses.start_tick()
    again.data_received(fixture.request(host="unknown"))
    assert len(wire.sent) == 2


async def test_a_relayed_request_costs_nothing() -> None:
    fixture = ConnectionFixture()
    await fixture.connected(fixture.request())
    for _ in range(2 * COSTLY_A_TICK):
        fixture.up.sent.clear()
        deliver(fixture.upstream, OK)
        fixture.client.data_received(fixture.request())
        assert fixture.up.sent
    assert fixture.client._share.costly == 0
