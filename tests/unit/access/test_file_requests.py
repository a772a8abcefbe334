"""Paths, conditions and ranges of calls about files."""

from __future__ import annotations

import pytest

from codehub.access.file_requests import (
    ByteRange,
    Unsatisfiable,
    decode_path,
    expected_etags,
    is_known,
    must_not_exist,
    requested_range,
)
from codehub.domain.problems import ValidationFailed


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-9", ByteRange(0, 10)),
        ("bytes=90-200", ByteRange(90, 10)),
        ("bytes=99-", ByteRange(99, 1)),
        ("bytes=-5", ByteRange(95, 5)),
        ("bytes=-500", ByteRange(0, 100)),
        ("bytes=5-4", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        (None, None),
    ],
)
def test_the_requested_range(header: str | None, expected: ByteRange | None) -> None:
    assert requested_range(100, "tag", header, None) == expected


@pytest.mark.parametrize(("size", "header"), [(100, "bytes=100-"), (100, "bytes=-0"), (0, "bytes=0-")])
def test_a_range_behind_the_end_cannot_be_satisfied(size: int, header: str) -> None:
    with pytest.raises(Unsatisfiable):
        requested_range(size, "tag", header, None)


def test_a_range_of_another_version_is_the_whole_file() -> None:
    assert requested_range(100, "tag", "bytes=0-9", '"tag"') == ByteRange(0, 10)
    for other in ('"old"', 'W/"tag"', "Thu, 01 Jan 1970 00:00:00 GMT"):
        assert requested_range(100, "tag", "bytes=0-9", other) is None


def test_only_strong_etags_are_expected() -> None:
    assert expected_etags(None) is None
    assert expected_etags(" * ") == ["*"]
    assert expected_etags('"a", W/"b" ,"c"') == ["a", "c"]
    assert expected_etags("nonsense") == []


def test_if_none_match_of_a_write_takes_any_file_only() -> None:
    assert must_not_exist("*") and not must_not_exist(None)
    with pytest.raises(ValidationFailed):
        must_not_exist('"a"')


def test_a_known_version_is_not_sent_again() -> None:
    assert is_known("a", 'W/"a"') and is_known("a", '"b", "a"') and is_known("a", "*")
    assert not is_known("a", '"b"') and not is_known("a", None)


def test_a_path_comes_as_text_or_percent_encoded() -> None:
    assert decode_path("ä%41", None) == "ä%41".encode()
    assert decode_path("", "%FF%25") == b"\xff%"
    for path, encoded in (
        ("a", "b"),
        ("a\0", None),
        ("", "%00"),
        ("", "%"),
        ("\ud800", None),
        ("x" * 5000, None),
    ):
        with pytest.raises(ValidationFailed):
            decode_path(path, encoded)
