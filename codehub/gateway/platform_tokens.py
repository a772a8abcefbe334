"""The platform's tokens in requests: a workspace must not receive them, wherever a client put them."""

import re
from typing import Final

from codehub.domain.token_format import TOKEN_LENGTH, TOKEN_PREFIX

_PREFIX: Final = TOKEN_PREFIX.encode()
_IN_BASE64: Final = (b"Y2h1Yl", b"NodWJf", b"jaHViX")
"""The prefix in base64, at each of the three offsets."""
_TOKEN = re.compile(
    rb"%b[0-9A-Za-z_-]{%d}|(?:%b)[0-9A-Za-z+/_-]{%d}"
    % (_PREFIX, TOKEN_LENGTH, b"|".join(_IN_BASE64), TOKEN_LENGTH)
)

_TOKEN_IN_TARGET = re.compile(
    b"".join(rb"(?:%c|(?i:%%%02x))" % (letter, letter) for letter in _PREFIX)
    + rb"(?i:[0-9a-z_-]|%%(?:3[0-9]|[46][1-9a-f]|[57][0-9a]|5f|2d)){%d}" % TOKEN_LENGTH
)
"""A token of which any letter may be percent-encoded. To decode the target first takes 20 times as long."""
_SEPARATORS: Final = {b"cookie": b"; ", b"sec-websocket-protocol": b", "}
"""Fields that are lists, of which only the entries with a token are removed."""
_MAX_ENTRIES: Final = 256
"""A longer list is removed as a whole, because each entry costs a search."""


def may_hold_token(data: bytes) -> bool:
    """Return whether to search for tokens. This is cheap for a whole head; the search is not."""
    return _PREFIX in data or any(prefix in data for prefix in _IN_BASE64)


def holds_token(value: bytes) -> bool:
    """Return whether this contains a token, plain or in base64 (as in Basic credentials)."""
    return _TOKEN.search(value) is not None


def target_holds_token(target: bytes) -> bool:
    return _TOKEN_IN_TARGET.search(target) is not None


def without_tokens(name: bytes, value: bytes) -> bytes | None:
    """Return what a workspace may receive of a field, or None if nothing is left."""
    if name == b"authorization" and _PREFIX in value:
        return None  # under any scheme, and even with part of a token
    if not holds_token(value):
        return value
    separator = _SEPARATORS.get(name)
    if separator is None or value.count(separator.strip()) > _MAX_ENTRIES:
        return None
    parts = [part for part in value.split(separator.strip()) if not holds_token(part)]
    return separator.join(part.strip() for part in parts) or None
