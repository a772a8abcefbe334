"""Watchdog that kills parts that no longer answer, so that their supervisor starts them again."""

import asyncio
import signal
from pathlib import Path
from typing import Final

import structlog

from codehub.cli.heartbeats import START_FACTOR
from codehub.cli.part_processes import Part

MAX_MISSED: Final = 6
"""The number of requests in a row that a part may leave unanswered."""

logger = structlog.get_logger(__name__)


async def watch(part: Part, timeout: float) -> None:
    """Kill the part's process whenever it has not answered for `timeout` seconds, until cancelled.

    The part has answered before. A process that replaces it may take longer until its first answer.
    """
    within = timeout / MAX_MISSED / 2
    watched, left = part.process, MAX_MISSED
    while True:
        await asyncio.sleep(within)
        process = part.process
        if process is None or process.poll() is not None:
            continue
        if process is not watched:
            watched, left = process, MAX_MISSED * START_FACTOR
        if await _answers(part.internal_socket, within):
            left = MAX_MISSED
            continue
        left -= 1
        if left == 0:
            logger.error("a part does not answer", part=part.name, seconds=timeout)
            # A process that is stopped or hangs handles no other signal.
            process.send_signal(signal.SIGKILL)


async def _answers(socket: Path, within: float) -> bool:
    try:
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: internal\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False
