"""Windows of lines, and exact replacement."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.mcp.texts import (
    MOST_BYTES,
    MOST_LINE_BYTES,
    LineWindow,
    ReplacementError,
    fitting,
    replace_exactly,
)


def window_of(content: bytes, first: int, most: int, piece: int) -> LineWindow:
    window = LineWindow(first, most)
    for start in range(0, len(content), piece):
        window.add(content[start : start + piece])
    window.finish()
    return window


@given(
    st.lists(st.binary(max_size=5).filter(lambda line: b"\n" not in line), max_size=12), st.integers(1, 14),
    st.integers(1, 14), st.integers(1, 20),
)  # fmt: skip
def test_a_window_has_the_lines_whatever_the_pieces(
    lines: list[bytes], first: int, most: int, piece: int
) -> None:
    content = b"\n".join(lines)
    *ended, last = [*content.split(b"\n")]
    every = [line + b"\n" for line in ended] + ([last] if last else [])
    window = window_of(content, first, most, piece)
    assert window.lines == every[first - 1 : first - 1 + most]
    if window.lines:
        assert window.consumed == len(b"".join(every[: first - 1 + most]))
        assert window.next_line == first + len(window.lines)
    else:
        assert window.lines_seen == len(every)


def test_the_windows_of_a_file_are_the_file() -> None:
    content = b"".join(b"%d\n" % n for n in range(50_000))
    found, first = b"", 1
    while (window := window_of(content, first, 2000, 4096)).lines:
        assert len(b"".join(window.lines)) <= MOST_BYTES + MOST_LINE_BYTES
        found += b"".join(window.lines)
        first = window.next_line
    assert found == content


def test_a_long_line_is_cut_and_says_so() -> None:
    window = window_of(b"x" * 1_000_000 + b"\nnext\n", 1, 10, 1000)
    assert window.lines[0] == b"x" * MOST_LINE_BYTES + b" [%d more bytes of this line]\n" % (
        1_000_001 - MOST_LINE_BYTES
    )
    assert window.lines[1] == b"next\n"


def test_a_text_is_replaced_once_or_everywhere() -> None:
    assert replace_exactly(b"a b c", b"b", b"\xff", every=False) == (b"a \xff c", 1)
    assert replace_exactly(b"a b b", b"b", b"", every=True) == (b"a  ", 2)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"", b"x", "empty"),
        (b"b", b"b", "the same"),
        (b"d", b"x", "not in the file"),
        (b"b", b"x", "2 times"),
    ],
)
def test_what_cannot_be_replaced_for_sure_is_not(old: bytes, new: bytes, expected: str) -> None:
    with pytest.raises(ReplacementError, match=expected):
        replace_exactly(b"a b b", old, new, every=False)


def test_a_list_is_cut_at_whole_lines_and_never_empty() -> None:
    lines = ["\u00e9" * 100] * 1000
    shown = fitting(lines)
    assert shown == lines[: MOST_BYTES // 201]
    assert fitting(["x" * 2 * MOST_BYTES, "y"]) == ["x" * 2 * MOST_BYTES]
    assert fitting([]) == []
