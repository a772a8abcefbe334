"""Archive store for the event loop: calls run in threads, and lookups time out."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from codehub.domain.observation import ArchiveFact
from codehub.storage.archive.archives import ArchiveReader, BlockingArchiveStore, ListedArchive
from codehub.storage.errors import StoreTrouble, Unobservable

_THREADS = 8
LOOKUP_TIMEOUT = 10.0

T = TypeVar("T")


class ArchiveStore:
    """Asynchronous archive store with its own threads: a store that hangs blocks nothing else.

    A lookup fails after a timeout. While a lookup that timed out has not returned, further lookups
    fail at once. Listings and removals have no timeout.
    """

    def __init__(self, url: str, installation_id: str, lookup_timeout: float = LOOKUP_TIMEOUT) -> None:
        self.url = url
        self._archives = BlockingArchiveStore(url, installation_id)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="archive-store")
        self._lookup_timeout = lookup_timeout
        self._overdue: set[asyncio.Future[Any]] = set()

    async def check(self) -> None:
        """Raise Unobservable unless the store answers and is this installation's."""
        await self._look_up(self._archives.check)

    async def can_list_unfinished(self) -> bool:
        """Return whether unfinished uploads can be found, and so removed."""
        return await self._run(self._archives.can_list_unfinished)

    def is_there(self) -> bool:
        return self._archives.is_there()

    async def initialise(self) -> None:
        await self._run(self._archives.initialise)

    async def find(self, workspace_id: str, archive_op_id: str) -> ArchiveFact | None:
        return await self._look_up(lambda: self._archives.find(workspace_id, archive_op_id))

    async def open_archive(self, workspace_id: str, archive_op_id: str) -> ArchiveReader | None:
        return await self._look_up(lambda: self._archives.open_archive(workspace_id, archive_op_id))

    async def read(self, archive: ArchiveReader, start: int, length: int) -> bytes:
        """Return these bytes of an archive. The store's own timeouts apply."""
        return await self._run(lambda: bytes(archive.read(start, length)))

    async def list(self) -> "list[ListedArchive]":
        return await self._run(self._archives.list)

    async def remove(self, key: str) -> None:
        await self._run(lambda: self._archives.remove(key))

    async def _look_up(self, call: Callable[[], T]) -> T:
        if self._overdue:
            raise self._unresponsive()
        lookup = asyncio.ensure_future(self._run(call))
        lookup.add_done_callback(self._on_returned)
        done, _ = await asyncio.wait({lookup}, timeout=self._lookup_timeout)
        if done:
            return lookup.result()
        self._overdue.add(lookup)
        raise self._unresponsive()

    def _on_returned(self, lookup: "asyncio.Future[Any]") -> None:
        self._overdue.discard(lookup)
        if not lookup.cancelled():
            lookup.exception()  # mark as retrieved: the caller may have timed out

    def _unresponsive(self) -> Unobservable:
        return Unobservable(f"the archive store {self.url} does not answer")

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except StoreTrouble as error:
            raise Unobservable(error.message) from error
