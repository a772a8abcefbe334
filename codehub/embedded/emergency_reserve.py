"""File that reserves disk space for the embedded PostgreSQL."""

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
CHECK_SECONDS: Final = 2.0


class EmergencyReserve:
    """Space that PostgreSQL gets back when the disk is nearly full."""

    def __init__(self, data_dir: Path, *, size: int = SIZE, nearly_full: int = NEARLY_FULL) -> None:
        self._path = data_dir / NAME
        self._size = size
        self._nearly_full = nearly_full

    async def run(self) -> None:
        """Check every few seconds, until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(CHECK_SECONDS)

    def check(self) -> None:
        """Delete the file if the disk is nearly full, or create it if there is plenty of space."""
        try:
            free = shutil.disk_usage(self._path.parent).free
            if free < self._nearly_full:
                self._release(free)
            elif free > PLENTY * self._size // SIZE and not self._path.exists():
                self._create()
        except OSError as error:
            logger.warning("the disk space reserve of PostgreSQL cannot be checked", error=str(error))

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
