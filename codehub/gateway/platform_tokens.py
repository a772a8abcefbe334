"""The platform's tokens in requests: a workspace must not receive them, wherever a client put them."""

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from codehub.domain.token_format import TOKEN_LENGTH, TOKEN_PREFIX

_PREFIX: Final = TOKEN_PREFIX.encode()
_IN_BASE64: Final = (b"Y2h1Yl", b"NodWJf", b"jaHViX")
"""The prefix in base64, at each of the three offsets."""
_TOKEN = re.compile(
    rb"%b[0-9A-Za-z_-]{%d}|(?:%b)[0-9A-Za-z+/_-]{%d}"
    % (_PREFIX, TOKEN_LENGTH, b"|".join(_IN_BASE64), TOKEN_LENGTH)
)

_SEPARATORS: Final = {b"cookie": b"; ", b"sec-websocket-protocol": b", "}
"""Fields that are lists, of which only the entries with a token are removed."""


def may_hold_token(data: bytes) -> bool:
    """Return whether to search for tokens. This is cheap for a whole head; the search is not."""
    return _PREFIX in data or any(prefix in data for prefix in _IN_BASE64)


def holds_token(value: bytes) -> bool:
    """Return whether this contains a token, plain or in base64 (as in Basic credentials)."""
    return _TOKEN.search(value) is not None


def target_holds_token(target: bytes) -> bool:
    plain = unquote_to_bytes(target) if b"%" in target else target
    return _PREFIX in plain and holds_token(plain)


def without_tokens(name: bytes, value: bytes) -> bytes | None:
    """Return what a workspace may receive of a field, or None if nothing is left."""
    if name == b"authorization" and _PREFIX in value:
        return None  # under any scheme, and even with part of a token
    if not holds_token(value):
        return value
    separator = _SEPARATORS.get(name)
    if separator is None:
        return None
    parts = [part for part in value.split(separator.strip()) if not holds_token(part)]
    return separator.join(part.strip() for part in parts) or None
