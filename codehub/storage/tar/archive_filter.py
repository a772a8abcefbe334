"""Filter for the tar stream of a home: it drops pipes and devices, and rejects the unrestorable."""

from struct import Struct

from codehub.storage.tar.header import (
    BLOCK,
    DIRECTORY,
    HARD_LINK,
    PIPE,
    REGULAR,
    SPECIAL,
    SYMLINK,
    Entry,
    UnsupportedTar,
)
from codehub.storage.tar.incremental_parser import FIRST_READER, NO_READER, IncrementalTarParser
from codehub.storage.tar.left_out import LeftOut, SpecialFile
from codehub.storage.tar.spilling_map import SpillingMap, digest

_RECORD = 20 * BLOCK
# tar prefixes a path to set its attributes; that has to fit as well.
_MAX_PATH = 4000

# Fields of a header: size, type, magic and version, and the prefix of a split path.
_PLAIN = Struct("124x11s21xc100x8s80x8s159x")
# The same fields after a pax header, whose size, type, magic and first bytes of text come first.
_TIMED = Struct("124x11s21xc100x8s247x9s503x" + _PLAIN.format)
_PLAIN_FORMS = frozenset((kind, b"ustar\x0000", bytes(8)) for kind in (REGULAR, SYMLINK, DIRECTORY))
_TIMED_FORMS = frozenset(
    (b"%011o" % length, b"x", b"ustar\x0000", b"%d mtime=" % length, *plain)
    for length in range(10, 100)
    for plain in _PLAIN_FORMS
)


class ArchiveFilter(IncrementalTarParser):
    """Filter that drops pipes and devices, and hard links to them; `ending` replaces tar's padding.

    Nearly all headers contain only a short path, numbers and a time, and their form shows that a
    restore will accept them. All others are parsed as a restore does, except for their checksums.
    tar itself writes each path once, after its directory, and reports a directory that changes.
    """

    checksums = False
    end_readers = NO_READER

    def __init__(self) -> None:
        super().__init__()
        self._left_out = SpillingMap()
        self.left_out = LeftOut()
        self.holes: list[bytes] = []
        """Paths of files that are one large hole, until the caller has checked them."""

    def ending(self) -> bytes:
        """Return the end of the archive, after `finish`.

        A plain `tar` reads records of 20 blocks, and exits at the end marker. More than one record
        of padding would break the pipe from `zstd`.
        """
        end = bytes(2 * BLOCK + -(self.bytes + 2 * BLOCK) % _RECORD)
        self.bytes += len(end)
        return end

    def _skip_plain_files(self, data: bytes, position: int) -> int:
        """Skip ordinary headers, and read only the fields that identify them.

        Parsing each header in Python took longer than tar itself.
        """
        entries = 0
        last = len(data) - _TIMED.size
        timed, timed_forms = _TIMED.unpack_from, _TIMED_FORMS
        while position <= last:
            pax_size, pax_kind, pax_magic, text, size, kind, magic, prefix = timed(data, position)
            if (pax_size, pax_kind, pax_magic, text, kind, magic, prefix) in timed_forms:
                position += _TIMED.size
            else:
                size, kind, magic, prefix = _PLAIN.unpack_from(data, position)
                if (kind, magic, prefix) not in _PLAIN_FORMS:
                    break
                position += BLOCK
            position += int(size, 8) + BLOCK - 1 & -BLOCK
            entries += 1
        self.entries += entries
        self._content_readers = FIRST_READER
        return position

    def _accept_entry(self, entry: Entry, _position: int) -> int:
        if len(entry.path) > _MAX_PATH:
            raise UnsupportedTar(
                f"a path of {len(entry.path)} bytes is too long to be restored: {entry.path[:80]!r}..."
            )
        special = self._special(entry)
        if special is not None:
            self._left_out.add(digest(entry.path), special)
            self.left_out.add(special, [entry.path])
            return NO_READER
        if entry.is_hole:
            self.holes.append(entry.path)
        self.entries += 1
        return FIRST_READER

    def _special(self, entry: Entry) -> SpecialFile | None:
        """Return the special file that an entry is or links to, or None for any other entry."""
        if entry.kind in SPECIAL:
            return SpecialFile.PIPE if entry.kind == PIPE else SpecialFile.DEVICE
        if entry.kind != HARD_LINK or not self.left_out.count:
            return None
        linked = self._left_out.get(digest(entry.target))
        return None if linked is None else SpecialFile(linked)
