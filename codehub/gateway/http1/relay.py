"""Request on its way to an upstream."""

from __future__ import annotations

from dataclasses import dataclass

from codehub.database.gateway_queries import Route, SessionUser
from codehub.domain.images import Activity
from codehub.gateway.http1.route_result import RouteResult
from codehub.gateway.response_policy import ResponsePolicy
from codehub.gateway.workspace_request import WorkspaceRequest


@dataclass(slots=True)
class Relay(RouteResult):
    """A permitted request, as its upstream receives it."""

    upstream: str
    wire: bytes
    workspace_id: str = ""
    """Empty for the API."""
    session_hash: bytes = b""
    """Hash of the session or token that permits the request; the connection ends with it."""
    session_user: SessionUser | None = None
    """The user of the session or token."""
    activity: Activity = "any"
    freshly_loaded: bool = False
    """A VS Code window's own first connection, not one made again after the network came back."""
    is_stream: bool = False
    """An event stream of the platform, which has no end."""
    is_slow: bool = False
    """A call of the access part, which may take long, and its body as slowly as a command reads it."""
    port: int = 0
    """The port of the workspace that the request is for; 0 for its IDE."""
    own_origin: bool = False
    """Whether the workspace has an origin for itself, and not the platform's."""
    policy: ResponsePolicy | None = None
    """Security headers to add to the response."""
    route: Route | None = None
    """The workspace's route, which a repeated request needs to be still in memory."""
    request: WorkspaceRequest | None = None
    always_counts: bool = False
    """Whether every request like this one is activity."""
