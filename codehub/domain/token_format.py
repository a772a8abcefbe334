"""Format of API tokens, by which they are recognised in requests and logs."""

import re
from collections.abc import Sequence
from typing import Final

TOKEN_PREFIX: Final = "chub_"  # noqa: S105 - the same for all
TOKEN_LENGTH: Final = 40
"""Characters after the prefix: letters, digits, `_` and `-`."""
SHOWN_LENGTH: Final = 8
"""Characters that are kept and shown, the prefix included."""

_TOKEN = re.compile(rf"{TOKEN_PREFIX}[0-9A-Za-z_-]{{{TOKEN_LENGTH}}}")
_BEARER = re.compile(r"bearer(?:[ \t]+|\Z)", re.IGNORECASE)


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token."""
    return _TOKEN.fullmatch(text) is not None


def without_tokens(text: str) -> str:
    """Return the text with the secret part of each token replaced, for logs."""
    return _TOKEN.sub(f"{TOKEN_PREFIX}…", text) if TOKEN_PREFIX in text else text


def bearer_token(authorization: Sequence[str]) -> str | None:
    """Return the Bearer token of a request, or None if its Authorization fields have none.

    The empty text stands for an unusable one: several fields, of which at least one is a Bearer
    token. Such a request has a Bearer token, and no server and proxy need to agree on which.
    """
    found = [match for field in authorization if (match := _BEARER.match(field.strip()))]
    if not found:
        return None
    if len(authorization) > 1:
        return ""
    return found[0].string[found[0].end() :]
