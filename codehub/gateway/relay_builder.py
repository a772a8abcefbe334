"""Builder of relays: requests as the API, a workspace or one of its ports receives them."""

from codehub.database.gateway_queries import Route, SessionUser
from codehub.domain.ports import port_address
from codehub.gateway.activity import PORT_PATHS, ActivityRecorder
from codehub.gateway.config import GatewayConfig
from codehub.gateway.http1.head_rewrite import Forwarding, request_for_api, request_for_workspace
from codehub.gateway.http1.relay import Relay
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.response_policy import ResponsePolicy, policy_for_api, policy_for_workspace
from codehub.gateway.workspace_request import WorkspaceRequest


class RelayBuilder:
    """Builder of the relays of permitted requests."""

    def __init__(self, config: GatewayConfig, recorder: ActivityRecorder) -> None:
        self._config = config
        self._origins = config.origins
        self._recorder = recorder
        self._api_policy = policy_for_api(config.origins)
        self._access_key = None if config.access_key is None else config.access_key.encode()
        self._internal_key = None if config.internal_key is None else config.internal_key.encode()

    def to_api(self, head: RequestHead, peer: str) -> Relay:
        wire = request_for_api(head, self._forwarding(head, peer), self._internal_key)
        return Relay(self._config.api_upstream, wire, policy=self._policy_for_api(head))

    def to_access(self, head: RequestHead, peer: str) -> Relay:
        """Build the relay to the access part."""
        wire = request_for_api(
            head, self._forwarding(head, peer), self._access_key, websocket=head.wants_websocket
        )
        return Relay(self._config.access_upstream, wire, is_slow=True, policy=self._policy_for_api(head))

    def _policy_for_api(self, head: RequestHead) -> ResponsePolicy | None:
        is_platform = self._origins.normal(head.host) == self._origins.platform_host
        return self._api_policy if is_platform else None

    def to_workspace(self, request: WorkspaceRequest, session_user: SessionUser, route: Route) -> Relay:
        """Build the relay to a running workspace's IDE, and record the request if it is activity."""
        assert route.upstream is not None
        head, kind = request.head, self._config.activity.get(route.image_ref, "any")
        self._recorder.record_request(head, request.target, kind, route.workspace_id)
        forwarding = self._forwarding(head, request.peer)
        wire = request_for_workspace(head, request.target, forwarding, strip_extensions=kind == "vscode")
        always_counts = kind == "any" or head.is_navigation
        if kind == "vscode" and request.target.startswith(PORT_PATHS):
            kind = "any"  # what listens on a forwarded port is not VS Code
        fresh = b"reconnection=false" in request.target
        relay = Relay(
            route.upstream, wire, route.workspace_id, request.session_hash, session_user, kind, fresh
        )
        relay.always_counts = always_counts
        return self._complete(relay, request, route)

    def to_port(self, request: WorkspaceRequest, session_user: SessionUser, route: Route) -> Relay | None:
        """Build the relay to a port of a running workspace (ADR 0013); None if its ports are off."""
        assert route.upstream is not None
        head, upstream = request.head, port_address(route.upstream, request.port)
        if upstream is None:
            return None
        forwarding = self._forwarding(head, request.peer)
        if request.target != head.target:
            forwarding.prefix = request.base
        wire = request_for_workspace(head, request.target, forwarding, strip_extensions=False)
        relay = Relay(
            upstream, wire, route.workspace_id, request.session_hash, session_user, port=request.port
        )
        return self._complete(relay, request, route)

    def _complete(self, relay: Relay, request: WorkspaceRequest, route: Route) -> Relay:
        relay.own_origin = not self._origins.path_mode
        relay.policy = policy_for_workspace(request.head, self._origins, route.workspace_id, request.port)
        relay.route = route
        relay.request = request
        return relay

    def _forwarding(self, head: RequestHead, peer: str) -> Forwarding:
        return Forwarding(self.client_address(head, peer).encode(), head.host, self._origins.scheme)

    def client_address(self, head: RequestHead, peer: str) -> str:
        """Return the client's address, which a trusted proxy in front may name."""
        proxies = self._config.trusted_proxies
        if peer in proxies and b"x-forwarded-for" in head.fields:
            return proxies.client_address(peer, head.get(b"x-forwarded-for"))
        return peer
