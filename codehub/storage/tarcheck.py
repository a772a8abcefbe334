"""Every header of a tar stream is checked before a byte of it goes on."""

from hashlib import blake2b

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tarheader import BLOCK, DIRECTORY, HARD_LINK, SPECIAL, Entry, NotOurs, read_entry

_ZEROS = bytes(BLOCK)
_RECORD = 20 * BLOCK


class TarCheck:
    """A filter for a tar stream: bytes go in, approved bytes come out, anything doubtful raises.

    When an archive is restored, pipes and devices are refused. When one is `making`, they (and hard links to
    them) are dropped from the stream and their names remembered, and `ending` replaces what tar pads with.
    """

    def __init__(self, *, making: bool, max_entries: int | None = None, max_bytes: int | None = None) -> None:
        self._making = making
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._carry = b""
        self._content_left = 0
        self._zero_blocks = 0
        self._directories: set[bytes] = set()
        self._others: set[bytes] = set()
        self._left_out: set[bytes] = set()
        self._last_parent = b""
        self.left_out: list[bytes] = []
        self.holes: list[bytes] = []
        self.entries = 0
        self.bytes = 0

    def feed(self, chunk: bytes) -> list[memoryview]:
        """Check the next bytes of the stream; what may go on now."""
        data = self._carry + chunk if self._carry else chunk
        view = memoryview(data)
        approved: list[memoryview] = []
        position = kept = 0
        while position < len(data):
            step = self._step(data, position)
            if step is None:
                break
            length, keep = step
            if not keep:
                approved.append(view[kept:position])
                kept = position + length
            position += length
        approved.append(view[kept:position])
        self._carry = data[position:]
        self._count(approved)
        return approved

    def finish(self) -> None:
        """The stream is over: it must have said so itself."""
        if self._zero_blocks < 2 or self._carry or self._content_left:
            raise CorruptedArchive("the tar stream is cut off")

    def ending(self) -> bytes:
        """The end of an archive that is being made, after `finish`.

        A plain `tar` reads records of 20 blocks and leaves early: more than one would break `zstd`'s pipe.
        """
        end = bytes(2 * BLOCK + -(self.bytes + 2 * BLOCK) % _RECORD)
        self.bytes += len(end)
        return end

    def _count(self, approved: list[memoryview]) -> None:
        self.bytes += sum(len(piece) for piece in approved)
        if self._max_bytes is not None and self.bytes > self._max_bytes:
            raise CorruptedArchive("the archive unpacks to more bytes than it declares")

    def _step(self, data: bytes, position: int) -> tuple[int, bool] | None:
        """(bytes of the next piece, whether it goes on), or None when it is not complete yet."""
        if self._content_left:
            length = min(self._content_left, len(data) - position)
            self._content_left -= length
            return length, True
        if len(data) - position < BLOCK:
            return None
        if self._zero_blocks or data.startswith(_ZEROS, position):
            return self._end(data, position), not self._making
        # What our own tar says needs no checksum; all else is checked, so that it can come back.
        entry = read_entry(data, position, checksums=not self._making)
        if entry is None:
            return None
        keep = self._admit(entry)
        self._content_left = entry.padded
        return entry.header_length, keep

    def _end(self, data: bytes, position: int) -> int:
        """After the first empty block nothing but emptiness may follow."""
        rest = data[position:]
        blocks = len(rest) // BLOCK
        if rest.count(0) != len(rest):
            raise NotOurs("there is data after the end of the archive")
        self._zero_blocks += blocks
        return blocks * BLOCK

    def _admit(self, entry: Entry) -> bool:
        """Remember an entry, or refuse it. False: it is left out."""
        name = _digest(entry.path.removesuffix(b"/"))
        self._check_place(entry, name)
        if entry.kind in SPECIAL or (entry.kind == HARD_LINK and _digest(entry.target) in self._left_out):
            self._leave_out(entry, name)
            return False
        if entry.kind == HARD_LINK and _digest(entry.target) not in self._others:
            raise NotOurs(f"the hard link {entry.path!r} leads to {entry.target!r}, which is not there")
        (self._directories if entry.kind == DIRECTORY else self._others).add(name)
        if entry.is_hole:
            self.holes.append(entry.path)
        self.entries += 1
        if self._max_entries is not None and self.entries > self._max_entries:
            raise CorruptedArchive("the archive has more entries than it declares")
        return True

    def _check_place(self, entry: Entry, name: bytes) -> None:
        """Each path comes once, and in a directory that the archive itself has made."""
        if not self._directories:
            if entry.path != b"./":
                raise NotOurs("the archive does not begin with the home itself")
            return
        if name in self._directories or name in self._others or name in self._left_out:
            raise NotOurs(f"the path {entry.path!r} comes twice")
        parent = entry.path.removesuffix(b"/").rpartition(b"/")[0]
        if parent != self._last_parent and _digest(parent) not in self._directories:
            raise NotOurs(f"the path {entry.path!r} does not lie in a directory of the archive")
        self._last_parent = parent

    def _leave_out(self, entry: Entry, name: bytes) -> None:
        if not self._making:
            raise NotOurs(f"{entry.path!r} is a pipe or a device")
        self._left_out.add(name)
        self.left_out.append(entry.path)


def _digest(path: bytes) -> bytes:
    """Names are remembered as digests: 16 bytes each, however long a path an archive makes up."""
    return blake2b(path, digest_size=16).digest()
