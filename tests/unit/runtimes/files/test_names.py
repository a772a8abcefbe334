"""Names of files as text, and requests as JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.runtimes.files.names import InvalidName, check_path, percent_decode, percent_encode, to_text
from codehub.runtimes.files.protocol import (
    DeleteRequest,
    DirectoryRequest,
    DownloadRequest,
    ListRequest,
    MoveRequest,
    OpenRequest,
    ReadRequest,
    Request,
    SearchRequest,
    UploadRequest,
    WriteRequest,
    read_request,
    write_request,
)


@given(st.binary(max_size=300))
def test_every_name_survives_percent_encoding(name: bytes) -> None:
    assert percent_decode(percent_encode(name)) == name


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_a_name_in_utf8_is_shown_as_it_is(name: str) -> None:
    assert to_text(name.encode()) == (name, False)


def test_a_name_that_is_not_utf8_is_percent_encoded_with_its_percent_signs() -> None:
    assert to_text(b"50%-\xff.txt") == ("50%25-%FF.txt", True)


@pytest.mark.parametrize("text", ["%", "%4", "%GG", "é", "%f\u0661", "a\nb", "a" * 20_000])
def test_a_path_that_is_not_percent_encoded_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        percent_decode(text)


@pytest.mark.parametrize("path", [b"a\0b", b"a" * 4096])
def test_a_path_that_no_system_opens_is_refused(path: bytes) -> None:
    with pytest.raises(InvalidName):
        check_path(path)


@pytest.mark.parametrize(
    "request_",
    [
        ListRequest(b"\xff%", 2, 5),
        OpenRequest(b"a"),
        ReadRequest(1, 2),
        WriteRequest(b"a", 0o600, ["x"], must_not_exist=True),
        DeleteRequest(b"a", recursive=True),
        MoveRequest(b"a", b"\xfe", overwrite=True),
        DirectoryRequest(b"a", parents=True, mode=0o700),
        SearchRequest(b"", b"\x00", contents=True),
        DownloadRequest(b"a"),
        UploadRequest(b"a"),
    ],
)
def test_a_request_reaches_the_agent_as_it_was(request_: Request) -> None:
    assert read_request(write_request(request_)) == request_
