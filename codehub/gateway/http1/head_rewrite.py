"""Rewriting of request heads: removal of hop-by-hop fields, and of credentials for workspaces."""

from collections.abc import Iterable, Iterator
from typing import Final

from codehub.domain.internal_key_header import INTERNAL_KEY
from codehub.gateway.cookies import without_platform_cookies
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.platform_tokens import may_hold_token, without_tokens

# Hop-by-hop fields (RFC 9110, 7.6.1), and fields by which a client could claim another address or URL.
_DROPPED: Final = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization te trailer upgrade transfer-encoding "
    b"http2-settings proxy forwarded x-real-ip x-original-url x-rewrite-url".split()
)
_FORWARDING_PREFIXES: Final = (b"x-forwarded", b"x-codehub-")
_X: Final = ord("x")
_NEVER_NOMINATED: Final = frozenset(
    b"host content-length transfer-encoding cookie authorization origin "
    b"sec-fetch-site sec-fetch-mode sec-fetch-dest".split()
)
"""Fields that the API or a workspace relies on: naming them in Connection does not remove them."""
_MERGED: Final = frozenset((b"cookie", b"sec-websocket-extensions"))
"""Fields whose lines are filtered together, and sent to a workspace as one."""


class Forwarding:
    """The X-Forwarded fields of a request."""

    __slots__ = ("client", "host", "prefix", "proto")

    def __init__(self, client: bytes, host: str, proto: str, prefix: bytes = b"") -> None:
        self.client = client
        self.prefix = prefix
        self.host = host.encode()
        self.proto = proto.encode()


def request_for_api(
    head: RequestHead,
    forwarding: Forwarding,
    internal_key: bytes | None = None,
    *,
    websocket: bool = False,
) -> bytes:
    """Return the request for the API, or with `websocket` perhaps set, for the access part."""
    wire = _request(head, head.target, head.fields, head.repeated, forwarding, websocket=websocket)
    if internal_key is None:
        return wire
    return b"%b%b: %b\r\n\r\n" % (wire[:-2], INTERNAL_KEY.encode(), internal_key)


def request_for_workspace(
    head: RequestHead, target: bytes, forwarding: Forwarding, *, strip_extensions: bool
) -> bytes:
    fields, repeated = dict(head.fields), head.repeated
    if repeated:
        repeated = [(name, value) for name, value in repeated if name not in _MERGED]
    if b"cookie" in fields:
        fields[b"cookie"] = without_platform_cookies(head.get(b"cookie"))
        if not fields[b"cookie"]:
            del fields[b"cookie"]
    if b"sec-websocket-extensions" in fields:
        fields[b"sec-websocket-extensions"] = head.get(b"sec-websocket-extensions")
        if strip_extensions:
            del fields[b"sec-websocket-extensions"]
    wire = _request(head, target, fields, repeated, forwarding, websocket=head.wants_websocket)
    if not may_hold_token(wire):
        return wire
    fields = dict(_without_tokens(fields.items()))
    repeated = list(_without_tokens(repeated))
    return _request(head, target, fields, repeated, forwarding, websocket=head.wants_websocket)


def _without_tokens(fields: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for name, value in fields:
        if (left := without_tokens(name, value)) is not None:
            yield name, left


def _request(
    head: RequestHead,
    target: bytes,
    fields: dict[bytes, bytes],
    repeated: list[tuple[bytes, bytes]],
    forwarding: Forwarding,
    *,
    websocket: bool,
) -> bytes:
    dropped = _DROPPED | _nominated(head) if b"connection" in head.fields else _DROPPED
    lines = [b"%b %b HTTP/1.%d" % (head.method, target, head.minor)]
    lines += [
        name + b": " + value
        for name, value in (*fields.items(), *repeated)
        if name not in dropped and not (name[0] == _X and _is_forwarding_field(name))
    ]
    if websocket:
        lines.append(b"connection: Upgrade\r\nupgrade: websocket")
    elif head.minor == 0:
        lines.append(b"connection: close")
    if head.chunked:
        lines.append(b"transfer-encoding: chunked")
    if forwarding.prefix:
        lines.append(b"x-forwarded-prefix: " + forwarding.prefix)
    lines.append(
        b"x-forwarded-for: %b\r\nx-forwarded-host: %b\r\nx-forwarded-proto: %b\r\n\r\n"
        % (forwarding.client, forwarding.host, forwarding.proto)
    )
    return b"\r\n".join(lines)


def _is_forwarding_field(name: bytes) -> bool:
    """Return whether this is an X-Forwarded or X-CodeHub field. CGI reads underscores as hyphens."""
    return name.replace(b"_", b"-").startswith(_FORWARDING_PREFIXES)


def _nominated(head: RequestHead) -> frozenset[bytes]:
    options = frozenset(option.strip() for option in head.get(b"connection").lower().split(b","))
    return options - _NEVER_NOMINATED
