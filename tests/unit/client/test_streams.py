"""Streams that break, end early, or have gaps."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codehub.client import ConnectionFailed, FileChanged, Gone, UnexpectedAnswer
from tests.sdk import KINDS, make_client
from tests.unit.client.conftest import FakeServer, Handler
from tests.unit.client.test_calls import EXEC, TOKEN, workspace

OUTPUT = bytes(range(256)) * 40


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, server: FakeServer) -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    client = make_client(request.param, loop, server.url, TOKEN, retry_seconds=2.0, reconnect_seconds=1.0)
    yield workspace(client)
    client.close()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def ended(**facts: object) -> dict[str, object]:
    return EXEC | {"state": "exited", "exit_code": 0, "stdout_bytes": len(OUTPUT)} | facts


class Output:
    """Server of one command's output, which sends a few bytes in each response."""

    def __init__(self, *, gap_at: int | None = None, kept_from: int = 0, piece: int = 1000) -> None:
        self.piece, self.gap_at, self.kept_from = piece, gap_at, kept_from
        self.ends_well = False

    def __call__(self, handler: Handler) -> None:
        found = re.search(r"/output\?stream=(\w+)&offset=(\d+)", handler.path)
        if found is None:
            handler.json(ended())
            return
        if found[1] == "stderr":
            handler.raw(b"", kind="application/octet-stream", Codehub_Offset="0")
            return
        start = int(found[2])
        if self.gap_at is not None and start >= self.gap_at:
            start = max(start, self.kept_from)
        rest = OUTPUT[start : start + self.piece]
        whole = len(rest) if self.ends_well else len(OUTPUT) - start
        handler.send_response(200)
        handler.send_header("Content-Type", "application/octet-stream")
        handler.send_header("Codehub-Offset", str(start))
        handler.send_header("Content-Length", str(whole))
        handler.end_headers()
        handler.wfile.write(rest)
        if len(rest) < whole:
            handler.break_off()


def test_output_that_breaks_off_again_and_again_is_read_once(target: Any, server: FakeServer) -> None:
    server.answer = Output()
    chunks = list(target.get_exec("e"))
    assert b"".join(chunk.data for chunk in chunks) == OUTPUT
    assert not any(chunk.skipped for chunk in chunks)


def test_a_response_that_ends_well_too_early_is_not_the_end(target: Any, server: FakeServer) -> None:
    """Such as through a proxy that completes what has broken behind it."""
    output = Output()
    output.ends_well = True
    server.answer = output
    assert b"".join(chunk.data for chunk in target.get_exec("e")) == OUTPUT


def test_a_gap_is_declared(target: Any, server: FakeServer) -> None:
    server.answer = Output(gap_at=2000, kept_from=5000)
    chunks = list(target.get_exec("e"))
    assert [(chunk.offset, chunk.skipped) for chunk in chunks if chunk.skipped] == [(5000, 3000)]
    assert b"".join(chunk.data for chunk in chunks) == OUTPUT[:2000] + OUTPUT[5000:]
    assert target.get_exec("e").communicate().skipped == 3000


@pytest.mark.parametrize("offset", ["", "x", "-1", "٣"])
def test_bytes_of_an_unknown_place_are_rejected(target: Any, server: FakeServer, offset: str) -> None:
    def answer(handler: Handler) -> None:
        if "/output" not in handler.path:
            handler.json(ended())
            return
        handler.raw(
            b"data", kind="application/octet-stream", Codehub_Offset=offset.encode().decode("latin-1")
        )

    server.answer = answer
    with pytest.raises(UnexpectedAnswer):
        list(target.get_exec("e").output("stdout"))


def test_reconnects_end_without_progress(target: Any, server: FakeServer) -> None:
    def answer(handler: Handler) -> None:
        if "/output" in handler.path:
            handler.break_off()
        else:
            handler.json(EXEC)

    server.answer = answer
    with pytest.raises(ConnectionFailed):
        list(target.get_exec("e"))
    assert len(server.requests) < 60


def test_output_that_is_gone_is_not_asked_for_again(target: Any, server: FakeServer) -> None:
    server.answer = lambda handler: (
        handler.error(410, "GONE") if "/output" in handler.path else handler.json(ended())
    )
    with pytest.raises(Gone):
        list(target.get_exec("e"))


class Content:
    """Server of a file, which breaks off in each response."""

    def __init__(self, tags: list[str]) -> None:
        self.tags = tags

    def __call__(self, handler: Handler) -> None:
        tag = self.tags.pop(0) if len(self.tags) > 1 else self.tags[0]
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        start = int(asked[1]) if asked and handler.headers["If-Range"] == tag else 0
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(OUTPUT) - 1}/{len(OUTPUT)}")
        handler.send_header("Content-Length", str(len(OUTPUT) - start))
        handler.send_header("ETag", tag)
        handler.end_headers()
        handler.wfile.write(OUTPUT[start : start + 3000])
        if start + 3000 < len(OUTPUT):
            handler.break_off()


def test_a_file_is_read_on_where_it_broke_off(target: Any, server: FakeServer) -> None:
    server.answer = Content(['"a"'])
    assert target.files.read("x") == OUTPUT
    assert len(server.requests) == 4


def test_parts_of_two_versions_are_not_mixed(target: Any, server: FakeServer) -> None:
    server.answer = Content(['"a"', '"b"'])
    with pytest.raises(FileChanged):
        target.files.read("x")


def test_a_download_leaves_nothing_when_it_fails(target: Any, server: FakeServer, tmp_path: Path) -> None:
    facts = {
        "path": "x", "encoded": False, "kind": "file", "size": 5, "mode": "0644", "mtime": 1.0, "etag": '"a"',
        "target": None, "target_encoded": False,
    }  # fmt: skip
    content = Content(['"a"', '"b"'])
    server.answer = lambda handler: content(handler) if "/content" in handler.path else handler.json(facts)
    (tmp_path / "x").write_text("before")
    with pytest.raises(FileChanged):
        target.files.download("x", tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "before"
