"""Requests as values: what to send, how long to wait, and whether it may be sent twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

from codehub.client.errors import ConfigurationError, InvalidRequest

API: Final = "/api/v1"
CONNECT_SECONDS: Final = 10.0
CALL_SECONDS: Final = 60.0
"""Time for a call whose answer is read as a whole, and for a pause in one that is not."""
MOST_ERROR_BYTES: Final = 1 << 20
MOST_ANSWER_BYTES: Final = 64 << 20
"""Of an answer that is read as a whole. The longest of the server's has 4 MiB."""


@dataclass(frozen=True)
class Request:
    """A request without its body's source, which only the transports can read."""

    method: str
    path: str
    """Below /api/v1."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    content: bytes | None = None
    seconds: float = CALL_SECONDS
    is_repeatable: bool = False
    """Whether sending it twice does the same as sending it once."""

    @property
    def is_delete(self) -> bool:
        return self.method == "DELETE"


def get(path: str, **query: object) -> Request:
    return Request("GET", path, query=query_of(**query), is_repeatable=True)


def query_of(**values: object) -> dict[str, str]:
    """Return query parameters. None leaves one out."""
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def segment(value: str, what: str) -> str:
    """Return a path segment; reject what would lead to another path."""
    if value in ("", ".", "..") or "/" in value:
        raise InvalidRequest(422, "VALIDATION_ERROR", f"{what}: {value!r} is not a valid id.")
    return quote(value, safe="")


@dataclass(frozen=True)
class Server:
    """A server's address, and what proves to it who calls."""

    url: str
    """Without a slash at the end, and without /api/v1."""
    token: str = field(repr=False, default="")
    cookie: str = field(repr=False, default="")
    """A session's, of a client that has signed in with a password."""

    @property
    def headers(self) -> dict[str, str]:
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        return {"Cookie": self.cookie} if self.cookie else {}

    @property
    def is_https(self) -> bool:
        return self.url.startswith("https:")


def normalized_url(text: str) -> str:
    """Return a server's address in its usual form, or raise ConfigurationError."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is not an address of a server: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{text!r} is not an address of a server. Use https://HOST or http://HOST:PORT."
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigurationError("The address of a server has no user name, password, query or fragment.")
    path = parts.path.rstrip("/").removesuffix(API)
    if path:
        raise ConfigurationError(f"CodeHub is served at the root of a host, not below {path}.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_default = port is None or port == {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}{'' if is_default else f':{port}'}"


def check_token(token: str) -> str:
    """Return the token without white space around it; reject what cannot stand in a header."""
    token = token.strip()
    if not token:
        raise ConfigurationError("The token is empty.")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError("The token has characters that no token has. Copy it again.")
    return token
