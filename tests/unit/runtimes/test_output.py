"""What a workspace prints is kept in two files of bounded size, and never stands in its way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from codehub.runtimes.process import output
from codehub.runtimes.process.directory import LOG_BYTES, Directory
from codehub.runtimes.process.output import Output


def test_a_full_file_becomes_the_older_one(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    kept = Output(directory)
    for letter in b"abc":
        kept.write(bytes([letter]) * (LOG_BYTES - 1))
    assert directory.older_log_file.read_bytes() == b"b" * (LOG_BYTES - 1)
    assert directory.log_file.read_bytes() == b"c" * (LOG_BYTES - 1)


def test_what_a_full_disk_cost_is_told_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(tmp_path)
    kept = Output(directory)

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(output.os, "write", full)
        kept.write(b"12345")
        kept.write(b"67890")
    kept.write(b"again")
    kept.write(b"!")
    text = directory.log_file.read_text()
    assert text == "[10 bytes of output were lost: the disk was full]\nagain!"
