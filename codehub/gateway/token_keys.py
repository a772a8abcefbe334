"""Keys of tokens beside those of sessions, in the caches and registries of the gateway.

A session's key is the SHA-256 of its id. A token's has a prefix, so that no cookie can name a token.
"""

from typing import Final

from codehub.database.tokens import hash_token
from codehub.domain.token_format import bearer_token, is_token
from codehub.gateway.http1.request_head import RequestHead

_PREFIX: Final = b"token:"


def token_key(token_hash: bytes) -> bytes:
    return _PREFIX + token_hash


def token_hash_of(key: bytes) -> bytes | None:
    """Return the hash of the token that a key stands for, or None if it stands for a session."""
    return key.removeprefix(_PREFIX) if key.startswith(_PREFIX) else None


def find_token_key(head: RequestHead) -> bytes | None:
    """Return the key of a request's Bearer token, empty for text that is no token; None without one."""
    fields = [head.fields[b"authorization"]] if b"authorization" in head.fields else []
    fields += [value for name, value in head.repeated if name == b"authorization"]
    token = bearer_token([field.decode("latin-1") for field in fields])
    if token is None:
        return None
    return token_key(hash_token(token)) if is_token(token) else b""
