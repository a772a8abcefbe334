"""Cookies: which are the platform's, and the workspace-only cookie that a ticket is exchanged for."""

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

HOST_PREFIX: Final = "__Host-"
SESSION_COOKIE: Final = "session"
WORKSPACE_COOKIE: Final = "codehub-workspace"
ENTRY_COOKIE: Final = "codehub-entry-"
"""The beginning of the names of entry nonces."""
_PLATFORM_COOKIES: Final = frozenset((SESSION_COOKIE.encode(), WORKSPACE_COOKIE.encode()))

_WHITESPACE: Final = b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0"
"""All that some server strips off a name: those that decode Latin-1 first know more of it than ASCII has."""
_PREFIX: Final = b"codehub workspace cookie 1\0"
_BODY = struct.Struct(">32sQ")
_SIGNED = struct.Struct(">32sQ32s")


@dataclass(frozen=True)
class CookieGrant:
    """What a workspace cookie proves: it was made for this session, and for this host alone."""

    session_hash: bytes
    expires_at: int


def cookie_pairs(header: bytes) -> Iterator[tuple[bytes, bytes]]:
    for part in header.split(b";"):
        name, _, value = part.partition(b"=")
        yield name.strip(), value.strip()


def cookie_values(header: bytes, name: bytes) -> list[bytes]:
    """Every value under this name: another origin may have added its own beside ours."""
    return [value for key, value in cookie_pairs(header) if key == name] if name in header else []


def is_platform_cookie(name: bytes) -> bool:
    """Whether CodeHub gives a meaning to this name. Browsers ignore the case of the `__Host-` prefix."""
    bare = name.lower().removeprefix(HOST_PREFIX.lower().encode())
    return bare in _PLATFORM_COOKIES or bare.startswith(ENTRY_COOKIE.encode())


def without_platform_cookies(header: bytes) -> bytes:
    """The Cookie field as a workspace may see it."""
    return b"; ".join(
        part.strip()
        for part in header.split(b";")
        if part.strip() and not is_platform_cookie(part.partition(b"=")[0].strip(_WHITESPACE))
    )


def may_set(set_cookie: bytes) -> bool:
    """Whether a workspace may set this cookie: not one of ours, and not for other hosts.

    A cookie without a name is sent back as its bare value, which could read `session=...`. A name that is not
    ASCII reads as one of ours wherever the rest of it is stripped or ignored.
    """
    pair, *attributes = set_cookie.split(b";")
    name, separator, _ = pair.partition(b"=")
    name = name.strip()
    if not separator or not name or not name.isascii() or is_platform_cookie(name):
        return False
    return not any(part.partition(b"=")[0].strip().lower() == b"domain" for part in attributes)


def session_hash(cookie: bytes) -> bytes:
    return hashlib.sha256(cookie).digest()


def _mac(key: bytes, body: bytes, workspace_id: str, host: str) -> bytes:
    return hmac.digest(key, _PREFIX + body + workspace_id.encode() + b"\0" + host.encode(), "sha256")


def sign(key: bytes, grant: CookieGrant, workspace_id: str, host: str) -> str:
    body = _BODY.pack(grant.session_hash, grant.expires_at)
    return base64.urlsafe_b64encode(body + _mac(key, body, workspace_id, host)).decode()


def verify(key: bytes, value: bytes, workspace_id: str, host: str, now: float) -> CookieGrant | None:
    try:
        signed = base64.urlsafe_b64decode(value)
    except (binascii.Error, ValueError):
        return None
    if len(signed) != _SIGNED.size:
        return None
    hashed, expires_at, mac = _SIGNED.unpack(signed)
    if not hmac.compare_digest(mac, _mac(key, signed[: _BODY.size], workspace_id, host)):
        return None
    return CookieGrant(hashed, expires_at) if expires_at > now else None
