"""What one connection sends at once is worked off in small steps, in order, and nothing is read meanwhile."""

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
from tests.unit.gateway.fake_transport import Wire, arrive

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


class Rig:
    """One client's connection and one upstream's, with a gateway in between and no network."""

    def __init__(self, image: str = "any") -> None:
        self.world = World(Path("/nowhere"), apps=False)
        self.world.set_phase(MINE, Phase.RUNNING, image=image)
        self.gateway = self.world.gateway
        self.gateway.revocation.channel_answered()
        self.gateway.pool.connect = self._connect  # type: ignore[method-assign]
        self.up, self.down = Wire(), Wire()
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

    async def worked_off(self, wire: Wire, other: Wire, most: int) -> None:
        """Wait until this one is read again. In no turn may `other` have got more than `most` bytes."""
        while not wire.is_read:
            before = len(b"".join(other.sent))
            await asyncio.sleep(0)
            assert len(b"".join(other.sent)) - before <= most
            other.sent[:] = [b"".join(other.sent)]


async def test_pipelined_requests_are_answered_one_a_turn_and_in_order() -> None:
    rig, count = Rig(), 500
    hosts = [f"unknown{number}" for number in range(count)]
    accept = "Accept: text/html\r\n"
    rig.client.data_received(b"".join(rig.request(more=accept, host=host) for host in hosts))
    assert len(rig.down.sent) == 1 and not rig.down.is_read
    while not rig.down.is_read:
        before = len(rig.down.sent)
        await asyncio.sleep(0)
        assert len(rig.down.sent) - before <= 1
    assert len(rig.down.sent) == count
    assert all(answer.startswith(b"HTTP/1.1 421 ") for answer in rig.down.sent)


async def test_relayed_requests_that_came_at_once_are_answered_in_order() -> None:
    rig, count = Rig(), 20
    await rig.connected(b"".join(rig.request(more=f"X-Number: {number}\r\n") for number in range(count)))
    for number in range(count):
        await rig.until(lambda: rig.up.sent)
        assert f"number: {number}\r\n".encode() in rig.up.sent.pop()
        arrive(rig.upstream, OK)
    assert without_policy(b"".join(rig.down.sent)) == OK * count


async def test_a_request_that_comes_in_single_bytes_among_others_is_read() -> None:
    rig = Rig()
    for byte in rig.request(host="unknown") * 3:
        rig.client.data_received(bytes((byte,)))
        await rig.until(lambda: rig.down.is_read)
    assert len(rig.down.sent) == 3


async def test_chunks_of_a_request_pass_a_few_a_turn_and_all_arrive() -> None:
    rig, body = Rig(), CHUNK * 2000 + b"0\r\n\r\n"
    await rig.connected(rig.request("POST", "Transfer-Encoding: chunked\r\n"))
    rig.up.sent.clear()
    rig.client.data_received(body + rig.request(host="unknown"))
    assert not rig.down.is_read
    most = CHUNKS_A_TURN * len(CHUNK)
    while b"".join(rig.up.sent) != body:
        assert not rig.down.is_read
        before = len(b"".join(rig.up.sent))
        await asyncio.sleep(0)
        assert 0 < len(b"".join(rig.up.sent)) - before <= most
    arrive(rig.upstream, OK)
    await rig.until(lambda: len(rig.down.sent) == 2)
    assert rig.down.sent[1].startswith(b"HTTP/1.1 421 ")


async def test_a_request_body_waits_for_its_upstream_to_take_it() -> None:
    rig, body = Rig(), CHUNK * 1000
    await rig.connected(rig.request("POST", "Transfer-Encoding: chunked\r\n"))
    rig.client.data_received(body)
    rig.upstream.pause_writing()
    await asyncio.sleep(0)
    passed = len(rig.up.sent)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(rig.up.sent) == passed and not rig.down.is_read
    rig.upstream.resume_writing()
    await rig.worked_off(rig.down, rig.up, CHUNKS_A_TURN * len(CHUNK))
    assert b"".join(rig.up.sent).endswith(body)


