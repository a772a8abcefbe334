"""Entry nonces: short-lived cookies that bind a ticket to the browser that asked for it (ADR 0022).

The workspace's origin sets the cookie, the ticket carries its hash, and the two must match on arrival.
Each nonce has a different cookie name, so that tabs that enter at the same time do not overwrite each
other's.
"""

import hashlib
import re
import secrets
from typing import Final

from codehub.domain.cookie_names import ENTRY_COOKIE, cookie_name
from codehub.gateway.config import Origins
from codehub.gateway.cookies import cookie_pairs
from codehub.gateway.http1.request_head import RequestHead

SECONDS: Final = 120
_NONCE = re.compile(rb"[0-9a-f]{32}")
_HASH = re.compile(r"[0-9a-f]{64}")
_NAME_LENGTH: Final = 8


def is_hash(text: str) -> bool:
    return _HASH.fullmatch(text) is not None


def hash_of(nonce: bytes) -> str:
    return hashlib.sha256(nonce).hexdigest()


def find_nonces(head: RequestHead, origins: Origins) -> list[bytes]:
    """Return the nonces that this browser has for the requested host."""
    prefix = _name_prefix(origins).encode()
    return [
        value
        for name, value in cookie_pairs(head.get(b"cookie"))
        if name.startswith(prefix) and _NONCE.fullmatch(value)
    ]


def renew_nonce(head: RequestHead, origins: Origins) -> tuple[str, str]:
    """Return the hash of the browser's nonce, or of a new one, and the Set-Cookie value for it."""
    known = find_nonces(head, origins)
    nonce = known[0].decode() if known else secrets.token_hex(16)
    secure = "; Secure" if origins.secure else ""
    name = _name_prefix(origins) + nonce[:_NAME_LENGTH]
    # Lax: the browser comes back by a redirect from another site, where it would not send a Strict cookie.
    cookie = f"{name}={nonce}; Path=/; Max-Age={SECONDS}; HttpOnly; SameSite=Lax{secure}"
    return hash_of(nonce.encode()), cookie


def _name_prefix(origins: Origins) -> str:
    return cookie_name(ENTRY_COOKIE, secure=origins.secure)
