"""Every header of a tar stream is checked before a byte of it goes on."""

from hashlib import blake2b

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tarheader import DIRECTORY, HARD_LINK, SPECIAL, Entry, NotOurs
from codehub.storage.tarstream import FIRST, Piece, TarStream

# Making a file takes about as long as writing so many bytes into it.
_ENTRY_BYTES = 32 << 10


class TarCheck(TarStream):
    """A stream that comes back from a store, and may be anybody's work: anything doubtful raises.

    Several readers may share it. Each gets every directory, so that each can unpack what it gets, and sets a
    directory's time after the last change it made there. The files of a directory go to one, as a rule; a
    hard link goes where its target went.

    A directory that hands down access rights would give them to what another reader still makes there, once
    one has completed it. From the first of them on, all goes to the first reader alone, who must wait until
    the others have ended: `readers` says how many there still are.
    """

    def __init__(self, max_entries: int, max_bytes: int, readers: int = 1) -> None:
        super().__init__()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._directories: set[bytes] = set()
        self._others: dict[bytes, int] = {}
        """Each with its reader."""
        self._loads = [0] * readers
        self._reader = 0
        self._last_parent = b""
        self.end_goes = (1 << readers) - 1

    @property
    def readers(self) -> int:
        return len(self._loads)

    def feed(self, chunk: bytes) -> list[Piece]:
        approved = super().feed(chunk)
        if self.bytes > self._max_bytes:
            raise CorruptedArchive("the archive unpacks to more bytes than it declares")
        return approved

    def _admit(self, entry: Entry) -> int:
        name = _digest(entry.path.removesuffix(b"/"))
        self._check_place(entry, name)
        if entry.kind in SPECIAL:
            raise NotOurs(f"{entry.path!r} is a pipe or a device")
        self.entries += 1
        if self.entries > self._max_entries:
            raise CorruptedArchive("the archive has more entries than it declares")
        if entry.hands_down and self.readers > 1:
            self._go_on_alone()
        if entry.kind == DIRECTORY:
            self._directories.add(name)
            return self.end_goes
        reader = self._reader if entry.kind != HARD_LINK else self._reader_of_target(entry)
        self._others[name] = reader
        self._loads[reader] += entry.size + _ENTRY_BYTES
        return 1 << reader

    def _reader_of_target(self, link: Entry) -> int:
        reader = self._others.get(_digest(link.target))
        if reader is None:
            raise NotOurs(f"the hard link {link.path!r} leads to {link.target!r}, which is not there")
        return reader if reader < self.readers else 0

    def _go_on_alone(self) -> None:
        self._loads = [0]
        self._reader = 0
        self.end_goes = FIRST

    def _check_place(self, entry: Entry, name: bytes) -> None:
        """Each path comes once, and in a directory that the archive itself has made."""
        if not self._directories:
            if entry.path != b"./":
                raise NotOurs("the archive does not begin with the home itself")
            return
        if name in self._directories or name in self._others:
            raise NotOurs(f"the path {entry.path!r} comes twice")
        parent = entry.path.removesuffix(b"/").rpartition(b"/")[0]
        if parent == self._last_parent:
            return
        if _digest(parent) not in self._directories:
            raise NotOurs(f"the path {entry.path!r} does not lie in a directory of the archive")
        self._last_parent = parent
        self._reader = self._loads.index(min(self._loads))


def _digest(path: bytes) -> bytes:
    """Names are remembered as digests: 16 bytes each, however long a path an archive makes up."""
    return blake2b(path, digest_size=16).digest()
