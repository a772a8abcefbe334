"""Progress notifications while a tool waits."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from mcp.server.mcpserver import Context

INTERVAL_SECONDS: Final = 0.5
SILENCE_SECONDS: Final = 10.0
"""After this long without news, a notification says that the tool still waits."""


@contextlib.asynccontextmanager
async def reported(context: Context[Any, Any], news: Callable[[], str]) -> AsyncIterator[None]:
    """Send what `news` returns, as it comes. The progress is the seconds so far."""
    task = asyncio.create_task(_report(context, news))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _report(context: Context[Any, Any], news: Callable[[], str]) -> None:
    began = reported_at = time.monotonic()
    while True:
        message, now = news(), time.monotonic()
        if message or now - reported_at >= SILENCE_SECONDS:
            await context.report_progress(now - began, None, message or f"waiting for {now - began:.0f} s")
            reported_at = now
        await asyncio.sleep(INTERVAL_SECONDS)
