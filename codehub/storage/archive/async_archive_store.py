"""The archive store, for whoever must not wait for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from codehub.domain.observation import ArchiveFact
from codehub.storage.archive.archives import Archives, StoredArchive
from codehub.storage.errors import StoreTrouble, Unobservable

_THREADS = 8
PATIENCE = 10.0
"""Seconds within which a look at the store has to be over."""

T = TypeVar("T")


class ArchiveStore:
    """The store as the control plane uses it. Its threads are its own: a store that hangs is alone.

    Whoever looks waits for a while only, and for nothing as long as an earlier look that took too long has
    not come back. A listing, or a removal, takes as long as it takes.
    """

    def __init__(self, url: str, installation_id: str, patience: float = PATIENCE) -> None:
        self.url = url
        self._archives = Archives(url, installation_id)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="archive-store")
        self._patience = patience
        self._overdue: set[asyncio.Future[Any]] = set()

    async def check(self) -> None:
        """Raise Unobservable unless the store answers and is this installation's."""
        await self._look(self._archives.check)

    async def sees_unfinished(self) -> bool:
        """Whether unfinished uploads can be found, and so removed."""
        return await self._run(self._archives.sees_unfinished)

    def is_there(self) -> bool:
        return self._archives.is_there()

    async def initialise(self) -> None:
        await self._run(self._archives.initialise)

    async def find(self, workspace_id: str, archive_op_id: str) -> ArchiveFact | None:
        return await self._look(lambda: self._archives.find(workspace_id, archive_op_id))

    async def list(self) -> "list[StoredArchive]":
        return await self._run(self._archives.list)

    async def remove(self, key: str) -> None:
        await self._run(lambda: self._archives.remove(key))

    async def _look(self, call: Callable[[], T]) -> T:
        if self._overdue:
            raise self._does_not_answer()
        look = asyncio.ensure_future(self._run(call))
        look.add_done_callback(self._came_back)
        done, _ = await asyncio.wait({look}, timeout=self._patience)
        if done:
            return look.result()
        self._overdue.add(look)
        raise self._does_not_answer()

    def _came_back(self, look: "asyncio.Future[Any]") -> None:
        self._overdue.discard(look)
        if not look.cancelled():
            look.exception()  # whoever asked may have left

    def _does_not_answer(self) -> Unobservable:
        return Unobservable(f"the archive store {self.url} does not answer")

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except StoreTrouble as trouble:
            raise Unobservable(trouble.message) from trouble
