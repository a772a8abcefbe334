"""The events of one stream: snapshots and changes, in batches of bounded size."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from pydantic import BaseModel

from codehub.api.services import Services
from codehub.api.views import summary
from codehub.bus.events import Changes, Feed
from codehub.clock import utc_now
from codehub.database import credentials, workspace_queries
from codehub.database.credentials import Credential
from codehub.database.workspace_queries import OwnedWorkspace
from codehub.domain.workspace import Workspace
from codehub.ulids import new_id

HEARTBEAT: Final = 30.0
BATCH_SIZE: Final = 20
"""Workspaces in memory at a time, about 50 KB."""

HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
RETRY: Final = b"retry: 3000\n"
REPLACED: Final = b"retry: 30000\n\n"
"""Ends a stream in favour of a newer one. The delay keeps the two from replacing each other."""


class DeletedWorkspace(BaseModel):
    id: str


class SerializedWorkspace:
    """A workspace as JSON, with a fingerprint to detect changes."""

    def __init__(self, owned: OwnedWorkspace, services: Services) -> None:
        self.id = owned.workspace.id
        self.json = summary(owned, services.config, utc_now()).model_dump_json()
        self.fingerprint = hash(self.json)


class EventSource:
    """Reader of the events of one stream.

    It keeps fingerprints of the workspaces it sent, not their content. A token that is bound to
    workspaces gets events of those only.
    """

    def __init__(self, caller: Credential, services: Services) -> None:
        self._caller = caller
        self._services = services
        self._sent: dict[str, int] = {}

    async def events(self, feed: Feed) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        next_heartbeat = loop.time() + HEARTBEAT
        while True:
            changes = await feed.changes(max(0.0, next_heartbeat - loop.time()))
            if loop.time() >= next_heartbeat:
                next_heartbeat = loop.time() + HEARTBEAT
                if not await self._caller_is_valid():
                    return
                yield encode("heartbeat", "{}")
                async for event in self._missed_changes():
                    yield event
            if changes.everything:
                if not await self._caller_is_valid():
                    return
                async for event in self._snapshot():
                    yield event
            async for event in self._updates(changes):
                yield event

    async def _caller_is_valid(self) -> bool:
        """Look up the session or token: the notification of its end may have been lost."""
        async with self._services.engine.connect() as conn:
            return await credentials.is_unchanged(conn, self._caller, utc_now())

    async def _snapshot(self) -> AsyncIterator[bytes]:
        self._sent = {}
        async for items, more in self._batches():
            self._sent |= {item.id: item.fingerprint for item in items}
            joined, has_more = ",".join(item.json for item in items), "true" if more else "false"
            yield RETRY + encode("snapshot", f'{{"items":[{joined}],"more":{has_more}}}')

    async def _batches(self) -> AsyncIterator[tuple[list[SerializedWorkspace], bool]]:
        """Yield batches of the user's workspaces, and whether more follow.

        No database connection is held while a batch is sent. If a workspace changes after its batch was
        read, a hint follows, because the feed was subscribed before.
        """
        last: Workspace | None = None
        more = True
        while more:
            async with self._services.stream_reads, self._services.engine.connect() as conn:
                batch = await workspace_queries.list_living(
                    conn, self._caller.user_id, BATCH_SIZE + 1, last, among=self._caller.workspaces
                )
            more = len(batch) > BATCH_SIZE
            batch = batch[:BATCH_SIZE]
            last = batch[-1].workspace if batch else None
            yield self._items(batch), more

    async def _missed_changes(self) -> AsyncIterator[bytes]:
        """Yield the changes whose hints were lost. The heartbeat bounds how long a stream is stale."""
        deleted = set(self._sent)
        async for items, _more in self._batches():
            for item in items:
                deleted.discard(item.id)
                if self._sent.get(item.id) != item.fingerprint:
                    yield self._update(item)
        for workspace_id in deleted:
            yield self._delete(workspace_id)

    async def _updates(self, changes: Changes) -> AsyncIterator[bytes]:
        """Read the workspaces that hints name, and yield their present state."""
        ids = tuple(filter(self._caller.sees, changes.workspace_ids))
        for start in range(0, len(ids), BATCH_SIZE):
            batch = ids[start : start + BATCH_SIZE]
            async with self._services.stream_reads, self._services.engine.connect() as conn:
                found = await workspace_queries.find_living(conn, self._caller.user_id, batch)
            items = {item.id: item for item in self._items(found)}
            for workspace_id in batch:
                item = items.get(workspace_id)
                yield self._delete(workspace_id) if item is None else self._update(item)

    def _items(self, found: Sequence[OwnedWorkspace]) -> list[SerializedWorkspace]:
        return [SerializedWorkspace(owned, self._services) for owned in found]

    def _update(self, item: SerializedWorkspace) -> bytes:
        self._sent[item.id] = item.fingerprint
        return encode("workspace_updated", item.json)

    def _delete(self, workspace_id: str) -> bytes:
        self._sent.pop(workspace_id, None)
        return encode("workspace_deleted", DeletedWorkspace(id=workspace_id).model_dump_json())


def encode(name: str, json: str) -> bytes:
    """Return one server-sent event. JSON has no raw line breaks, so one data line is enough."""
    return f"id: {new_id()}\nevent: {name}\ndata: {json}\n\n".encode()
