"""What our own tar says of a home: counted, relieved of pipes and devices, and held to our own dialect."""

from struct import Struct

from codehub.storage.tar.bounded_map import BoundedMap, digest
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
from codehub.storage.tar.left_out import LeftOut, SpecialFile
from codehub.storage.tar.stream import FIRST, NOWHERE, TarStream

_RECORD = 20 * BLOCK
# What tar puts before a path, to set its attributes, has to fit as well.
_MAX_PATH = 4000

# Of a header: size, type, magic and version, and whether its path is split.
_PLAIN = Struct("124x11s21xc100x8s80x8s159x")
# The same behind a pax header, whose size, type and magic come first, then the beginning of its text.
_TIMED = Struct("124x11s21xc100x8s247x9s503x" + _PLAIN.format)
_PLAIN_FORMS = frozenset((kind, b"ustar\x0000", bytes(8)) for kind in (REGULAR, SYMLINK, DIRECTORY))
_TIMED_FORMS = frozenset(
    (b"%011o" % length, b"x", b"ustar\x0000", b"%d mtime=" % length, *plain)
    for length in range(10, 100)
    for plain in _PLAIN_FORMS
)


class ArchiveFilter(TarStream):
    """Pipes and devices, and hard links to them, are dropped and remembered; `ending` replaces tar's padding.

    Nearly all headers hold nothing but a short path, numbers and a time: their form tells that a restore will
    accept them. All others are read as a restore reads them, but for their checksums. That each path comes
    once, behind its directory, is how tar walks; a directory that changes meanwhile makes tar complain.
    """

    checksums = False
    end_goes = NOWHERE

    def __init__(self) -> None:
        super().__init__()
        self._left_out = BoundedMap()
        self.left_out = LeftOut()
        self.holes: list[bytes] = []
        """Paths, for whoever checks and forgets them."""

    def ending(self) -> bytes:
        """The end of an archive, after `finish`.

        A plain `tar` reads records of 20 blocks and leaves early: more than one would break `zstd`'s pipe.
        """
        end = bytes(2 * BLOCK + -(self.bytes + 2 * BLOCK) % _RECORD)
        self.bytes += len(end)
        return end

    def _skim(self, data: bytes, position: int) -> int:
        """Hundreds of thousands of headers pass here: it reads no more of each than tells it from others."""
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
        self._content_goes = FIRST
        return position

    def _admit(self, entry: Entry, _position: int) -> int:
        if len(entry.path) > _MAX_PATH:
            raise UnsupportedTar(
                f"a path of {len(entry.path)} bytes is too long to be restored: {entry.path[:80]!r}..."
            )
        special = self._special(entry)
        if special is not None:
            self._left_out.add(digest(entry.path), special)
            self.left_out.add(special, [entry.path])
            return NOWHERE
        if entry.is_hole:
            self.holes.append(entry.path)
        self.entries += 1
        return FIRST

    def _special(self, entry: Entry) -> SpecialFile | None:
        """Return what an entry is, or is a hard link to, if no archive holds such things."""
        if entry.kind in SPECIAL:
            return SpecialFile.PIPE if entry.kind == PIPE else SpecialFile.DEVICE
        if entry.kind != HARD_LINK or not self.left_out.count:
            return None
        linked = self._left_out.get(digest(entry.target))
        return None if linked is None else SpecialFile(linked)
