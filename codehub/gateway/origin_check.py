"""Check of the origin that sends a request: other workspaces' pages may not (ADR 0005)."""

from typing import Final

from codehub.gateway.config import Origins
from codehub.gateway.http1.request_head import RequestHead

_OWN_SITES: Final = (None, b"same-origin", b"none")


def is_cross_origin(head: RequestHead, origins: Origins, own: str, workspace_id: str = "") -> bool:
    """Return whether a page of another origin sends this request. Links that a person follows are fine.

    Pages of one workspace (IDE and ports) may send requests to each other. Where a browser sends no
    Origin (images, styles, frames), the Referer counts, in which a page cannot claim another origin.
    """
    if head.is_navigation and (head.sends_fetch_metadata or b"origin" not in head.fields):
        return False
    origin = requesting_origin(head)
    if origin in (b"", own.encode()) and head.fields.get(b"sec-fetch-site") in _OWN_SITES:
        return False
    return not workspace_id or not origins.is_of_workspace(origin.decode("latin-1"), workspace_id)


def requesting_origin(head: RequestHead) -> bytes:
    """Return the origin of the page that sends this, or nothing if the browser does not name it."""
    return head.fields.get(b"origin") or _origin_of(head.fields.get(b"referer", b""))


def _origin_of(url: bytes) -> bytes:
    return b"/".join(url.split(b"/", 3)[:3])
