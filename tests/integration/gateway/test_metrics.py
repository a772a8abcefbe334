"""Metrics of the gateway."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from codehub.domain.states import Phase
from codehub.gateway.metrics import GatewayMetrics
from tests.integration.gateway.harness import MINE, NAVIGATE, Upstream, World, respond_with, status
from tests.integration.gateway.test_tunnel import UPGRADE, echoing
from tests.waiting import until


def value(metrics: GatewayMetrics, name: str, **labels: str) -> float:
    """Return a sample as Prometheus reads it."""
    page = metrics.exposition()[0].decode()
    (found,) = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"codehub_gateway_{name}" and sample.labels == labels
    ]
    return found


def requests(made: World, outcome: str, kind: str = "") -> float:
    return value(made.metrics, "requests_total", outcome=outcome, kind=kind)


async def test_relayed_responses_are_counted_by_class_with_their_latency(origin_mode: World) -> None:
    for number in (200, 200, 302, 404, 503, 999):
        origin_mode.ide.script = respond_with(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % number)
        origin_mode.gateway.pool.close()
        assert status((await origin_mode.ask(origin_mode.request()))[0]) == number
    counts = [requests(origin_mode, "relayed", f"{number}xx") for number in range(1, 6)]
    assert counts == [0, 2, 1, 1, 2]
    assert value(origin_mode.metrics, "relay_seconds_count") == 6
    assert value(origin_mode.metrics, "relay_seconds_bucket", le="+Inf") == 6
    assert value(origin_mode.metrics, "relay_seconds_sum") > 0
    assert value(origin_mode.metrics, "connections_total") == 6


async def test_each_repeated_request_on_one_connection_is_counted(origin_mode: World) -> None:
    client = await origin_mode.connect()
    for _ in range(3):
        client.send(origin_mode.request())
        await client.response()
    assert requests(origin_mode, "relayed", "2xx") == 3
    assert (
        value(origin_mode.metrics, "connections_total") == value(origin_mode.metrics, "open_connections") == 1
    )
    client.close()
    await until(lambda: value(origin_mode.metrics, "open_connections") == 0, "the connection to close")


async def test_responses_of_the_gateway_are_counted_by_kind(origin_mode: World) -> None:
    await origin_mode.ask(origin_mode.entrance(session=None))
    assert requests(origin_mode, "redirect") == 1
    await origin_mode.ask(origin_mode.request(more="Sec-Fetch-Site: cross-site\r\n"))
    assert requests(origin_mode, "error", "4xx") == 1
    await origin_mode.ask("NONSENSE\r\n\r\n")
    assert requests(origin_mode, "refused") == 1
    origin_mode.set_phase(MINE, Phase.STANDBY)
    await origin_mode.ask(origin_mode.entrance())
    assert requests(origin_mode, "page", "loading") == 1
    await origin_mode.ask(f"GET / HTTP/1.1\r\nHost: evil.example\r\n{NAVIGATE}\r\n")
    assert requests(origin_mode, "page", "elsewhere") == 1


async def test_a_failed_upstream_is_counted_once(origin_mode: World) -> None:
    origin_mode.ide.script = respond_with(b"garbage\r\n\r\n")
    assert status((await origin_mode.ask(origin_mode.request()))[0]) == 502
    assert requests(origin_mode, "upstream_failed") == 1
    assert requests(origin_mode, "error", "5xx") == 0


async def test_open_websockets_are_counted(origin_mode: World) -> None:
    async with echoing(origin_mode):
        client = await origin_mode.connect()
        client.send(origin_mode.request(more=UPGRADE))
        assert status(await client.head()) == 101
        assert value(origin_mode.metrics, "open_websockets") == requests(origin_mode, "relayed", "1xx") == 1
        client.close()
        await until(lambda: value(origin_mode.metrics, "open_websockets") == 0, "the WebSocket to end")


async def test_a_websocket_that_its_upstream_closes_is_no_longer_counted_as_open(origin_mode: World) -> None:
    origin_mode.ide.script = close_after_upgrade
    client = await origin_mode.connect()
    client.send(origin_mode.request(more=UPGRADE))
    assert status(await client.head()) == 101
    await client.rest()
    assert value(origin_mode.metrics, "open_websockets") == 0
    assert requests(origin_mode, "relayed", "1xx") == 1


async def close_after_upgrade(
    upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await upstream.read_head(reader)
    writer.write(b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
