"""Whose page asks: a workspace's own pages may, other workspaces' may not."""

from typing import Final

from codehub.gateway.config import Origins
from codehub.gateway.http1.request_head import RequestHead

_OWN_SITES: Final = (None, b"same-origin", b"none")


def is_cross_origin(head: RequestHead, origins: Origins, own: str, workspace_id: str = "") -> bool:
    """Whether another origin's page asks, other than by sending the person here.

    Pages of one workspace, its IDE's and its ports', may ask each other. Where a browser sends no Origin
    (pictures, styles, frames), the Referer tells, which no page can make say another origin than its own.
    """
    if head.is_navigation and (head.sends_fetch_metadata or b"origin" not in head.fields):
        return False
    asking = asking_origin(head)
    if asking in (b"", own.encode()) and head.fields.get(b"sec-fetch-site") in _OWN_SITES:
        return False
    return not workspace_id or not origins.is_of_workspace(asking.decode("latin-1"), workspace_id)


def asking_origin(head: RequestHead) -> bytes:
    """Return the origin of the page that asks, or nothing when the browser does not name it."""
    return head.fields.get(b"origin") or _origin_of(head.fields.get(b"referer", b""))


def _origin_of(url: bytes) -> bytes:
    return b"/".join(url.split(b"/", 3)[:3])
