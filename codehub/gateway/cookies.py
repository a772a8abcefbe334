"""The platform's cookies, and the signed cookie that opens one workspace (ADR 0005)."""

import base64
import binascii
import hashlib
import hmac
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from codehub.domain.cookie_names import ENTRY_COOKIE, HOST_PREFIX, SESSION_COOKIE, WORKSPACE_COOKIE

MAX_COOKIES: Final = 256
"""How many cookies of a request are read, at about 1 us each. Browsers keep at most 180 for one site."""
_PLATFORM_COOKIES: Final = frozenset((SESSION_COOKIE.encode(), WORKSPACE_COOKIE.encode()))

_HOST_PREFIX: Final = HOST_PREFIX.lower().encode()
_ENTRY_COOKIE: Final = ENTRY_COOKIE.encode()
_DOMAIN_ATTRIBUTE = re.compile(rb";[ \t]*domain[ \t]*(?:[=;]|\Z)", re.IGNORECASE)
_MAX_ATTRIBUTES: Final = 16
_WHITESPACE: Final = b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0"
"""Everything that some server strips from a name. Latin-1 has more whitespace than ASCII."""
_PREFIX: Final = b"codehub workspace cookie 1\0"
_BODY = struct.Struct(">32sQ")
_SIGNED = struct.Struct(">32sQ32s")


@dataclass(frozen=True)
class CookieGrant:
    """The content of a workspace cookie, which is valid for one session and one host."""

    session_hash: bytes
    expires_at: int


def cookie_parts(header: bytes) -> list[bytes]:
    """Split a Cookie field. Requests with more cookies than this returns are refused."""
    return header.split(b";", MAX_COOKIES)[:MAX_COOKIES]


def cookie_pairs(header: bytes) -> Iterator[tuple[bytes, bytes]]:
    for part in cookie_parts(header):
        name, _, value = part.partition(b"=")
        yield name.strip(), value.strip()


def cookie_values(header: bytes, name: bytes) -> list[bytes]:
    """Return all values of this name: another origin may have added one."""
    return [value for key, value in cookie_pairs(header) if key == name] if name in header else []


def is_platform_cookie(name: bytes) -> bool:
    """Return whether CodeHub uses this name. Browsers ignore the case of the `__Host-` prefix."""
    bare = name.lower().removeprefix(_HOST_PREFIX)
    return bare in _PLATFORM_COOKIES or bare.startswith(_ENTRY_COOKIE)


def without_platform_cookies(header: bytes) -> bytes:
    """Return the Cookie field that a workspace may receive."""
    return b"; ".join(
        part.strip()
        for part in header.split(b";")
        if part.strip() and not is_platform_cookie(part.partition(b"=")[0].strip(_WHITESPACE))
    )


def may_set(set_cookie: bytes) -> bool:
    """Return whether a workspace may set this cookie: it is not the platform's, nor for other hosts.

    A browser sends a cookie without a name back as its bare value, which could be `session=...`. A name
    that is not ASCII may equal a platform cookie's for a server that strips or ignores the rest.
    """
    name, separator, _ = set_cookie.partition(b";")[0].partition(b"=")
    name = name.strip()
    if not separator or not name or not name.isascii() or is_platform_cookie(name):
        return False
    return set_cookie.count(b";") <= _MAX_ATTRIBUTES and not _DOMAIN_ATTRIBUTE.search(set_cookie)


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
