"""Output of a workspace, in two files of bounded size."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from codehub.runtimes.process import output_files
from codehub.runtimes.process.output_files import (
    BURST_BYTES,
    BYTES_PER_SECOND,
    READ_BYTES,
    Output,
    ReadBudget,
)
from codehub.runtimes.process.state_directory import LOG_BYTES, StateDirectory


def test_a_full_file_becomes_the_older_one(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    writer = Output(directory)
    for letter in b"abc":
        writer.write(bytes([letter]) * (LOG_BYTES - 1))
    assert directory.older_log_file.read_bytes() == b"b" * (LOG_BYTES - 1)
    assert directory.log_file.read_bytes() == b"c" * (LOG_BYTES - 1)


def test_output_lost_to_a_full_disk_is_reported_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = StateDirectory(tmp_path)
    writer = Output(directory)

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(output_files.os, "write", full)
        writer.write(b"12345")
        writer.write(b"67890")
    writer.write(b"again")
    writer.write(b"!")
    text = directory.log_file.read_text()
    assert text == "[10 bytes of output were lost: the disk was full]\nagain!"


def test_a_burst_is_read_at_once_and_a_flood_at_its_rate() -> None:
    budget, now, taken = ReadBudget(0.0), 0.0, 0
    reads = 0
    while now < 60:
        taken += READ_BYTES
        reads += 1
        now = budget.spend(READ_BYTES, now) or now
        if now == 0.0:
            assert taken <= BURST_BYTES
    assert 60 * BYTES_PER_SECOND <= taken <= BURST_BYTES + 60 * BYTES_PER_SECOND + 2 * READ_BYTES
    assert reads <= taken // READ_BYTES


def test_one_byte_at_a_time_is_read_in_few_reads() -> None:
    budget, now, reads = ReadBudget(0.0), 0.0, 0
    while now < 60:
        reads += 1
        now = budget.spend(1, now) or now
    assert reads <= (BURST_BYTES + 60 * BYTES_PER_SECOND) / 4096 + 1


def test_the_budget_refills_after_a_silence() -> None:
    budget = ReadBudget(0.0)
    next_read = budget.spend(BURST_BYTES + READ_BYTES, 0.0)
    assert next_read == pytest.approx(2 * READ_BYTES / BYTES_PER_SECOND)
    assert budget.spend(BURST_BYTES - 1, 3600.0) is None
    assert budget.spend(READ_BYTES, 3600.0) is not None