async def test_chunks_of_an_answer_pass_a_few_a_turn_and_all_arrive() -> None:
    rig, body = Rig(), CHUNK * 20_000 + b"0\r\n\r\n"
    await rig.connected(rig.request())
    arrive(rig.upstream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert not rig.up.is_read
    assert len(b"".join(rig.down.sent)) < 2000
    await rig.worked_off(rig.up, rig.down, CHUNKS_A_TURN * len(CHUNK))
    assert b"".join(rig.down.sent).endswith(b"\r\n\r\n" + body)
    assert sum(map(len, rig.gateway.pool._idle.values())) == 1


async def test_what_follows_an_answer_in_tiny_chunks_never_becomes_the_next_one() -> None:
    rig, body = Rig(), CHUNK * 5000 + b"0\r\n\r\n"
    await rig.connected(rig.request())
    arrive(rig.upstream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + OK * 3000)
    while not rig.up.closed:
        await asyncio.sleep(0)
    assert b"".join(rig.down.sent).endswith(body)
    assert not any(rig.gateway.pool._idle.values())


async def test_an_answer_waits_for_its_client_and_is_whole_although_its_upstream_went() -> None:
    rig, body = Rig(), CHUNK * 1000 + b"0\r\n\r\n"
    await rig.connected(rig.request())
    arrive(rig.upstream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    rig.client.pause_writing()
    rig.up.closed = True
    rig.upstream.connection_lost(None)
    sent = len(rig.down.sent)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(rig.down.sent) == sent
    rig.client.resume_writing()
    while not b"".join(rig.down.sent).endswith(body):
        await asyncio.sleep(0)
    assert not rig.down.closed


async def test_frames_pass_a_few_a_turn_both_ways_and_all_arrive() -> None:
    rig = Rig()
    await rig.connected(rig.request(more=UPGRADE))
    down, up = b"\x82\x00\x82\x01x" * 5000, b"\x82\x80mask\x82\x81maskx" * 5000
    arrive(rig.upstream, SWITCH + down)
    rig.client.data_received(up)
    assert not rig.up.is_read and not rig.down.is_read
    while not (rig.up.is_read and rig.down.is_read):
        before = len(b"".join(rig.up.sent)), len(b"".join(rig.down.sent))
        await asyncio.sleep(0)
        assert len(b"".join(rig.up.sent)) - before[0] <= FRAMES_A_TURN * 7
        assert len(b"".join(rig.down.sent)) - before[1] <= FRAMES_A_TURN * 3
    assert b"".join(rig.up.sent).endswith(up)
    assert b"".join(rig.down.sent).endswith(down)
    assert rig.gateway.recorder.collect()


async def test_an_upstream_is_read_again_after_an_answer_that_its_client_took_late() -> None:
    """The transport stops the upstream within the last write; the next request on it needs an answer."""
    rig = Rig()
    await rig.connected(rig.request())
    paused: list[bool] = []

    def send_in_part(_data: bytes) -> None:
        rig.client.pause_writing()
        paused.append(not rig.up.is_read)

    rig.down.write = send_in_part  # type: ignore[method-assign]
    arrive(rig.upstream, OK)
    assert paused == [True] and rig.up.is_read
    assert sum(map(len, rig.gateway.pool._idle.values())) == 1


async def test_groups_take_turns_and_so_do_their_members() -> None:
    queue, done = TurnQueue(), []
    for group, name in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")):
        queue.add(group, partial(done.append, name))
    while len(done) < 5:
        await asyncio.sleep(0)
    assert done == ["a1", "b1", "c1", "a2", "a3"]


async def test_an_error_in_a_step_ends_its_connection_and_not_the_queue() -> None:
    rig = Rig()
    await rig.connected(rig.request("POST", "Transfer-Encoding: chunked\r\n"))
    rig.client.data_received(CHUNK * 100)
    rig.client._body = cast(Any, None)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    await rig.until(lambda: rig.down.closed)
    assert errors
    done: list[bool] = []
    rig.gateway.turns.add("next", lambda: done.append(True))
    await rig.until(lambda: done)


async def test_an_address_that_costs_much_waits_for_its_turn_and_is_forgiven() -> None:
    rig = Rig()
    for _ in range(COSTLY_A_TICK):
        rig.client.data_received(rig.request(host="unknown"))
    assert len(rig.down.sent) == COSTLY_A_TICK
    again = rig.another()
    again.connection_made(cast(Any, Wire()))
    wire = cast(Wire, again.transport)
    again.data_received(rig.request(host="unknown"))
    assert not wire.sent and not wire.is_read
    await rig.until(lambda: wire.sent and wire.is_read)
    rig.gateway.addresses.start_tick()
    again.data_received(rig.request(host="unknown"))
    assert len(wire.sent) == 2


async def test_a_relayed_request_costs_nothing() -> None:
    rig = Rig()
    await rig.connected(rig.request())
    for _ in range(2 * COSTLY_A_TICK):
        rig.up.sent.clear()
        arrive(rig.upstream, OK)
        rig.client.data_received(rig.request())
        assert rig.up.sent
    assert rig.client._share.costly == 0
