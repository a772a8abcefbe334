"""Messages of the engine's output: frames that begin with a time, with which each is recognised."""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from functools import lru_cache
from time import strptime
from typing import Final

_HEADER_BYTES: Final = 8
_LONGEST_TIME: Final = 64
_SECOND: Final = 10**9


class EngineError(OSError):
    """An error that the engine reports in the stream, which it then ends. Such a message has no time."""


@dataclass(frozen=True)
class Position:
    """A message, by its time in nanoseconds, and how many with this time there were up to it.

    The pieces of a long line share one time.
    """

    time: int = 0
    count: int = 0

    @property
    def since(self) -> str:
        return f"{self.time // _SECOND}.{self.time % _SECOND:09d}"


class LogFrames:
    """Decoder of frames that arrive in pieces of any size. It leaves out those that were read before."""

    def __init__(self, read_before: Position) -> None:
        self.position = read_before
        self._to_skip = read_before
        self._seen_again = 0
        self._has_gap = False
        self._buffer = b""
        self._rest = 0
        """Bytes of the present message that are still to come."""
        self._is_skipped = False

    def take_gap(self) -> bool:
        """Return once whether messages behind the position are missing."""
        has_gap, self._has_gap = self._has_gap, False
        return has_gap

    def decode(self, data: bytes) -> bytes:
        """Return the contents of messages, without their times."""
        left = memoryview(self._buffer + data)
        self._buffer = b""
        contents: list[memoryview] = []
        while left:
            if self._rest:
                piece, left = left[: self._rest], left[self._rest :]
                self._rest -= len(piece)
                if not self._is_skipped:
                    contents.append(piece)
                continue
            start = _start_of_content(left)
            if start == 0:
                self._buffer = bytes(left)
                break
            size = int.from_bytes(left[4:_HEADER_BYTES], "big")
            self._begin(_parse_time(bytes(left[_HEADER_BYTES : start - 1])))
            self._rest, left = size - (start - _HEADER_BYTES), left[start:]
        return b"".join(contents)

    def _begin(self, time: int) -> None:
        """Begin a message: skip it if it was read before, and notice that one before it is missing."""
        if self._to_skip.time:
            if time < self._to_skip.time:
                self._is_skipped = True
                return
            if time == self._to_skip.time:
                self._seen_again += 1
                self._is_skipped = self._seen_again <= self._to_skip.count
                if self._is_skipped:
                    return
            elif not self._seen_again:
                self._has_gap = True
            self._to_skip = Position()
        self._is_skipped = False
        count = self.position.count + 1 if time == self.position.time else 1
        self.position = Position(time, count)


def _start_of_content(frame: memoryview) -> int:
    """Return where the content of a message begins, behind header, time and space; 0 if not known yet."""
    head = bytes(frame[: _HEADER_BYTES + _LONGEST_TIME])
    end = head.find(b" ", _HEADER_BYTES)
    if end < 0 and len(head) == _HEADER_BYTES + _LONGEST_TIME:
        raise _error(head[_HEADER_BYTES:])
    return end + 1


def _parse_time(text: bytes) -> int:
    """Return nanoseconds since the epoch of a time such as 2026-01-01T00:00:00.123456789Z."""
    whole, _, fraction = text.decode("ascii", "replace").removesuffix("Z").partition(".")
    try:
        return _seconds(whole) * _SECOND + int(fraction.ljust(9, "0"))
    except ValueError as error:
        raise _error(text) from error


def _error(message: bytes) -> EngineError:
    return EngineError(f"the Docker engine ended it: {message.decode('ascii', 'replace').strip()}")


@lru_cache(maxsize=16)
def _seconds(text: str) -> int:
    return calendar.timegm(strptime(text, "%Y-%m-%dT%H:%M:%S"))
