"""The reader of a workspace's output, beside the writer that the keeper uses."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from codehub.runtimes.process.log_reader import PIECE_BYTES, SKIPPED, LogReader, open_logs
from codehub.runtimes.process.output_files import Output
from codehub.runtimes.process.state_directory import LOG, LOG_BYTES, StateDirectory
from tests.waiting import PATIENCE

LINE = b"%07d\n"
COUNT = LOG_BYTES // len(LINE % 0)
"""Lines in a file."""


@dataclass
class Writer:
    """The output of a workspace, in numbered lines."""

    shared: Path
    directory: StateDirectory
    output: Output
    lines: int = 0

    def write(self, count: int) -> bytes:
        written = b"".join(LINE % number for number in range(self.lines, self.lines + count))
        self.lines += count
        for at in range(0, len(written), PIECE_BYTES):
            self.output.write(written[at : at + PIECE_BYTES])
        return written

    def restart(self) -> None:
        self.directory.log_file.replace(self.directory.older_log_file)
        self.output = Output(self.directory, self.shared)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    shared, state = tmp_path / "shared", tmp_path / "state"
    shared.mkdir()
    state.mkdir()
    directory = StateDirectory(state)
    yield Writer(shared, directory, Output(directory, shared))


def read_all(reader: LogReader) -> bytes:
    return b"".join(iter(reader.read, b""))


@pytest.mark.parametrize("written", [10, COUNT - 1, COUNT, COUNT + 1, COUNT + 10, 2 * COUNT])
def test_the_last_lines_are_found_across_both_files(writer: Writer, written: int) -> None:
    expected = writer.write(written).splitlines(keepends=True)
    for lines in (1, 2, 9, 10, 11, 10_000):
        reader = LogReader(writer.shared)
        last = b"".join(expected[-lines:])
        assert reader.start(lines) == len(last)
        assert read_all(reader) == last
        reader.close()


def test_a_line_that_two_files_share_and_one_without_an_end_are_whole(writer: Writer) -> None:
    writer.write(COUNT - 1)
    writer.output.write(b"fi")
    writer.restart()
    writer.output.write(b"rst\nsecond\nthird")
    for lines, expected in ((1, b"third"), (2, b"second\nthird"), (3, b"first\nsecond\nthird")):
        reader = LogReader(writer.shared)
        reader.start(lines)
        assert read_all(reader) == expected
        reader.close()


def test_a_reader_follows_from_file_to_file_without_a_gap(writer: Writer) -> None:
    reader = LogReader(writer.shared)
    assert reader.start(10) == 0
    received, expected = b"", b""
    for _ in range(50):
        expected += writer.write(COUNT // 10)
        received += read_all(reader)
    writer.restart()
    expected += writer.write(5)
    received += read_all(reader)
    assert received == expected
    reader.close()


def test_a_reader_that_falls_behind_declares_the_gap(writer: Writer) -> None:
    first = writer.write(10)
    reader = LogReader(writer.shared)
    reader.start(10)
    piece = reader.read()
    assert piece == first
    writer.write(10)
    writer.output.write(b"half")
    for _ in range(3):
        writer.write(COUNT)
    rest = read_all(reader)
    assert rest.count(SKIPPED) == 1 and b"\n" + SKIPPED in rest
    kept = [LINE % number for number in range(20, writer.lines)]
    before, _, after = rest.partition(SKIPPED)
    assert before.startswith(LINE % 10) and before.endswith(b"\n")
    assert len(after) <= 2 * LOG_BYTES and after.endswith(b"".join(kept[-COUNT:]))
    reader.close()


async def collect(directory: Path, lines: int, until: asyncio.Event) -> bytes:
    received = b""
    async with open_logs(directory, lines, until) as pieces:
        async for piece in pieces:
            received += piece
    return received


async def test_a_workspace_that_never_ran_has_no_output_until_it_starts(tmp_path: Path) -> None:
    until = asyncio.Event()
    missing = tmp_path / "missing"
    following = asyncio.create_task(collect(missing, 10, until))
    until.set()
    assert await asyncio.wait_for(following, PATIENCE) == b""
    until.clear()
    async with open_logs(missing, 10, until) as pieces:
        missing.mkdir()
        (missing / LOG).write_bytes(b"first\n")
        assert await asyncio.wait_for(anext(pieces), PATIENCE) == b"first\n"


async def test_what_is_written_before_the_end_is_read(writer: Writer) -> None:
    until = asyncio.Event()
    async with open_logs(writer.shared, 10, until) as pieces:
        writer.write(3)
        assert await asyncio.wait_for(anext(pieces), PATIENCE)
        last = writer.write(2)
        until.set()
        assert b"".join([piece async for piece in pieces]) == last
