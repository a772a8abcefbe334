"""Archive store with blocking calls.

BlockingArchiveStore are immutable. The `.meta`, which is written last, commits an archive.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from codehub.domain.archive_keys import (
    META_NAME,
    OBJECT_NAME,
    archive_key,
    is_archive_key,
    meta_key,
    parse_archive_key,
)
from codehub.domain.observation import ArchiveFact
from codehub.storage.archive.error_text import store_error_message
from codehub.storage.archive.object_store import ObjectStore
from codehub.storage.archive.open_object_store import directory_of, open_object_store
from codehub.storage.errors import (
    CorruptedArchive,
    InvalidKey,
    StorageProblem,
    StoreTrouble,
    Unobservable,
)
from codehub.storage.ids import checked_id
from codehub.storage.installation_marker import MARKER, check_claim, check_marker, is_content, marker_content

_META_TEXT = re.compile(r"sha256:([0-9a-f]{64})\nbytes=(\d{1,18}) unpacked=(\d{1,18}) entries=(\d{1,12})\n")
_MAX_META = 4096


@dataclass(frozen=True)
class ListedArchive:
    """Entry of a listing. An archive that is not complete is unfinished or half removed."""

    workspace_id: str
    archive_op_id: str
    key: str
    bytes: int
    last_modified: datetime
    complete: bool


@dataclass(frozen=True)
class ArchiveReader:
    """Random access to the bytes of one archive."""

    fact: ArchiveFact
    _objects: ObjectStore

    def read(self, start: int, length: int) -> memoryview:
        """Return these bytes; raise StorageProblem if the archive no longer has them."""
        return self._objects.read_range(self.fact.key, start, length)


def checked_archive_key(workspace_id: str, archive_op_id: str) -> str:
    """Return the archive_key of these ids; raise InvalidKey if one is unsafe in a path."""
    return archive_key(checked_id(workspace_id), checked_id(archive_op_id))


def parsed_archive_key(key: str) -> tuple[str, str]:
    """Return (workspace_id, archive_op_id); raise InvalidKey if this is not an archive_key."""
    try:
        return parse_archive_key(key)
    except ValueError as error:
        raise InvalidKey(str(error)) from error


def meta_text(fact: ArchiveFact) -> bytes:
    """Return the content of the `.meta` of an archive."""
    sizes = f"bytes={fact.bytes} unpacked={fact.unpacked} entries={fact.entries}"
    return f"sha256:{fact.sha256}\n{sizes}\n".encode()


def parse_meta(key: str, content: bytes) -> ArchiveFact:
    """Return what a `.meta` states; raise CorruptedArchive if it is malformed."""
    match = _META_TEXT.fullmatch(content[:_MAX_META].decode("ascii", "replace"))
    if match is None:
        raise CorruptedArchive(f"the .meta of archive {key} is malformed")
    workspace_id, archive_op_id = parsed_archive_key(key)
    sizes = [int(match[number]) for number in (2, 3, 4)]
    return ArchiveFact(workspace_id, archive_op_id, key, match[1], *sizes)


class BlockingArchiveStore:
    """Archive store of one installation. Each call first checks the store's installation marker."""

    def __init__(self, url: str, installation_id: str) -> None:
        self._url = url
        self._installation_id = installation_id

    def _open(self) -> ObjectStore:
        """Return the object store, or raise Unobservable if it is not this installation's."""
        objects = self._connect()
        check_marker(objects.read(MARKER), self._installation_id, self._url)
        return objects

    def _connect(self, *, create: bool = False) -> ObjectStore:
        try:
            return open_object_store(self._url, create=create)
        except StoreTrouble as error:
            raise Unobservable(error.message) from error
        except (ValueError, OSError) as error:
            message = f"the archive store {self._url} cannot be opened: {store_error_message(error)}"
            raise Unobservable(message) from error

    def check(self) -> None:
        """Raise Unobservable unless the store answers and is this installation's."""
        self._open()

    def can_list_unfinished(self) -> bool:
        """Return whether unfinished uploads can be found, and so removed."""
        return self._open().can_list_unfinished()

    def is_there(self) -> bool:
        """Return whether the directory of the store exists. A service always counts as existing."""
        root = directory_of(self._url)
        return root is None or root.is_dir()

    def initialise(self) -> None:
        """Mark an empty store as this installation's, and check the marker of any other store."""
        objects = self._connect(create=True)
        found = objects.read(MARKER)
        if found is None and not any(is_content(stored.path) for stored in objects.list()):
            objects.create(MARKER, marker_content(self._installation_id))
            found = objects.read(MARKER)
        check_claim(found, self._installation_id, self._url)

    def find(self, workspace_id: str, archive_op_id: str) -> ArchiveFact | None:
        """Return the archive if it is complete: both the object and its `.meta` exist."""
        reader = self.open_archive(workspace_id, archive_op_id)
        return None if reader is None else reader.fact

    def open_archive(self, workspace_id: str, archive_op_id: str) -> ArchiveReader | None:
        """Return access to the bytes of an archive if it is complete, as `find` does."""
        key = checked_archive_key(workspace_id, archive_op_id)
        objects = self._open()
        meta = objects.read(meta_key(key))
        size = objects.size(key)
        if meta is None or size is None:
            return None
        fact = parse_meta(key, meta)
        if fact.bytes != size:
            raise CorruptedArchive(f"the archive {key} has {size} bytes where its .meta says {fact.bytes}")
        return ArchiveReader(fact, objects)

    def list(self) -> list[ListedArchive]:
        """Return all archives, complete or not."""
        objects = self._open()
        found: dict[str, dict[str, tuple[int, datetime]]] = {}
        for stored in objects.list():
            folder, _, name = stored.path.rpartition("/")
            finished, _, _ = name.partition("#")
            if finished in (OBJECT_NAME, META_NAME) and is_archive_key(f"{folder}/{OBJECT_NAME}"):
                found.setdefault(folder, {})[name] = (stored.size, stored.last_modified)
        return [_stored_archive(folder, parts) for folder, parts in sorted(found.items())]

    def remove(self, key: str) -> None:
        """Remove an archive, `.meta` first: after a crash in between it counts as unfinished."""
        parsed_archive_key(key)
        objects = self._open()
        objects.remove(meta_key(key))
        objects.remove(key)
        objects.remove_unfinished(key)

    def upload(self, key: str, chunks: Iterable[bytes], size_limit: Callable[[], int]) -> bool:
        """Write the object of an archive that has no `.meta` yet.

        If `chunks` raises, no object remains.

        Return True if the store has confirmed the content by its own checksum. Otherwise the caller
        has to read the object back.
        """
        parsed_archive_key(key)
        objects = self._open()
        if objects.read(meta_key(key)) is not None:
            if objects.size(key) is not None:
                raise StorageProblem(f"the archive {key} is already complete and is never written again")
            # The object was lost. Until the new one is complete, there is no archive.
            objects.remove(meta_key(key))
        objects.remove_unfinished(key)
        try:
            return objects.upload(key, chunks, size_limit)
        except Exception:
            with suppress(StorageProblem):  # GC removes what stays; the caller needs the cause
                objects.remove_unfinished(key)
            raise

    def commit(self, fact: ArchiveFact) -> None:
        """Write the `.meta`. The caller has confirmed the object or read it back."""
        objects = self._open()
        objects.write(meta_key(fact.key), meta_text(fact))
        # A killed attempt's request may have started an upload after this attempt looked for one.
        objects.remove_unfinished(fact.key)

    def read(self, fact: ArchiveFact) -> Iterable[memoryview]:
        """Return the bytes of the object, in order."""
        return self._open().stream(fact.key, fact.bytes)

    def flush(self, key: str) -> None:
        """Return when the object is durable."""
        self._open().flush(key)

    def size(self, key: str) -> int | None:
        """Return the size of the object, or None if there is none."""
        return self._open().size(key)


def _stored_archive(folder: str, parts: dict[str, tuple[int, datetime]]) -> ListedArchive:
    workspace_id, _, archive_op_id = folder.partition("/")
    return ListedArchive(
        workspace_id,
        archive_op_id,
        f"{folder}/{OBJECT_NAME}",
        bytes=sum(size for size, _ in parts.values()),
        last_modified=max(modified for _, modified in parts.values()),
        complete=OBJECT_NAME in parts and META_NAME in parts,
    )
