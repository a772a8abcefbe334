"""What results say of output: its end, and where the rest is."""

from dataclasses import replace
from datetime import UTC, datetime

from codehub.client.models import Chunk, ExecInfo
from codehub.mcp.output import MOST_BYTES, News, OutputTail, report

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DONE = ExecInfo(
    "1" * 26, "2" * 26, "exited", 0, None, NOW, NOW, NOW, 0, 0, 0, False, False, None, "alice", None, None, {}
)


def tail_of(*chunks: Chunk, start: int = 0) -> OutputTail:
    tail = OutputTail(start)
    for chunk in chunks:
        tail.add(chunk)
    return tail


def test_a_tail_keeps_the_last_bytes() -> None:
    tail = tail_of(Chunk("stdout", b"a" * MOST_BYTES, 0), Chunk("stdout", b"bc", MOST_BYTES))
    assert (len(tail.data), tail.start, tail.end) == (MOST_BYTES, 2, MOST_BYTES + 2)
    assert tail.data.endswith(b"abc")


def test_a_tail_never_joins_what_does_not_belong_together() -> None:
    tail = tail_of(Chunk("stdout", b"before", 0), Chunk("stdout", b"after", 100, skipped=94))
    assert (bytes(tail.data), tail.start, tail.end) == (b"after", 100, 105)


def test_a_whole_output_needs_no_offsets() -> None:
    text = report(
        replace(DONE, stdout_bytes=2), {"stdout": tail_of(Chunk("stdout", b"hi", 0)), "stderr": tail_of()}
    )
    assert text == f"Command {DONE.id} exited with code 0.\n--- stdout: 2 bytes\nhi"


def test_a_result_says_where_the_rest_is_on_both_sides() -> None:
    info = replace(DONE, state="running", exit_code=None, stdout_bytes=90, dropped_bytes=3)
    text = report(info, {"stdout": tail_of(Chunk("stdout", b"x" * 10, 50, skipped=50))})
    assert "is running" in text and "wait_command" in text and "3 bytes of output are lost" in text
    assert (
        'bytes 50 to 60 of 90. read_output with stream="stdout" and offset=0 for those before, '
        "and offset=60 for those after" in text
    )


def test_bytes_that_are_no_text_are_replaced() -> None:
    text = report(replace(DONE, stdout_bytes=2), {"stdout": tail_of(Chunk("stdout", b"\xff\xc3", 0))})
    assert text.endswith("\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}")


def test_news_are_bounded_and_taken_once() -> None:
    news = News()
    news.add(b"x" * 1_000_000)
    news.add(b"end")
    text = news.take()
    assert len(text) <= 2_000 and text.endswith("xend")
    assert news.take() == ""
