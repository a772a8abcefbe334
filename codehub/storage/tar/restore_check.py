"""Every header of a tar stream is checked before a byte of it goes on."""

from dataclasses import dataclass, field

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tar.bounded_map import BoundedMap, digest
from codehub.storage.tar.foreign_owners import ForeignEntries
from codehub.storage.tar.header import (
    BLOCK,
    DIRECTORY,
    HARD_LINK,
    PASSED_OVER,
    SPECIAL,
    Entry,
    PlainFiles,
    UnsupportedTar,
)
from codehub.storage.tar.stream import FIRST, TarStream

# Making a file takes about as long as writing so many bytes into it.
_ENTRY_BYTES = 32 << 10
# Longer names are remembered as digests.
_BRIEF = 32
_NAMES_HELD = 100_000
_NO_NAMES = frozenset({b"", b".", b".."})


@dataclass
class _Directory:
    """One that leads to the present one. Its first names are in memory; the others, if it has, are not."""

    path: bytes
    reader: int
    names: set[bytes] = field(default_factory=set)
    has_others: bool = False


class RestoreCheck(TarStream):
    """A stream that comes back from a store, and may be anybody's work: anything doubtful raises.

    tar completes a directory before it goes on beside it. So names are remembered only for the directories
    that lead to the present one, and of the others no more than that they were there.

    Several readers may share the stream. Each gets every directory, so that each can unpack what it gets, and
    sets a directory's time after the last change it made there. The files of a directory go to one; a hard
    link goes where its target went.

    A directory that hands down access rights would give them to what another reader still makes there, once
    one has completed it. From the first of them on, all goes to the first reader alone, who must wait until
    the others have ended: `readers` says how many there still are.

    tar gives a file its mode before its attributes. Where that keeps an ordinary user from setting them, tar
    does not get to see them, and they are for whoever asked to set: what is `locked`.

    With an `owner`, entries of other users are counted: what is `foreign`.
    """

    def __init__(
        self, max_entries: int, readers: int = 1, *, unlocks: bool = False, owner: int | None = None
    ) -> None:
        super().__init__()
        self._owner = owner
        self.foreign = ForeignEntries()
        self._unlocks = unlocks
        self.locked: list[Entry] = []
        self._passed_over: list[int] = []
        self._max_entries = max_entries
        self._plain_files = PlainFiles(owner)
        self._open: list[_Directory] = []
        """The directories that lead to the present one, which is the last."""
        self._names_held = 0
        self._other_names = BoundedMap(in_memory=0)
        self._readers = BoundedMap()
        """Of every directory so far: who gets its files."""
        self._loads = [0] * readers
        self.end_goes = (1 << readers) - 1

    @property
    def readers(self) -> int:
        return len(self._loads)

    def _skim(self, data: bytes, position: int) -> int:
        """Files, one behind the other, in the present directory; whatever is special about one ends it."""
        here = self._open[-1] if self._open else None
        if here is None or here.has_others:
            return position
        read, names, directory = self._plain_files.read, here.names, here.path
        held = len(names)
        most = held + min(self._max_entries - self.entries, _NAMES_HELD - self._names_held)
        last = len(data) - PlainFiles.longest_header
        content = 0
        while position <= last and len(names) < most:
            file = read(data, position)
            if file is None:
                break
            path, size, header_length = file
            parent, _, name = path.rpartition(b"/")
            if parent != directory or name in _NO_NAMES:
                break
            name = name if len(name) <= _BRIEF else _brief(name)
            if name in names:
                break
            names.add(name)
            content += size
            position += header_length + (size + BLOCK - 1 & -BLOCK)
        files = len(names) - held
        self.entries += files
        self._names_held += files
        self._loads[here.reader] += content + files * _ENTRY_BYTES
        self._content_goes = 1 << here.reader
        return position

    def _admit(self, entry: Entry, position: int) -> int:
        self.entries += 1
        if self.entries > self._max_entries:
            raise CorruptedArchive("the archive has more entries than it declares")
        if entry.kind in SPECIAL:
            raise UnsupportedTar(f"{entry.path!r} is a pipe or a device")
        if self._owner is not None and {entry.uid, entry.gid} != {self._owner}:
            self.foreign.add(entry.path)
        if entry.locked and self._unlocks:
            self.locked.append(entry)
            self._passed_over += [position + attribute.at for attribute in entry.locked]
        if entry.hands_down and self.readers > 1:
            self._go_on_alone()
        if entry.kind == DIRECTORY:
            self._open_directory(entry.path[:-1])
            return self.end_goes
        self._place(entry.path)
        reader = self._open[-1].reader if entry.kind != HARD_LINK else self._reader_of_target(entry)
        self._loads[reader] += entry.size + _ENTRY_BYTES
        return 1 << reader

    def _amended(self, data: bytes) -> bytes:
        if not self._passed_over:
            return data
        amended = bytearray(data)
        for at in self._passed_over:
            amended[at : at + len(PASSED_OVER)] = PASSED_OVER
        self._passed_over.clear()
        return bytes(amended)

    def _place(self, path: bytes) -> None:
        """Each path comes once, and in a directory that the archive itself has made and not yet left."""
        parent, _, name = path.rpartition(b"/")
        here = (
            self._open[-1] if self._open and self._open[-1].path == parent else self._return_to(parent, path)
        )
        name = name if len(name) <= _BRIEF else _brief(name)
        if name in here.names or (here.has_others and self._other_names.get(digest(path)) is not None):
            raise UnsupportedTar(f"the path {path!r} comes twice")
        self._remember(here, name, path)

    def _remember(self, here: _Directory, name: bytes, path: bytes) -> None:
        if self._names_held < _NAMES_HELD:
            here.names.add(name)
            self._names_held += 1
        else:
            here.has_others = True
            self._other_names.add(digest(path), 0)

    def _return_to(self, parent: bytes, path: bytes) -> _Directory:
        while self._open and self._open[-1].path != parent:
            self._names_held -= len(self._open.pop().names)
        if not self._open:
            raise UnsupportedTar(f"the path {path!r} does not lie in a directory that leads there")
        return self._open[-1]

    def _open_directory(self, path: bytes) -> None:
        if self._open:
            self._place(path)
        elif path != b".":
            raise UnsupportedTar("the archive does not begin with the home itself")
        reader = self._loads.index(min(self._loads))
        self._open.append(_Directory(path, reader))
        self._readers.add(digest(path), reader)

    def _reader_of_target(self, link: Entry) -> int:
        """That the target itself is there is for tar to find; that no link leads to it is told by this."""
        directory, _, _ = link.target.rpartition(b"/")
        reader = self._readers.get(digest(directory))
        if reader is None:
            raise UnsupportedTar(f"the hard link {link.path!r} leads to {link.target!r}, which is not there")
        return reader if self.readers > 1 else 0

    def _go_on_alone(self) -> None:
        self._loads = [0]
        for directory in self._open:
            directory.reader = 0
        self.end_goes = FIRST


def _brief(name: bytes) -> bytes:
    return b"/" + digest(name)  # which no name is
