"""Messages of a container's output, as the engine sends them with their times."""

import pytest

from codehub.runtimes.docker.log_frames import EngineError, LogFrames, Position

AT = "2026-01-01T00:00:0{}.00000000{}Z "
FIRST = 1_767_225_600 * 10**9


def frame(content: bytes, second: int, nano: int = 1, stream: int = 1) -> bytes:
    content = AT.format(second, nano).encode() + content
    return bytes([stream, 0, 0, 0]) + len(content).to_bytes(4, "big") + content


def position(second: int, nano: int = 1, count: int = 1) -> Position:
    return Position(FIRST + second * 10**9 + nano, count)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 40, 1000])
def test_contents_arrive_in_pieces_of_any_size(size: int) -> None:
    stream = frame(b"one\n", 0) + frame(b"", 1, stream=2) + frame(b"t w o\n", 2) + frame(b"x" * 20_000, 3)
    frames, received = LogFrames(Position()), b""
    for at in range(0, len(stream), size):
        received += frames.decode(stream[at : at + size])
    assert received == b"one\nt w o\n" + b"x" * 20_000
    assert frames.position == position(3) and not frames.take_gap()


def test_what_was_read_before_is_left_out() -> None:
    first = frame(b"a", 0) + frame(b"b", 1) + frame(b"c", 1)
    frames = LogFrames(Position())
    frames.decode(first)
    assert frames.position == position(1, count=2)
    assert frames.position.since == "1767225601.000000001"
    again = LogFrames(frames.position)
    assert again.decode(first[len(frame(b"a", 0)) :] + frame(b"d", 1) + frame(b"e", 2)) == b"de"
    assert again.position == position(2) and not again.take_gap()


def test_a_gap_is_noticed_once() -> None:
    frames = LogFrames(position(1))
    assert frames.decode(frame(b"later", 3) + frame(b"last", 4)) == b"laterlast"
    assert frames.take_gap() and not frames.take_gap()


@pytest.mark.parametrize("content", [b"Error grabbing logs: EOF\n", b"x" * 100])
def test_a_message_without_a_time_is_an_error_of_the_engine(content: bytes) -> None:
    sent = bytes(4) + len(content).to_bytes(4, "big") + content
    sent = b"\1" + sent[1:]
    with pytest.raises(EngineError, match="the Docker engine ended it"):
        LogFrames(Position()).decode(sent)
