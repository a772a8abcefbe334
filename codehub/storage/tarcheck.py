"""Every header of a tar stream is checked before a byte of it goes on."""

from hashlib import blake2b

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tarheader import DIRECTORY, HARD_LINK, SPECIAL, Entry, NotOurs
from codehub.storage.tarstream import FIRST, TarStream

# Making a file takes about as long as writing so many bytes into it.
_ENTRY_BYTES = 32 << 10
# Longer names are remembered as digests.
_BRIEF = 32


class TarCheck(TarStream):
    """A stream that comes back from a store, and may be anybody's work: anything doubtful raises.

    tar completes a directory before it goes on beside it. So names are remembered only for the directories
    that lead to the present one, and of the others no more than that they were there.

    Several readers may share the stream. Each gets every directory, so that each can unpack what it gets, and
    sets a directory's time after the last change it made there. The files of a directory go to one; a hard
    link goes where its target went.

    A directory that hands down access rights would give them to what another reader still makes there, once
    one has completed it. From the first of them on, all goes to the first reader alone, who must wait until
    the others have ended: `readers` says how many there still are.
    """

    def __init__(self, max_entries: int, readers: int = 1) -> None:
        super().__init__()
        self._max_entries = max_entries
        self._open: list[tuple[bytes, set[bytes]]] = []
        """The directories that lead to the present one, each with the names it holds so far."""
        self._parent = b""
        self._names: set[bytes] = set()
        self._readers: dict[bytes, int] = {}
        """Of every directory so far: who gets its files."""
        self._loads = [0] * readers
        self._reader = 0
        self.end_goes = (1 << readers) - 1

    @property
    def readers(self) -> int:
        return len(self._loads)

    def _admit(self, entry: Entry) -> int:
        self.entries += 1
        if self.entries > self._max_entries:
            raise CorruptedArchive("the archive has more entries than it declares")
        if entry.kind in SPECIAL:
            raise NotOurs(f"{entry.path!r} is a pipe or a device")
        if entry.hands_down and self.readers > 1:
            self._go_on_alone()
        if entry.kind == DIRECTORY:
            self._open_directory(entry.path[:-1])
            return self.end_goes
        self._place(entry.path)
        reader = self._reader if entry.kind != HARD_LINK else self._reader_of_target(entry)
        self._loads[reader] += entry.size + _ENTRY_BYTES
        return 1 << reader

    def _place(self, path: bytes) -> None:
        """Each path comes once, and in a directory that the archive itself has made and not yet left."""
        parent, _, name = path.rpartition(b"/")
        if parent != self._parent:
            self._return_to(parent, path)
        if len(name) > _BRIEF:
            name = _digest(name)
        if name in self._names:
            raise NotOurs(f"the path {path!r} comes twice")
        self._names.add(name)

    def _return_to(self, parent: bytes, path: bytes) -> None:
        while self._open and self._open[-1][0] != parent:
            self._open.pop()
        if not self._open:
            raise NotOurs(f"the path {path!r} does not lie in a directory that leads there")
        self._parent, self._names = self._open[-1]
        self._reader = self._readers[_digest(parent)]

    def _open_directory(self, path: bytes) -> None:
        if self._readers:
            self._place(path)
        elif path != b".":
            raise NotOurs("the archive does not begin with the home itself")
        self._parent, self._names = path, set()
        self._open.append((path, self._names))
        self._reader = self._readers[_digest(path)] = self._loads.index(min(self._loads))

    def _reader_of_target(self, link: Entry) -> int:
        """That the target itself is there is for tar to find; that no link leads to it is told by this."""
        directory, _, _ = link.target.rpartition(b"/")
        reader = self._readers.get(_digest(directory))
        if reader is None:
            raise NotOurs(f"the hard link {link.path!r} leads to {link.target!r}, which is not there")
        return reader

    def _go_on_alone(self) -> None:
        self._loads = [0]
        self._reader = 0
        self._readers = dict.fromkeys(self._readers, 0)
        self.end_goes = FIRST


def _digest(path: bytes) -> bytes:
    """16 bytes, however long a name an archive makes up."""
    return blake2b(path, digest_size=16).digest()
