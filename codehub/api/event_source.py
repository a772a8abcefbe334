"""The events of one stream: what changed, in pieces of bounded size."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from pydantic import BaseModel
from ulid import ULID

from codehub.api.services import Services
from codehub.api.views import summary
from codehub.bus.events import Changes, Feed
from codehub.clock import utc_now
from codehub.database import workspace_queries
from codehub.database.sessions import Session, find_session
from codehub.database.workspace_queries import OwnedWorkspace
from codehub.domain.workspace import Workspace

HEARTBEAT: Final = 30.0
PIECE: Final = 20
"""Workspaces that are read and held at a time, about 50 KB."""

HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
RETRY: Final = b"retry: 3000\n"
REPLACED: Final = b"retry: 30000\n\n"
"""Ends a stream for a newer one. A browser reconnects after this time, so the two do not take turns."""


class Gone(BaseModel):
    id: str


class Item:
    """A workspace as it is sent."""

    def __init__(self, owned: OwnedWorkspace, services: Services) -> None:
        self.id = owned.workspace.id
        self.json = summary(owned, services.config).model_dump_json()
        self.fingerprint = hash(self.json)


class EventSource:
    """Reads what a stream has to send. It keeps fingerprints of what was sent, not the content."""

    def __init__(self, session: Session, services: Services) -> None:
        self._session = session
        self._services = services
        self._sent: dict[str, int] = {}

    async def events(self, feed: Feed) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        beat = loop.time() + HEARTBEAT
        while True:
            changes = await feed.changes(max(0.0, beat - loop.time()))
            if loop.time() >= beat:
                beat = loop.time() + HEARTBEAT
                if not await self._session_holds():
                    return
                yield encode("heartbeat", "{}")
                async for event in self._unannounced():
                    yield event
            if changes.everything:
                if not await self._session_holds():
                    return
                async for event in self._snapshot():
                    yield event
            async for event in self._updates(changes):
                yield event

    async def _session_holds(self) -> bool:
        """Looked up with each snapshot and heartbeat: the word of its end is a hint that may be lost."""
        async with self._services.engine.connect() as conn:
            return await find_session(conn, self._session.id_hash, utc_now()) is not None

    async def _snapshot(self) -> AsyncIterator[bytes]:
        self._sent = {}
        async for items, more in self._pieces():
            self._sent |= {item.id: item.fingerprint for item in items}
            joined, again = ",".join(item.json for item in items), "true" if more else "false"
            yield RETRY + encode("snapshot", f'{{"items":[{joined}],"more":{again}}}')

    async def _pieces(self) -> AsyncIterator[tuple[list[Item], bool]]:
        """All living workspaces, a piece at a time, and whether more follow.

        No connection is held while a piece is being sent. A workspace that changes after its piece was
        read has a hint, since the feed was subscribed before.
        """
        last: Workspace | None = None
        more = True
        while more:
            async with self._services.stream_reads, self._services.engine.connect() as conn:
                found = await workspace_queries.list_living(conn, self._session.user_id, PIECE + 1, last)
            more = len(found) > PIECE
            found = found[:PIECE]
            last = found[-1].workspace if found else None
            yield self._items(found), more

    async def _unannounced(self) -> AsyncIterator[bytes]:
        """What changed without a hint that came through; with the heartbeat, nothing stays stale for long."""
        gone = set(self._sent)
        async for items, _more in self._pieces():
            for item in items:
                gone.discard(item.id)
                if self._sent.get(item.id) != item.fingerprint:
                    yield self._updated(item)
        for workspace_id in gone:
            yield self._deleted(workspace_id)

    async def _updates(self, changes: Changes) -> AsyncIterator[bytes]:
        """What the hinted workspaces are now, read afresh: a hint says where to look, not what is there."""
        ids = changes.workspace_ids
        for start in range(0, len(ids), PIECE):
            some = ids[start : start + PIECE]
            async with self._services.stream_reads, self._services.engine.connect() as conn:
                found = await workspace_queries.find_living(conn, self._session.user_id, some)
            living = {item.id: item for item in self._items(found)}
            for workspace_id in some:
                item = living.get(workspace_id)
                yield self._deleted(workspace_id) if item is None else self._updated(item)

    def _items(self, found: Sequence[OwnedWorkspace]) -> list[Item]:
        return [Item(owned, self._services) for owned in found]

    def _updated(self, item: Item) -> bytes:
        self._sent[item.id] = item.fingerprint
        return encode("workspace_updated", item.json)

    def _deleted(self, workspace_id: str) -> bytes:
        self._sent.pop(workspace_id, None)
        return encode("workspace_deleted", Gone(id=workspace_id).model_dump_json())


def encode(name: str, json: str) -> bytes:
    """JSON has no raw line ends, so one data line is enough."""
    return f"id: {str(ULID()).lower()}\nevent: {name}\ndata: {json}\n\n".encode()
