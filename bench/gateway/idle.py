"""Many WebSockets on which nothing happens: what each costs in memory, and how fast they are opened."""

import asyncio
import resource
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench import table
from bench.gateway.stack import Target
from bench.machine import memory_megabytes

CONNECTIONS = 4000
AT_ONCE = 64
HEADER = ("proxy", "opened per second", "rate × chp", "MB per 1,000", "MB before")


@dataclass(frozen=True)
class Crowd:
    rate: float
    each_thousand_mb: float
    before_mb: float


def measure(targets: list[Target]) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowds = {target.name: asyncio.run(_crowd(target)) for target in targets if target.pids}
    chp = crowds.get("configurable-http-proxy")
    rows = [
        [
            name,
            f"{crowd.rate:,.0f}",
            table.ratio(crowd.rate, chp.rate if chp else 0.0),
            f"{crowd.each_thousand_mb:.1f}",
            f"{crowd.before_mb:.0f}",
        ]
        for name, crowd in crowds.items()
    ]
    table.show(f"Gateway: {CONNECTIONS:,} idle WebSockets", HEADER, rows)


async def _crowd(target: Target) -> Crowd:
    writers: list[asyncio.StreamWriter] = []
    turns = asyncio.Semaphore(AT_ONCE)

    async def come() -> None:
        async with turns:
            writers.append(await _open(target))

    try:
        await come()  # what only the first one costs, nobody else pays
        before = memory_megabytes(target.pids)
        began = time.perf_counter()
        await asyncio.gather(*(come() for _ in range(CONNECTIONS - 1)))
        rate = (CONNECTIONS - 1) / (time.perf_counter() - began)
        return Crowd(rate, (memory_megabytes(target.pids) - before) / (CONNECTIONS - 1) * 1000, before)
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
