"""Texts of bounded size: windows of files, lists, and exact replacement."""

from dataclasses import dataclass, field
from typing import Final

MOST_BYTES: Final = 30_000
"""Of the lines in one result. A file's last line may go beyond."""
MOST_LINE_BYTES: Final = 2_000


@dataclass
class LineWindow:
    """Some lines of a file that comes in pieces. Long lines are cut."""

    first: int
    most_lines: int
    lines: list[bytes] = field(default_factory=list)
    consumed: int = 0
    """Bytes of the file up to the end of the window."""
    _number: int = 1
    _size: int = 0
    _line: bytearray = field(default_factory=bytearray)
    _line_size: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self.most_lines or self._size >= MOST_BYTES

    @property
    def next_line(self) -> int:
        return self.first + len(self.lines)

    @property
    def lines_seen(self) -> int:
        return self._number - 1

    def add(self, piece: bytes) -> None:
        start = 0
        while start < len(piece) and not self.is_full:
            end = piece.find(b"\n", start) + 1 or len(piece)
            self._add_to_line(piece[start:end])
            start = end

    def finish(self) -> None:
        """End the last line, which may lack a newline."""
        if self._line_size and not self.is_full:
            self._end_line()

    def _add_to_line(self, part: bytes) -> None:
        self.consumed += len(part)
        self._line_size += len(part)
        if self._number >= self.first:
            self._line += part[: MOST_LINE_BYTES - len(self._line)]
        if part.endswith(b"\n"):
            self._end_line()

    def _end_line(self) -> None:
        if self._number >= self.first:
            missing = self._line_size - len(self._line)
            note = f" [{missing} more bytes of this line]\n".encode() if missing else b""
            self.lines.append(bytes(self._line) + note)
            self._size += len(self._line)
        self._number += 1
        self._line.clear()
        self._line_size = 0


def fitting(lines: list[str]) -> list[str]:
    """Return the first lines, as many as fit into a result, and at least one."""
    size = 0
    for index, line in enumerate(lines):
        size += len(line.encode(errors="replace")) + 1
        if size > MOST_BYTES and index:
            return lines[:index]
    return lines


class ReplacementError(Exception):
    """Text that is not in the file, or not once."""


def replace_exactly(content: bytes, old: bytes, new: bytes, *, every: bool) -> tuple[bytes, int]:
    """Return the content with the text replaced, and how often. It must be there exactly once."""
    if not old:
        raise ReplacementError(
            "old_text is empty. Give the text to replace, or create a file with write_file."
        )
    if old == new:
        raise ReplacementError("old_text and new_text are the same.")
    count = content.count(old)
    if not count:
        raise ReplacementError(
            "old_text is not in the file. It must match byte for byte, white space too. Call read_file."
        )
    if count > 1 and not every:
        raise ReplacementError(
            f"old_text is {count} times in the file. Add lines around it until it is unique, "
            "or set replace_all."
        )
    return content.replace(old, new), count
