"""Security headers that the gateway adds to answers of workspaces, of their ports, and of the API.

Over plain http on a public name browsers send no Sec-Fetch headers, and pages of other workspaces are
same-site. There only the browser can refuse to frame an answer or to load it: these headers make it do so.
"""

from dataclasses import dataclass
from typing import Final

from codehub.gateway.config import Origins
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.origin_check import asking_origin

HSTS: Final = "Strict-Transport-Security", "max-age=31536000"
"""Without includeSubDomains and preload: other services below these domains may not speak https."""
_HSTS_LINE: Final = b"%b: %b\r\n" % (HSTS[0].encode(), HSTS[1].encode())
_OWN: Final = b"Cross-Origin-Resource-Policy: same-origin\r\n"
_SHARED: Final = b"Cross-Origin-Resource-Policy: cross-origin\r\nVary: Origin, Referer\r\n"
"""For another origin of the same workspace. A third one must not find this answer in the browser's cache."""
_VARY_BY_SITE: Final = b"Vary: Sec-Fetch-Site\r\n"
"""Keeps the browser from giving another origin of the workspace an answer that only this one may load."""


@dataclass(frozen=True, slots=True)
class ResponsePolicy:
    ancestors: bytes
    """Who may frame the answer, as CSP sources; empty where the upstream decides."""
    others: bytes
    """Further header lines."""

    def lines(self, frame_options: bytes) -> bytes:
        """Return the header lines; `frame_options` are the values of the upstream's X-Frame-Options."""
        if not self.ancestors:
            return self.others
        ancestors = _translated(frame_options) or self.ancestors
        return b"Content-Security-Policy: frame-ancestors %b\r\n%b" % (ancestors, self.others)


def _translated(frame_options: bytes) -> bytes:
    """Browsers ignore X-Frame-Options beside frame-ancestors, so say the same in its words."""
    values = [value.strip() for value in frame_options.lower().split(b",")]
    if b"deny" in values:
        return b"'none'"
    return b"'self'" if b"sameorigin" in values else b""


def policy_for_workspace(head: RequestHead, origins: Origins, workspace_id: str, port: int) -> ResponsePolicy:
    """Let the IDE and the ports of one workspace frame and load each other, and nobody else."""
    hsts = _HSTS_LINE if origins.workspaces_stay_on_https else b""
    if origins.path_mode:
        return ResponsePolicy(b"'self'", _OWN + hsts)
    ancestors = ["'self'"]
    if port:
        ancestors.append(origins.workspace_origin(workspace_id))
    asking, own = asking_origin(head).decode("latin-1"), origins.workspace_origin(workspace_id, port)
    if asking != own and origins.is_of_workspace(asking, workspace_id):
        loading = _SHARED
        ancestors += [] if asking in ancestors else [asking]
    else:
        loading = _OWN + (_VARY_BY_SITE if b"sec-fetch-site" in head.fields else b"")
    return ResponsePolicy(" ".join(ancestors).encode(), loading + hsts)


def policy_for_api(origins: Origins) -> ResponsePolicy | None:
    return ResponsePolicy(b"", _HSTS_LINE) if origins.platform_stays_on_https else None
