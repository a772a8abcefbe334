"""Paths, conditions and ranges of calls about files."""

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import Depends, Query
from pydantic import Field

from codehub.domain.problems import ValidationFailed
from codehub.domain.waking import DEFAULT_WAIT_SECONDS, MOST_WAIT_SECONDS, Wake
from codehub.runtimes.files.names import LONGEST_ENCODED, InvalidName, check_path, percent_decode

MOST_HEADER_ETAGS: Final = 50
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e]*)"')
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)
PathText = Annotated[str, Query(max_length=LONGEST_ENCODED)]


def decode_path(path: str, encoded: str | None, name: str = "path") -> bytes:
    """Return a path from its text, or from the percent-encoded one."""
    try:
        if encoded is None:
            return check_path(path.encode())
        if path:
            raise ValidationFailed(f"{name}: send either it or {name}_encoded.")
        return check_path(percent_decode(encoded))
    except (InvalidName, UnicodeEncodeError) as error:
        message = str(error) if isinstance(error, InvalidName) else "a path must be valid Unicode"
        raise ValidationFailed(f"{name}: {message}.") from error


def _file_path(path: PathText = "", path_encoded: PathText | None = None) -> bytes:
    return decode_path(path, path_encoded)


FilePath = Annotated[bytes, Depends(_file_path)]
"""`path`, relative to the home unless absolute; or `path_encoded`, percent-encoded."""


@dataclass(frozen=True)
class Waking:
    """Whether a call may wake its workspace, and how long it waits."""

    how: Wake
    within: float


def _waking(
    wake: Literal["false", "true", "restore"] = "false",
    wake_timeout_seconds: Annotated[
        float, Query(ge=0, le=MOST_WAIT_SECONDS, allow_inf_nan=False)
    ] = DEFAULT_WAIT_SECONDS,
) -> Waking:
    return Waking(Wake(wake), wake_timeout_seconds)


WakingQuery = Annotated[Waking, Depends(_waking)]
ModeText = Annotated[str, Field(pattern="^[0-7]{3,4}$")]
"""A mode in octal digits, such as 644."""


def parse_mode(mode: str | None) -> int | None:
    return None if mode is None else int(mode, 8)


def expected_etags(header: str | None) -> list[str] | None:
    """Return the ETags of an If-Match header, `*` for any (RFC 9110, 13.1.1). Weak ones never match."""
    if header is None:
        return None
    if header.strip() == "*":
        return ["*"]
    return [tag for weak, tag in _TAG.findall(header)[:MOST_HEADER_ETAGS] if not weak]


def must_not_exist(header: str | None) -> bool:
    """Return whether If-None-Match requires that there is no file (RFC 9110, 13.1.2)."""
    if header is None:
        return False
    if header.strip() != "*":
        raise ValidationFailed("If-None-Match: only * is supported here: write if the file does not exist.")
    return True


def is_known(etag: str, header: str | None) -> bool:
    """Return whether the client of an If-None-Match header has this content already."""
    if header is None:
        return False
    return header.strip() == "*" or etag in [tag for _, tag in _TAG.findall(header)[:MOST_HEADER_ETAGS]]


@dataclass(frozen=True)
class ByteRange:
    start: int
    length: int


class Unsatisfiable(Exception):  # noqa: N818 - a fact, not a fault
    """Range behind the end of a file."""


def requested_range(size: int, etag: str, header: str | None, if_range: str | None) -> ByteRange | None:
    """Return the range to send, or None for the whole file (RFC 9110, 14.2).

    Several ranges, and those of another version of the file, count as the whole.
    """
    found = None if header is None else _RANGE.fullmatch(header.strip())
    if found is None or not (found[1] or found[2]) or (if_range is not None and if_range != f'"{etag}"'):
        return None
    if not found[1]:
        length = min(int(found[2]), size)
        if length == 0:
            raise Unsatisfiable
        return ByteRange(size - length, length)
    start = int(found[1])
    last = min(int(found[2]), size - 1) if found[2] else size - 1
    if found[2] and int(found[2]) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return ByteRange(start, last - start + 1)
