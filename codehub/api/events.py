"""`/events`: a live stream of the caller's workspaces (server-sent events)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Final

import structlog
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from codehub.api.event_source import HEADERS, REPLACED, EventSource
from codehub.api.metrics import ApiMetrics
from codehub.api.services import Services, Shared
from codehub.asgi.callers import ReadCaller
from codehub.asgi.errors import problem_response
from codehub.asgi.uvicorn_protocol import transport_of
from codehub.bus.events import Feed
from codehub.database.credentials import Credential
from codehub.domain.problems import TooManyRequests

logger = structlog.get_logger(__name__)
router = APIRouter(tags=["events"])

CLOSE_SECONDS: Final = 1.0
_EVENT: Final = {
    "description": "Each event of the stream. `data` is a JSON object.",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["snapshot", "workspace_updated", "workspace_deleted", "heartbeat"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "retry": {"type": "integer"},
    },
    "required": ["event", "data"],
}


@router.get(
    "/events",
    response_class=Response,
    responses={
        200: {
            "content": {"text/event-stream": {"schema": _EVENT}},
            "description": "First the snapshot: one or more `snapshot` {items, more}. The last has `more` "
            "false. Then `workspace_updated` (a workspace as in lists, without its memo), "
            "`workspace_deleted` {id} and `heartbeat` {}, each with an id. A later snapshot replaces all "
            "events before it. A client that does not read is disconnected.",
        }
    },
)
async def get_events(request: Request, caller: ReadCaller, services: Shared) -> Response:
    """Follow the changes of your workspaces as they happen, as server-sent events."""
    return EventStream(caller, services, request.app.state.metrics)


class EventStream(Response):
    """Response that runs until the client leaves or stops reading, its credential ends, or the API stops.

    A write may block on a client that does not read; the end of the credential does not wait for it. At
    most one event is buffered per client, so that many clients that do not read cost little memory.
    """

    def __init__(self, caller: Credential, services: Services, metrics: ApiMetrics) -> None:
        super().__init__()
        self._caller = caller
        self._services = services
        self._metrics = metrics
        self._replaced = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as registered:
            try:
                registered.enter_context(self._services.streams.register(self._caller, self._replaced.set))
            except TooManyRequests as problem:
                self._metrics.limited.labels("streams").inc()
                await problem_response(problem)(scope, receive, send)
                return
            async with self._services.subscriptions.feed(self._caller.user_id) as feed:
                await self._run(feed, scope, receive, send)
        if self._replaced.is_set():
            self._metrics.limited.labels("replaced_stream").inc()

    async def _run(self, feed: Feed, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        with (
            self._metrics.streams.track_inprogress(),
            self._services.credential_revocations.watch(self._caller, feed.end),
        ):
            await self._run_until_end(feed, receive, send)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await send(_body(REPLACED if self._replaced.is_set() else b"", more=True))
                await send(_body(b"", more=False))
        except TimeoutError:
            if (transport := transport_of(scope)) is not None:
                transport.abort()

    async def _run_until_end(self, feed: Feed, receive: Receive, send: Send) -> None:
        writing: asyncio.Task[object] = asyncio.create_task(self._write(feed, send))
        ends: set[asyncio.Task[object]] = {
            writing,
            asyncio.create_task(feed.wait_ended()),
            asyncio.create_task(self._replaced.wait()),
            asyncio.create_task(_disconnected(receive)),
        }
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            outcomes = await asyncio.gather(*ends, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                logger.warning("an event stream failed", user_id=self._caller.user_id, error=repr(outcome))

    async def _write(self, feed: Feed, send: Send) -> None:
        source: AsyncIterator[bytes] = EventSource(self._caller, self._services).events(feed)
        async for event in source:
            await send(_body(event, more=True))


def _body(content: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
