"""Smuggling, slowloris and oversized heads get nowhere."""

import pytest

from tests.integration.gateway.harness import NEVER, World, status
from tests.waiting import until


@pytest.mark.parametrize(
    "more",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "X: a\r\n b\r\n",
        "Host: other\r\n",
        "X: \x00\r\n",
    ],
)
async def test_ambiguity_is_a_400_before_an_upstream_sees_a_byte(origin: World, more: str) -> None:
    client = await origin.connect()
    client.send(origin.request("/", "POST", more=more) + "0\r\n\r\nGET /admin HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _ = await client.response()
    assert status(head) == 400
    assert await client.rest() == b""
    assert not origin.ide.connections and not origin.api.connections


async def test_a_head_that_ends_its_lines_wrongly_is_refused_at_once(origin: World) -> None:
    head, _ = await origin.ask(f"GET / HTTP/1.1\nHost: {origin.host}\n\n")
    assert status(head) == 400  # later, it would be a 408


async def test_an_oversized_head_is_refused(origin: World) -> None:
    head, _ = await origin.ask(origin.request(more="X: " + "a" * 70_000 + "\r\n"))
    assert status(head) == 400
    client = await origin.connect()
    client.send("GET / HTTP/1.1\r\nX: " + "a" * 70_000)
    assert status((await client.response())[0]) == 400


async def test_a_head_just_below_the_limit_passes(origin: World) -> None:
    assert status((await origin.ask(origin.request(more="X: " + "a" * 60_000 + "\r\n")))[0]) == 200


async def test_a_head_that_drips_is_cut_off(origin: World) -> None:
    client = await origin.connect()
    client.send("GET / HTTP/1.1\r\nHost: x\r\n")
    await until(lambda: any(each._buffer for each in origin.gateway._connections), "the head to begin")
    origin.elapse()
    head, _ = await client.response()
    assert status(head) == 408
    assert not origin.ide.connections


async def test_a_connection_that_says_nothing_is_closed(origin: World) -> None:
    client = await origin.connect()
    await until(lambda: origin.gateway._connections, "the connection")
    origin.elapse()
    assert await client.rest() == b""
    await until(lambda: not origin.gateway._connections, "the connection to be forgotten")


async def test_the_deadline_of_a_head_does_not_move_with_each_byte(origin: World) -> None:
    client = await origin.connect()
    client.send(origin.request())
    await client.response()
    (connection,) = origin.gateway._connections
    for sent in (b"GET / HTTP/1.1\r\nX-Slow: ", b"a", b"a"):
        client.send(sent)
        await until(lambda sent=sent: connection._buffer.endswith(sent), "the gateway to read it")
        origin.elapse(NEVER * 0.4)
    assert status(await client.head()) == 408


async def test_answers_that_nobody_reads_do_not_pile_up(origin: World) -> None:
    """Small requests with large answers, sent without end by a client that does not read."""
    count, request = 5000, b"GET / HTTP/1.1\r\nHost: elsewhere\r\nAccept: text/html\r\n\r\n"
    client = await origin.connect()
    client.send(request * count)
    await until(lambda: origin.gateway._connections, "the connection")
    (connection,) = origin.gateway._connections
    await until(lambda: connection._held_for_buffer, "the gateway to read no more")
    assert connection.transport.get_write_buffer_size() < 1_000_000
    for _ in range(count):
        assert status((await client.response())[0]) == 421
    client.send(origin.request())
    assert (await client.response())[1] == b"hello"
