"""Security headers that the gateway adds to responses of workspaces, of their ports, and of the API.

Over plain http on a public name browsers send no Sec-Fetch headers, and pages of other workspaces are
same-site. There only the browser can refuse to frame or load a response, which these headers demand.
"""

from dataclasses import dataclass
from typing import Final

from codehub.gateway.config import Origins
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.origin_check import requesting_origin

HSTS: Final = "Strict-Transport-Security", "max-age=31536000"
"""Without includeSubDomains and preload: other services below these domains may not speak https."""
_HSTS_LINE: Final = b"%b: %b\r\n" % (HSTS[0].encode(), HSTS[1].encode())
_OWN: Final = b"Cross-Origin-Resource-Policy: same-origin\r\n"
_SHARED: Final = b"Cross-Origin-Resource-Policy: cross-origin\r\nVary: Origin, Referer\r\n"
"""For another origin of the same workspace. A third origin must not get it from the browser's cache."""
_VARY_BY_SITE: Final = b"Vary: Sec-Fetch-Site\r\n"
"""Keeps the browser's cache from serving another origin what only this one may load."""


@dataclass(frozen=True, slots=True)
class ResponsePolicy:
    """Header lines for one response."""

    ancestors: bytes
    """Who may frame the response, as CSP sources. Empty if the upstream decides."""
    more: bytes
    """Further header lines."""

    def lines(self, frame_options: bytes) -> bytes:
        """Return the header lines; `frame_options` are the values of the upstream's X-Frame-Options."""
        if not self.ancestors:
            return self.more
        ancestors = _as_ancestors(frame_options) or self.ancestors
        return b"Content-Security-Policy: frame-ancestors %b\r\n%b" % (ancestors, self.more)


def _as_ancestors(frame_options: bytes) -> bytes:
    """Translate X-Frame-Options to CSP: browsers ignore it beside frame-ancestors."""
    values = [value.strip() for value in frame_options.lower().split(b",")]
    if b"deny" in values:
        return b"'none'"
    return b"'self'" if b"sameorigin" in values else b""


def policy_for_workspace(head: RequestHead, origins: Origins, workspace_id: str, port: int) -> ResponsePolicy:
    """Permit framing and loading only among the IDE and the ports of one workspace."""
    hsts = _HSTS_LINE if origins.workspaces_stay_on_https else b""
    if origins.path_mode:
        return ResponsePolicy(b"'self'", _OWN + hsts)
    ancestors = ["'self'"]
    if port:
        ancestors.append(origins.workspace_origin(workspace_id))
    origin, own = requesting_origin(head).decode("latin-1"), origins.workspace_origin(workspace_id, port)
    if origin != own and origins.is_of_workspace(origin, workspace_id):
        loading = _SHARED
        ancestors += [] if origin in ancestors else [origin]
    else:
        loading = _OWN + (_VARY_BY_SITE if b"sec-fetch-site" in head.fields else b"")
    return ResponsePolicy(" ".join(ancestors).encode(), loading + hsts)


def policy_for_api(origins: Origins) -> ResponsePolicy | None:
    return ResponsePolicy(b"", _HSTS_LINE) if origins.platform_stays_on_https else None
