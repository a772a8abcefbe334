"""Check of a tar stream before a restore: tar only reads headers that were checked (ADR 0031)."""

from dataclasses import dataclass, field

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tar.fast_header_parser import FastHeaderParser
from codehub.storage.tar.foreign_owners import ForeignEntries
from codehub.storage.tar.header import (
    BLOCK,
    DIRECTORY,
    HARD_LINK,
    HIDDEN_KEY,
    SPECIAL,
    Entry,
    UnsupportedTar,
)
from codehub.storage.tar.incremental_parser import FIRST_READER, IncrementalTarParser
from codehub.storage.tar.spilling_map import SpillingMap, digest

# Making a file takes about as long as writing this many bytes.
_ENTRY_BYTES = 32 << 10
# Longer names are kept as digests.
_LONGEST_NAME = 32
_NAMES_HELD = 100_000
_INVALID_NAMES = frozenset({b"", b".", b".."})


@dataclass
class _Directory:
    """Open directory. Its first names are in memory; further ones are in a file."""

    path: bytes
    reader: int
    names: set[bytes] = field(default_factory=set)
    has_more: bool = False


class RestoreCheck(IncrementalTarParser):
    """Strict reader of a stream from the archive store, which anybody may have changed.

    tar completes a directory before it continues with the next one. So names are kept only for the
    open directories, and for all other directories just a digest of their paths.

    Several readers (tar processes) may share the stream. Each gets every directory, so that it can
    unpack its files there, and sets a directory's time after its own last change. All files of a
    directory go to one reader; a hard link goes to the reader of its target.

    A directory with a default ACL or setgid bit, once one reader has completed it, would pass
    access rights on to files that another reader still makes there. From the first such directory
    on, everything goes to the first reader, which must wait until the others have ended. `readers`
    is the number that remains.

    tar sets a file's mode before its attributes. If that keeps an ordinary user from setting them,
    they are hidden from tar and collected in `deferred`, for the caller to set.

    With an `owner`, entries of other users are counted in `foreign`.
    """

    def __init__(
        self, max_entries: int, readers: int = 1, *, defers_attributes: bool = False, owner: int | None = None
    ) -> None:
        super().__init__()
        self._owner = owner
        self.foreign = ForeignEntries()
        self._defers_attributes = defers_attributes
        self.deferred: list[Entry] = []
        self._hidden_keys: list[int] = []
        self._max_entries = max_entries
        self._fast_parser = FastHeaderParser(owner)
        self._open: list[_Directory] = []
        """The open directories; the last one is the current one."""
        self._names_held = 0
        self._more_names = SpillingMap(in_memory=0)
        self._readers = SpillingMap()
        """The reader of each directory's files."""
        self._loads = [0] * readers
        self.end_readers = (1 << readers) - 1

    @property
    def readers(self) -> int:
        return len(self._loads)

    def _skip_plain_files(self, data: bytes, position: int) -> int:
        """Skip a run of plain files in the current directory."""
        here = self._open[-1] if self._open else None
        if here is None or here.has_more:
            return position
        read, names, directory = self._fast_parser.read, here.names, here.path
        held = len(names)
        most = held + min(self._max_entries - self.entries, _NAMES_HELD - self._names_held)
        last = len(data) - FastHeaderParser.longest_header
        content = 0
        while position <= last and len(names) < most:
            file = read(data, position)
            if file is None:
                break
            path, size, header_length = file
            parent, _, name = path.rpartition(b"/")
            if parent != directory or name in _INVALID_NAMES:
                break
            name = name if len(name) <= _LONGEST_NAME else _shortened(name)
            if name in names:
                break
            names.add(name)
            content += size
            position += header_length + (size + BLOCK - 1 & -BLOCK)
        files = len(names) - held
        self.entries += files
        self._names_held += files
        self._loads[here.reader] += content + files * _ENTRY_BYTES
        self._content_readers = 1 << here.reader
        return position

    def _accept_entry(self, entry: Entry, position: int) -> int:
        self.entries += 1
        if self.entries > self._max_entries:
            raise CorruptedArchive("the archive has more entries than it declares")
        if entry.kind in SPECIAL:
            raise UnsupportedTar(f"{entry.path!r} is a pipe or a device")
        if self._owner is not None and {entry.uid, entry.gid} != {self._owner}:
            self.foreign.add(entry.path)
        if entry.deferred and self._defers_attributes:
            self.deferred.append(entry)
            self._hidden_keys += [position + attribute.at for attribute in entry.deferred]
        if entry.passes_on_rights and self.readers > 1:
            self._merge_readers()
        if entry.kind == DIRECTORY:
            self._open_directory(entry.path[:-1])
            return self.end_readers
        self._register(entry.path)
        reader = self._open[-1].reader if entry.kind != HARD_LINK else self._reader_of_target(entry)
        self._loads[reader] += entry.size + _ENTRY_BYTES
        return 1 << reader

    def _rewritten_bytes(self, data: bytes) -> bytes:
        if not self._hidden_keys:
            return data
        edited = bytearray(data)
        for at in self._hidden_keys:
            edited[at : at + len(HIDDEN_KEY)] = HIDDEN_KEY
        self._hidden_keys.clear()
        return bytes(edited)

    def _register(self, path: bytes) -> None:
        """Record a path; reject a duplicate, or one outside the directories that are open."""
        parent, _, name = path.rpartition(b"/")
        here = (
            self._open[-1]
            if self._open and self._open[-1].path == parent
            else self._pop_directories_to(parent, path)
        )
        name = name if len(name) <= _LONGEST_NAME else _shortened(name)
        if name in here.names or (here.has_more and self._more_names.get(digest(path)) is not None):
            raise UnsupportedTar(f"the path {path!r} comes twice")
        self._remember(here, name, path)

    def _remember(self, here: _Directory, name: bytes, path: bytes) -> None:
        if self._names_held < _NAMES_HELD:
            here.names.add(name)
            self._names_held += 1
        else:
            here.has_more = True
            self._more_names.add(digest(path), 0)

    def _pop_directories_to(self, parent: bytes, path: bytes) -> _Directory:
        while self._open and self._open[-1].path != parent:
            self._names_held -= len(self._open.pop().names)
        if not self._open:
            raise UnsupportedTar(f"the path {path!r} is not in a directory that is open")
        return self._open[-1]

    def _open_directory(self, path: bytes) -> None:
        if self._open:
            self._register(path)
        elif path != b".":
            raise UnsupportedTar("the archive does not begin with the home itself")
        reader = self._loads.index(min(self._loads))
        self._open.append(_Directory(path, reader))
        self._readers.add(digest(path), reader)

    def _reader_of_target(self, link: Entry) -> int:
        """Return the reader of a hard link's target, whose directory must be in the archive.

        So no symbolic link is on the path to the target. tar finds out whether the target exists.
        """
        directory, _, _ = link.target.rpartition(b"/")
        reader = self._readers.get(digest(directory))
        if reader is None:
            raise UnsupportedTar(
                f"the hard link {link.path!r} leads to {link.target!r}, which is not in the archive"
            )
        return reader if self.readers > 1 else 0

    def _merge_readers(self) -> None:
        self._loads = [0]
        for directory in self._open:
            directory.reader = 0
        self.end_readers = FIRST_READER


def _shortened(name: bytes) -> bytes:
    return b"/" + digest(name)  # no name contains a slash
