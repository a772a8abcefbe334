"""A relay to the engine that records every request."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_REQUEST = re.compile(r"^([A-Z]+) (?:/v[0-9.]+)?(/[^ ?]*)\S* HTTP/1\.1\r$", re.M)


@asynccontextmanager
async def recording_relay(engine: Path, path: Path) -> AsyncIterator[list[str]]:
    """Listen at `path` and relay to the engine; yield the list of requests, which grows."""
    requests: list[str] = []
    relays: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bool) -> None:
        while data := await reader.read(65536):
            if record:
                requests.extend(map(" ".join, _REQUEST.findall(data.decode("latin-1"))))
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(engine)
        relays.add(asyncio.create_task(relay(reader, back, True)))
        relays.add(asyncio.create_task(relay(there, writer, False)))

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield requests
    finally:
        server.close()
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
