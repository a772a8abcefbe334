"""Every header of a tar stream is checked before a byte of it goes on."""

from hashlib import blake2b

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tarheader import DIRECTORY, HARD_LINK, SPECIAL, Entry, NotOurs
from codehub.storage.tarstream import TarStream


class TarCheck(TarStream):
    """A stream that comes back from a store, and may be anybody's work: anything doubtful raises."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        super().__init__()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._directories: set[bytes] = set()
        self._others: set[bytes] = set()
        self._last_parent = b""

    def feed(self, chunk: bytes) -> list[memoryview]:
        approved = super().feed(chunk)
        if self.bytes > self._max_bytes:
            raise CorruptedArchive("the archive unpacks to more bytes than it declares")
        return approved

    def _admit(self, entry: Entry) -> bool:
        name = _digest(entry.path.removesuffix(b"/"))
        self._check_place(entry, name)
        if entry.kind in SPECIAL:
            raise NotOurs(f"{entry.path!r} is a pipe or a device")
        if entry.kind == HARD_LINK and _digest(entry.target) not in self._others:
            raise NotOurs(f"the hard link {entry.path!r} leads to {entry.target!r}, which is not there")
        (self._directories if entry.kind == DIRECTORY else self._others).add(name)
        self.entries += 1
        if self.entries > self._max_entries:
            raise CorruptedArchive("the archive has more entries than it declares")
        return True

    def _check_place(self, entry: Entry, name: bytes) -> None:
        """Each path comes once, and in a directory that the archive itself has made."""
        if not self._directories:
            if entry.path != b"./":
                raise NotOurs("the archive does not begin with the home itself")
            return
        if name in self._directories or name in self._others:
            raise NotOurs(f"the path {entry.path!r} comes twice")
        parent = entry.path.removesuffix(b"/").rpartition(b"/")[0]
        if parent != self._last_parent and _digest(parent) not in self._directories:
            raise NotOurs(f"the path {entry.path!r} does not lie in a directory of the archive")
        self._last_parent = parent


def _digest(path: bytes) -> bytes:
    """Names are remembered as digests: 16 bytes each, however long a path an archive makes up."""
    return blake2b(path, digest_size=16).digest()
