"""The readiness check of an IDE, over the same address that the gateway uses."""

from __future__ import annotations

import asyncio
import re

READY_WITHIN_SECONDS = 2.0
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r|\n)")
_LONGEST_STATUS_LINE = 4096


async def why_not_ready(upstream: str, path: str, within: float = READY_WITHIN_SECONDS) -> str | None:
    """Return None if `GET path` answers 2xx or 3xx in time, else a message for people."""
    try:
        async with asyncio.timeout(within):
            status = await _status_of_get(upstream, path)
    except TimeoutError:
        return f"no response to GET {path} within {within:g} s"
    except FileNotFoundError:
        return "the IDE is not listening yet"
    except OSError as error:
        return f"no connection to the IDE: {error.strerror or error}"
    if status is None:
        return f"the response to GET {path} is not HTTP"
    return None if 200 <= status < 400 else f"GET {path} returned {status}"


async def _status_of_get(upstream: str, path: str) -> int | None:
    reader, writer = await _connect(upstream)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: */*\r\n\r\n"
        writer.write(request.encode("ascii"))
        await writer.drain()
        line = await reader.readline()
    except ValueError:
        return None  # longer than any status line
    finally:
        # The rest does not matter, and a peer that does not read must not delay the close.
        writer.transport.abort()
    match = _STATUS_LINE.match(line)
    return int(match[1]) if match else None


async def _connect(upstream: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    scheme, _, address = upstream.partition(":")
    if scheme == "unix":
        return await asyncio.open_unix_connection(address, limit=_LONGEST_STATUS_LINE)
    if scheme == "tcp":
        host, _, port = address.rpartition(":")
        return await asyncio.open_connection(host.strip("[]"), int(port), limit=_LONGEST_STATUS_LINE)
    raise ValueError(f"an upstream must be unix:/path or tcp:host:port, not {upstream!r}")
