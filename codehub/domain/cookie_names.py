"""Names of the platform's cookies."""

from typing import Final

HOST_PREFIX: Final = "__Host-"
"""Over https: browsers then accept the cookie only from the host itself, without a Domain (RFC 6265bis)."""
SESSION_COOKIE: Final = "session"
WORKSPACE_COOKIE: Final = "codehub-workspace"
ENTRY_COOKIE: Final = "codehub-entry-"
"""The beginning of the names of entry nonces."""


def cookie_name(name: str, *, secure: bool) -> str:
    """Return the name under which a cookie is set; `secure` is whether the origin speaks https."""
    return f"{HOST_PREFIX}{name}" if secure else name
