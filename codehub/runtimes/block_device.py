"""The disk that holds a directory, as control groups and the Docker Engine name it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_BLOCK_DEVICES = Path("/sys/dev/block")


@dataclass(frozen=True)
class Disk:
    number: str
    """`major:minor`."""
    device: str
    """Such as `/dev/sda`."""


def disk_of(path: Path, block_devices: Path = _BLOCK_DEVICES) -> Disk | None:
    """Return the disk, or None if the file system is not on a single one.

    For a partition this is its disk: the kernel cannot limit the bandwidth of a partition.
    """
    number = path.stat().st_dev
    entry = block_devices / f"{os.major(number)}:{os.minor(number)}"
    if not entry.exists():
        return None
    found = entry.resolve()
    if (found / "partition").exists():
        found = found.parent
    facts = dict(line.split("=", 1) for line in (found / "uevent").read_text().splitlines())
    return Disk((found / "dev").read_text().strip(), f"/dev/{facts['DEVNAME']}")
