"""Files of this machine: read and written in pieces, replaced as a whole."""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

PIECE_BYTES: Final = 256 << 10
Progress = Callable[[int, int | None], None]
"""Called with the bytes so far, and all bytes if they are known."""


def file_pieces(path: Path, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file; fail if it has fewer by now."""
    left = size
    with path.open("rb") as file:
        while left:
            piece = file.read(min(PIECE_BYTES, left))
            if not piece:
                raise OSError(f"{path} became shorter while it was read.")
            left -= len(piece)
            yield piece


def byte_pieces(data: bytes) -> Iterator[bytes]:
    view = memoryview(data)
    for start in range(0, len(view), PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])


@dataclass
class NewFile:
    """A file that appears under its name when all of it is there."""

    path: Path
    file: BinaryIO
    temporary: Path

    @classmethod
    def create(cls, path: Path, mode: int = 0o666, *, keeps_mode: bool = True) -> "NewFile":
        """Make a file of this mode, less the umask. With `keeps_mode`, the mode of a file before it stays."""
        temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.fdopen(os.open(temporary, flags, mode & 0o777), "wb")
        if keeps_mode:
            with contextlib.suppress(OSError):
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        return cls(path, file, temporary)

    def write(self, data: bytes) -> None:
        self.file.write(data)

    def finish(self) -> None:
        """Put the file in its place."""
        self.file.close()
        self.temporary.replace(self.path)

    def discard(self) -> None:
        """Remove what is not in its place."""
        self.file.close()
        self.temporary.unlink(missing_ok=True)


def target_of(local: Path, name: str) -> Path:
    """Return where a download goes: into a directory that exists, else under the name itself."""
    return local / name if local.is_dir() and name not in ("", ".", "..") else local
