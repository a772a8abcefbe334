"""A request for a workspace, while it is being routed."""

import math
from dataclasses import dataclass

from codehub.gateway.http1.request_head import RequestHead


@dataclass(slots=True)
class WorkspaceRequest:
    """A request for a workspace or one of its ports, with the session that it shows."""

    head: RequestHead
    peer: str
    workspace_id: str
    target: bytes
    """The target that the workspace receives."""
    session_hash: bytes
    expires_at: float = math.inf
    """When the cookie that shows the session expires. The session itself may end earlier."""
    port: int = 0
    """0 for the IDE."""
    base: bytes = b""
    """The path below which every request goes to the same upstream."""
    nonce_hash: str = ""
    """Hash of the browser's nonce, if the request returns from the workspace's origin (ADR 0022)."""
