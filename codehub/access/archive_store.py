"""The archive store, as the access part reads it (ADR 0040)."""

from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import installation
from codehub.database.archive_queries import RecordedArchive
from codehub.storage.archive.archives import ArchiveReader
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.errors import CorruptedArchive, Unobservable


class ReadableArchives:
    """Archive store of this installation, opened with the first call."""

    def __init__(self, url: str, engine: AsyncEngine) -> None:
        self._url = url
        self._engine = engine
        self._store: ArchiveStore | None = None

    async def open(self, workspace_id: str, recorded: RecordedArchive) -> ArchiveReader | None:
        """Return access to an archive, or None if the store has no complete one.

        Raise CorruptedArchive if it is not the one that the database records.
        """
        store = await self._open_store()
        archive = await store.open_archive(workspace_id, recorded.archive_op_id)
        if archive is None:
            return None
        if (archive.fact.sha256, archive.fact.bytes) != (recorded.sha256, recorded.bytes):
            raise CorruptedArchive(f"the archive {archive.fact.key} is not the one that the database records")
        return archive

    async def read(self, archive: ArchiveReader, start: int, length: int) -> bytes:
        store = await self._open_store()
        return await store.read(archive, start, length)

    async def _open_store(self) -> ArchiveStore:
        if self._store is None:
            installation_id = await installation.find_id(self._engine)
            if installation_id is None:
                raise Unobservable("this installation has not been started yet")
            self._store = ArchiveStore(self._url, installation_id)
        return self._store
