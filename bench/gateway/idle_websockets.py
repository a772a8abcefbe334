"""Many idle WebSockets: how fast they open, and their memory."""

import asyncio
import resource
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench import table
from bench.gateway.stack import Target
from bench.machine import memory_megabytes

CONNECTIONS = 4000
CONCURRENT_OPENS = 64
HEADER = ("proxy", "opened per second", "rate × chp", "MB per 1,000", "MB before")


@dataclass(frozen=True)
class IdleCost:
    opened_per_second: float
    mb_per_thousand: float
    mb_before: float


def measure(targets: list[Target]) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    costs = {target.name: asyncio.run(_open_many(target)) for target in targets if target.pids}
    chp = costs.get("configurable-http-proxy")
    rows = [
        [
            name,
            f"{cost.opened_per_second:,.0f}",
            table.ratio(cost.opened_per_second, chp.opened_per_second if chp else 0.0),
            f"{cost.mb_per_thousand:.1f}",
            f"{cost.mb_before:.0f}",
        ]
        for name, cost in costs.items()
    ]
    table.print_table(f"Gateway: {CONNECTIONS:,} idle WebSockets", HEADER, rows)


async def _open_many(target: Target) -> IdleCost:
    writers: list[asyncio.StreamWriter] = []
    limit = asyncio.Semaphore(CONCURRENT_OPENS)

    async def open_one() -> None:
        async with limit:
            writers.append(await _open(target))

    try:
        await open_one()  # one-time costs of the proxy do not count
        before = memory_megabytes(target.pids)
        began = time.perf_counter()
        await asyncio.gather(*(open_one() for _ in range(CONNECTIONS - 1)))
        rate = (CONNECTIONS - 1) / (time.perf_counter() - began)
        return IdleCost(rate, (memory_megabytes(target.pids) - before) / (CONNECTIONS - 1) * 1000, before)
    finally:
        for writer in writers:
            writer.transport.abort()


async def _open(target: Target) -> asyncio.StreamWriter:
    url = urlsplit(target.ws)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    cookie = f"Cookie: {target.cookie}\r\n" if target.cookie else ""
    writer.write(
        f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{cookie}\r\n".encode()
    )
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(b"HTTP/1.1 101 "), f"{target.name} does not open WebSockets: {head[:100]!r}"
    return writer
