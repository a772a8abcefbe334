"""Files that reserve disk space and inodes for the embedded PostgreSQL."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

import structlog

logger = structlog.get_logger(__name__)


NAME: Final = "postgres.reserve"
SIZE: Final = 64 << 20
NEARLY_FULL: Final = 16 << 20
"""Below this much free space the file is removed."""
PLENTY: Final = 4 * SIZE
"""Above this much free space the file is created again."""
INODES_NAME: Final = "postgres.reserve.inodes"
INODES: Final = 64
"""Empty files in a directory. PostgreSQL needs an inode for a new segment of its log, for example."""
FEW_INODES: Final = 16
"""Below this many free inodes the directory is removed."""
MANY_INODES: Final = 4 * INODES
"""Above this many free inodes the directory is created again."""
CHECK_SECONDS: Final = 2.0


class EmergencyReserve:
    """Space and inodes that PostgreSQL gets back when the disk is nearly full."""

    def __init__(self, data_dir: Path, *, size: int = SIZE, nearly_full: int = NEARLY_FULL) -> None:
        self._path = data_dir / NAME
        self._inodes = data_dir / INODES_NAME
        self._size = size
        self._nearly_full = nearly_full

    async def run(self) -> None:
        """Check every few seconds, until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(CHECK_SECONDS)

    def check(self) -> None:
        """Give back what the disk is nearly out of, and reserve again what it has plenty of."""
        try:
            disk = os.statvfs(self._path.parent)
            self._check_space(disk.f_bavail * disk.f_frsize)
            if disk.f_files:  # otherwise the file system has no fixed number of inodes
                self._check_inodes(disk.f_favail)
        except OSError as error:
            logger.warning("the disk space reserve of PostgreSQL cannot be checked", error=str(error))

    def _check_space(self, free: int) -> None:
        if free < self._nearly_full:
            self._release(free)
        elif free > PLENTY * self._size // SIZE and not self._path.exists():
            self._create()

    def _check_inodes(self, free: int) -> None:
        if free < FEW_INODES and self._inodes.exists():
            shutil.rmtree(self._inodes)
            logger.error(
                "the disk is nearly out of inodes: CodeHub has deleted the reserve of PostgreSQL; "
                "remove some files",
                free_inodes=free,
                reserve_inodes=INODES,
            )
        elif free > MANY_INODES and not self._inodes.exists():
            self._create_inodes()

    def _create_inodes(self) -> None:
        staged = self._inodes.with_name(f".{INODES_NAME}.new")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(mode=0o700)
        for number in range(INODES):
            (staged / str(number)).touch()
        staged.rename(self._inodes)

    def _release(self, free: int) -> None:
        try:
            self._path.unlink()
        except FileNotFoundError:
            return
        logger.error(
            "the disk is nearly full: CodeHub has deleted the reserve of PostgreSQL; free some space",
            free_bytes=free,
            reserve_bytes=self._size,
        )

    def _create(self) -> None:
        """Create the file in one step: a file of this name always holds the whole reserve."""
        staged = self._path.with_name(f".{NAME}.new")
        try:
            with staged.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                os.posix_fallocate(file.fileno(), 0, self._size)
            staged.rename(self._path)
        except OSError:
            staged.unlink(missing_ok=True)
            raise
