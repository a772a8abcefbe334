"""`/events`: a live stream of one's own workspaces (server-sent events)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import structlog
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send
from ulid import ULID

from codehub.api.guards import Caller
from codehub.api.metrics import Metrics
from codehub.api.services import Services, Shared
from codehub.api.views import WorkspaceView, owned_view
from codehub.bus.events import Changes, Feed
from codehub.clock import utc_now
from codehub.store import workspace_reads
from codehub.store.sessions import Session, find_session
from codehub.store.workspace_reads import Selection

log = structlog.get_logger(__name__)
router = APIRouter(tags=["events"])

HEARTBEAT: Final = 30.0
FAREWELL: Final = 1.0


class Snapshot(BaseModel):
    items: list[WorkspaceView]


class Gone(BaseModel):
    id: str


class Heartbeat(BaseModel):
    pass


@router.get(
    "/events",
    response_class=Response,
    responses={
        200: {
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
            "description": "`snapshot` {items} first; then `workspace_updated` (a workspace), "
            "`workspace_deleted` {id} and `heartbeat` {}, each with an id.",
        }
    },
)
async def get_events(request: Request, session: Caller, services: Shared) -> Response:
    return EventStream(session, services, request.app.state.metrics)


class EventStream(Response):
    """Runs until the client goes, the session ends or the process stops, whichever is first.

    The writing may hang on a client that does not read; the end of the session does not wait for it.
    """

    def __init__(self, session: Session, services: Services, metrics: Metrics) -> None:
        super().__init__()
        self._session = session
        self._services = services
        self._metrics = metrics
        self._sent: dict[str, WorkspaceView] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        with self._metrics.streams.track_inprogress():
            async with self._services.subscriptions.feed(self._session.user_id) as feed:
                with self._services.session_ends.watch(self._session.id_hash, feed.end):
                    await self._until_something_ends(feed, receive, send)
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_something_ends(self, feed: Feed, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(feed, send))
        ends = {writing, asyncio.create_task(feed.wait_ended()), asyncio.create_task(_disconnected(receive))}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            outcomes = await asyncio.gather(*ends, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                log.warning("an event stream broke off", user_id=self._session.user_id, error=repr(outcome))

    async def _write(self, feed: Feed, send: Send) -> None:
        async for event in self._events(feed):
            await send({"type": "http.response.body", "body": event, "more_body": True})

    async def _events(self, feed: Feed) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        beat = loop.time() + HEARTBEAT
        while True:
            changes = await feed.changes(max(0.0, beat - loop.time()))
            if loop.time() >= beat:
                beat = loop.time() + HEARTBEAT
                if not await self._session_holds():
                    return
                yield encode("heartbeat", Heartbeat())
                for event in await self._unannounced():
                    yield event
            if changes.everything:
                if not await self._session_holds():
                    return
                yield encode("snapshot", await self._snapshot())
            for event in await self._updates(changes):
                yield event

    async def _session_holds(self) -> bool:
        """Looked up with each snapshot and heartbeat: the word of its end is a hint that may be lost."""
        async with self._services.engine.connect() as conn:
            return await find_session(conn, self._session.id_hash, utc_now()) is not None

    async def _snapshot(self) -> Snapshot:
        items = await self._read_all()
        self._sent = {item.id: item for item in items}
        return Snapshot(items=items)

    async def _read_all(self) -> list[WorkspaceView]:
        async with self._services.engine.connect() as conn:
            found = await workspace_reads.list_all(conn, Selection(self._session.user_id))
        return [owned_view(owned, self._services.config) for owned in found]

    async def _unannounced(self) -> list[bytes]:
        """What changed without a hint that came through; with the heartbeat, nothing stays stale for long."""
        now = {item.id: item for item in await self._read_all()}
        gone = [workspace_id for workspace_id in self._sent if workspace_id not in now]
        changed = [item for workspace_id, item in now.items() if self._sent.get(workspace_id) != item]
        return [self._tell_gone(workspace_id) for workspace_id in gone] + [
            self._tell(item) for item in changed
        ]

    async def _updates(self, changes: Changes) -> list[bytes]:
        """What the hinted workspaces are now, read afresh: a hint says where to look, not what is there."""
        if not changes.workspace_ids:
            return []
        async with self._services.engine.connect() as conn:
            found = await workspace_reads.find_living(conn, self._session.user_id, changes.workspace_ids)
        living = {owned.workspace.id: owned_view(owned, self._services.config) for owned in found}
        return [
            self._tell(living[workspace_id]) if workspace_id in living else self._tell_gone(workspace_id)
            for workspace_id in changes.workspace_ids
        ]

    def _tell(self, item: WorkspaceView) -> bytes:
        self._sent[item.id] = item
        return encode("workspace_updated", item)

    def _tell_gone(self, workspace_id: str) -> bytes:
        self._sent.pop(workspace_id, None)
        return encode("workspace_deleted", Gone(id=workspace_id))


_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def encode(name: str, data: BaseModel) -> bytes:
    """JSON has no raw line ends, so one data line is enough."""
    return f"id: {str(ULID()).lower()}\nevent: {name}\ndata: {data.model_dump_json()}\n\n".encode()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
