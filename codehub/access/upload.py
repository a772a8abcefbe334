"""Work for a call that sends a body: it ends with its client, its credential, or this process."""

import asyncio
import select
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from codehub.access.services import AccessServices
from codehub.asgi.uvicorn_protocol import transport_of
from codehub.database.credentials import Credential

CHECK_SECONDS: Final = 1.0
_HUNG_UP: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


async def unless_ended(
    request: Request, services: AccessServices, caller: Credential, work: Coroutine[Any, Any, None]
) -> None:
    """Do the work. Cancel it, and raise ClientDisconnect, if the client, or its right to do this, is gone."""
    transport, ended = transport_of(request.scope), asyncio.Event()

    def end() -> None:
        if transport is not None:
            transport.abort()
        ended.set()

    task = asyncio.ensure_future(work)
    others = [asyncio.ensure_future(ended.wait()), asyncio.ensure_future(_hung_up(transport))]
    try:
        with ExitStack() as stack:
            stack.enter_context(services.readers.register(caller.user_id, end))
            stack.enter_context(services.credential_revocations.watch(caller, end))
            await asyncio.wait({task, *others}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnect
            task.result()
    finally:
        for each in (task, *others):
            each.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)


async def _hung_up(transport: asyncio.Transport | None) -> None:
    """Wait until the client has gone.

    uvicorn stops to read while the body waits, so it would not see that. Hence the kernel is polled.
    """
    connection = None if transport is None else transport.get_extra_info("socket")
    if transport is None or connection is None:
        await asyncio.Event().wait()
        return
    while not transport.is_closing():
        if _has_hung_up(connection.fileno()):
            return
        await asyncio.sleep(CHECK_SECONDS)


def _has_hung_up(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, _HUNG_UP)
    return bool(poll.poll(0))
