"""Names of files, which are bytes, as text. Standard library only (see `agent`)."""

from __future__ import annotations

import re

LONGEST_PATH = 4095
LONGEST_ENCODED = 3 * LONGEST_PATH
_ENCODED = {
    byte: chr(byte) if 0x21 <= byte < 0x7F and byte != ord("%") else f"%{byte:02X}" for byte in range(256)
}
_PLAIN_NAME = re.compile(rb"[!-$&-~]*")
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_IS_ENCODED = re.compile(r"(?:[ -$&-~]|%[0-9A-Fa-f]{2})*", re.ASCII)


class InvalidName(ValueError):  # noqa: N818 - a fact, not a fault
    """Text that is not the name of a file. The message is for the person who sent it."""


def percent_encode(name: bytes) -> str:
    if _PLAIN_NAME.fullmatch(name):
        return name.decode("ascii")
    return "".join(_ENCODED[byte] for byte in name)


def percent_decode(text: str) -> bytes:
    if len(text) > LONGEST_ENCODED or not _IS_ENCODED.fullmatch(text):
        raise InvalidName("a percent-encoded path consists of ASCII characters and of %XX")
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), text.encode("ascii"))


def to_text(name: bytes) -> tuple[str, bool]:
    """Return a name as text, and whether it is percent-encoded because it is not UTF-8."""
    try:
        return name.decode(), False
    except UnicodeDecodeError:
        return percent_encode(name), True


def check_path(path: bytes) -> bytes:
    """Return a path that a request names, or raise InvalidName if no system could open it."""
    if b"\0" in path:
        raise InvalidName("a path contains no NUL character")
    if len(path) > LONGEST_PATH:
        raise InvalidName(f"a path has at most {LONGEST_PATH} bytes")
    return path
