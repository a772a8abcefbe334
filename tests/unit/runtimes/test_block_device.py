"""The disk of a directory, from what the kernel shows of block devices."""

import os
from pathlib import Path

from codehub.runtimes.block_device import Disk, disk_of


def block_device(directory: Path, number: str, name: str) -> Path:
    directory.mkdir(parents=True)
    (directory / "dev").write_text(f"{number}\n")
    (directory / "uevent").write_text(f"MAJOR=8\nDEVNAME={name}\nDEVTYPE=disk\n")
    return directory


def number_of(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def test_a_whole_disk(tmp_path: Path) -> None:
    number = number_of(tmp_path)
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / number).symlink_to(block_device(tmp_path / "devices" / "sda", number, "sda"))
    assert disk_of(tmp_path, tmp_path / "block") == Disk(number, "/dev/sda")


def test_a_partition_stands_for_its_disk(tmp_path: Path) -> None:
    number = number_of(tmp_path)
    disk = block_device(tmp_path / "devices" / "sda", "8:0", "sda")
    partition = block_device(disk / "sda1", number, "sda1")
    (partition / "partition").write_text("1\n")
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / number).symlink_to(partition)
    assert disk_of(tmp_path, tmp_path / "block") == Disk("8:0", "/dev/sda")


def test_a_file_system_that_is_not_on_a_single_disk(tmp_path: Path) -> None:
    assert disk_of(tmp_path, tmp_path) is None
