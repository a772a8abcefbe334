"""Routing of requests to an upstream, or to a reply of the gateway.

Sessions and routes come from memory. Only when one is missing there, the result is a PendingRoute.
"""

import re
import time
from dataclasses import replace
from typing import Final
from urllib.parse import unquote_to_bytes

import structlog
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from codehub.database.engine import CONNECTION_ERRORS
from codehub.database.gateway_queries import Route, SessionUser
from codehub.domain.ids import ULID
from codehub.domain.ports import parse_port
from codehub.domain.problems import TooManyRequests
from codehub.domain.reserved_paths import ENTER_PATH, RESERVED_PREFIX
from codehub.domain.states import Operation, Phase
from codehub.domain.token_format import bearer_token, is_token
from codehub.gateway import cookies, refusals
from codehub.gateway.activity import ActivityRecorder
from codehub.gateway.config import GatewayConfig
from codehub.gateway.http1 import reply
from codehub.gateway.http1.relay import Relay
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.http1.route_result import PendingRoute, RouteResult
from codehub.gateway.origin_check import is_cross_origin
from codehub.gateway.page_form_handler import PageFormHandler
from codehub.gateway.pages import Pages
from codehub.gateway.planted_cookies import PlantedCookieCheck
from codehub.gateway.platform_tokens import target_holds_token
from codehub.gateway.port_errors import PortErrors
from codehub.gateway.refusals import Refusals
from codehub.gateway.relay_builder import RelayBuilder
from codehub.gateway.response_policy import HSTS
from codehub.gateway.route_cache import NotCached, RouteCache
from codehub.gateway.workspace_entry import WorkspaceEntry, requests_page
from codehub.gateway.workspace_request import WorkspaceRequest
from codehub.no_space import insufficient_storage

logger = structlog.get_logger(__name__)

_ENTRY = re.compile(rf"/w/({ULID})(?=[/?]|$)".encode())
_PORT = re.compile(rb"/(abs)?proxy/([^/?]*)")
_RESERVED: Final = RESERVED_PREFIX.encode()
_ENTER: Final = ENTER_PATH.encode()
_EVENTS: Final = b"/api/v1/events"
_ACCESS = re.compile(rf"/api/v1/workspaces/{ULID}/(?:execs|files|logs|archive|ports)(?=[/?]|$)".encode())
"""Calls that the access part serves."""
_HEALTH: Final = b"/healthz"
_INTERNAL: Final = frozenset((b"/readyz", b"/metrics"))
"""Served by the internal listener only (ADR 0021). On the platform's host the API answers 404."""


class Router:
    """Request router: chooses an upstream or a reply, unless the fast path applies."""

    def __init__(
        self,
        config: GatewayConfig,
        route_cache: RouteCache,
        recorder: ActivityRecorder,
        entry: WorkspaceEntry,
        pages: Pages,
        cookie_key: bytes,
    ) -> None:
        self._origins = config.origins
        self._route_cache = route_cache
        self._entry = entry
        self._relays = RelayBuilder(config, recorder)
        self._refusals = Refusals(config.origins, pages)
        self._forms = PageFormHandler(config.origins, route_cache, pages)
        self._port_errors = PortErrors(pages)
        self._planted_cookies = PlantedCookieCheck(config.origins, pages)
        self._pages = pages
        self._key = cookie_key
        self._has_access = bool(config.access_upstream)

    def route(self, head: RequestHead, peer: str) -> RouteResult:
        result = self._route(head, peer)
        return self._add_hsts(head, result) if isinstance(result, Reply) else result

    async def finish_lookup(self, lookup: PendingRoute, head: RequestHead) -> RouteResult:
        """Return the relay or reply that a lookup leads to; a 503 if PostgreSQL or Redis is unavailable."""
        result = await self._await_result(lookup, head)
        return self._add_hsts(head, result) if isinstance(result, Reply) else result

    def refuse_too_large(self, data: bytes) -> Reply | None:
        return self._planted_cookies.refuse_too_large(data)

    def unreachable(self, head: RequestHead, relay: Relay) -> Reply:
        if relay.port:
            answer = self._port_errors.unreachable(head, relay.port, relay.upstream)
        else:
            answer = self._refusals.unreachable(head, for_workspace=bool(relay.workspace_id))
        return self._add_hsts(head, answer)

    def too_many_fields(self, head: RequestHead, relay: Relay) -> Reply:
        answer = self._refusals.too_many_fields(head, for_workspace=bool(relay.workspace_id))
        return self._add_hsts(head, answer)

    def unavailable(self) -> Reply:
        return refusals.revoked()

    async def _await_result(self, lookup: PendingRoute, head: RequestHead) -> RouteResult:
        try:
            result: RouteResult = lookup
            while isinstance(result, PendingRoute):
                result = await result.result
            return result
        except (SQLAlchemyError, *CONNECTION_ERRORS, RedisError) as error:
            logger.warning("a request could not be decided", path=head.path.decode(), error=repr(error))
            if (full := insufficient_storage(error)) is not None:
                return self._refusals.no_space(head, full)
            return self._refusals.unavailable(head)
        except TooManyRequests as problem:
            return self._refusals.too_many_requests(head, problem)

    def _add_hsts(self, head: RequestHead, answer: Reply) -> Reply:
        """Add HSTS to a reply of the gateway. Those of upstreams get it by their policy."""
        origins, host = self._origins, self._origins.normal(head.host)
        if host == origins.platform_host:
            stays = origins.platform_stays_on_https
        else:
            stays = origins.workspaces_stay_on_https and origins.is_app_host(host)
        return replace(answer, headers=(*answer.headers, HSTS)) if stays else answer

    def _route(self, head: RequestHead, peer: str) -> RouteResult:
        host = self._origins.normal(head.host)
        if refusal := self._planted_cookies.refuse(head, host):
            return refusal
        workspace_id = self._origins.workspace_of(host)
        if workspace_id is not None:
            return self._route_workspace_origin(head, peer, workspace_id, host)
        if host == self._origins.platform_host:
            return self._route_platform(head, peer)
        if (found := self._origins.port_of(host)) is not None:
            workspace_id, port = found
            if port is None:
                return self._port_errors.no_such_port(head)
            return self._route_workspace_origin(head, peer, workspace_id, host, port)
        return self._route_other_host(head, peer, host)

    # The platform's origin

    def _route_platform(self, head: RequestHead, peer: str) -> RouteResult:
        if head.target.startswith(b"/w/") and (match := _ENTRY.match(head.target)):
            if target_holds_token(head.target):
                return self._refusals.token_in_target(head)
            rest = head.target[match.end() :]
            if not rest.startswith(b"/"):
                location = f"{self._origins.platform}{(match[0] + b'/' + rest).decode()}"
                return reply.redirect(location, status=308)
            request = WorkspaceRequest(head, peer, match[1].decode(), rest, b"", base=match[0])
            if rest.startswith(_RESERVED):
                return self._route_reserved_path(request)
            if (port_path := _PORT.match(rest)) and (self._origins.path_mode or not port_path[1]):
                return self._route_port_path(request, port_path)
            return self._route_entry(request)
        return self._route_api(head, peer)

    def _route_reserved_path(self, request: WorkspaceRequest) -> RouteResult:
        if request.target.partition(b"?")[0] == _ENTER and not self._origins.path_mode:
            # The browser returns from the workspace's origin with a nonce (ADR 0022).
            if self._entry.read_enter_query(request):
                return self._route_entry(request)
            return self._redirect_to_entry(request)
        return self._forms.handle(request, self._relays.client_address(request.head, request.peer))

    def _route_port_path(self, request: WorkspaceRequest, match: re.Match[bytes]) -> RouteResult:
        """Route `/proxy/PORT/` and `/absproxy/PORT/`.

        As in code-server, the app sees its whole path below the second, and what follows the first.
        """
        port, rest = parse_port(match[2].decode()), request.target[match.end() :]
        if port is None:
            return self._port_errors.no_such_port(request.head)
        base = request.base + match[0]
        if not rest.startswith(b"/"):
            return reply.redirect(f"{self._origins.platform}{(base + b'/' + rest).decode()}", status=308)
        request.port, request.base = port, base
        request.target = request.head.target if match[1] else rest
        return self._route_entry(request)

    def _route_api(self, head: RequestHead, peer: str) -> RouteResult:
        if target_holds_token(head.target):
            return self._refusals.token_in_target(head)
        if self._has_access and _ACCESS.match(head.target):
            return self._bind(self._relays.to_access(head, peer), head, peer)
        relay = self._relays.to_api(head, peer)
        if not _is_event_stream(head.path):
            return relay
        relay.is_stream = True
        return self._bind(relay, head, peer)

    def _bind(self, relay: Relay, head: RequestHead, peer: str) -> RouteResult:
        """Bind a call to its session or token, with which it ends. The part that serves it checks both."""
        address = self._relays.client_address(head, peer)
        token = bearer_token([head.get(b"authorization").decode("latin-1")])
        if token is not None:
            return self._with_token(relay, token, address)
        sessions = cookies.cookie_values(head.get(b"cookie"), self._origins.session_cookie)
        if not sessions:
            return relay
        return PendingRoute(self._add_session(relay, cookies.session_hash(sessions[0]), address))

    def _with_token(self, relay: Relay, token: str, address: str) -> RouteResult:
        """Return a relay that ends with its token. The part that serves it rejects an invalid one."""
        if not is_token(token):
            return relay
        return PendingRoute(self._add_token(relay, cookies.session_hash(token.encode()), address))

    async def _add_token(self, relay: Relay, token_hash: bytes, address: str) -> Relay:
        relay.session_hash = token_hash
        relay.session_user = await self._route_cache.find_token_user(token_hash, address)
        return relay

    async def _add_session(self, relay: Relay, session_hash: bytes, address: str) -> Relay:
        """Add the session to a relay, which ends with it."""
        relay.session_hash = session_hash
        relay.session_user = await self._route_cache.find_session_user(session_hash, address)
        return relay

    def _route_other_host(self, head: RequestHead, peer: str, host: str) -> RouteResult:
        if head.path == _HEALTH:
            return self._route_api(head, peer)
        if head.path in _INTERNAL:
            return refusals.not_found()
        if host in self._origins.aliases:
            if head.is_navigation:
                return reply.redirect(self._origins.platform + head.target.decode())
            if not head.target.startswith(b"/w/"):
                return self._route_api(head, peer)
        return self._refusals.misdirected(head)

    def _route_entry(self, request: WorkspaceRequest) -> RouteResult:
        """Route a request to a workspace's entry on the platform, `/w/{id}/`."""
        head = request.head
        if self._origins.path_mode and is_cross_origin(head, self._origins, self._origins.platform):
            return refusals.cross_origin()
        values = cookies.cookie_values(head.get(b"cookie"), self._origins.session_cookie)
        if not values:
            return self._sign_in(request)
        request.session_hash = cookies.session_hash(values[0])
        session_user = self._route_cache.session_user(request.session_hash)
        route = self._route_cache.route(request.workspace_id)
        if isinstance(session_user, NotCached) or isinstance(route, NotCached):
            return PendingRoute(self._look_up(request, at_entry=True))
        return self._enter(request, session_user, route)

    def _enter(
        self, request: WorkspaceRequest, session_user: SessionUser | None, route: Route | None
    ) -> RouteResult:
        head = request.head
        if session_user is None or session_user.expires_at <= time.time():
            return self._sign_in(request)
        if refusal := self._refusals.access(head, session_user, route):
            return refusal
        assert route is not None
        if _is_connectable(route, head):
            if self._origins.path_mode:
                return self._relay(request, session_user, route)
            if requests_page(head):
                return self._entry.send_to_workspace(request, session_user)
            return reply.error(403, "FORBIDDEN", "A workspace is opened by navigating to it.")
        if head.is_navigation:
            if request.nonce_hash:  # a page stays open for longer than a nonce is valid
                return self._redirect_to_entry(request)
            return self._entry.show_page(request, session_user)
        return refusals.not_running()

    def _sign_in(self, request: WorkspaceRequest) -> Reply:
        if request.nonce_hash:
            return self._redirect_to_entry(request)
        return self._refusals.not_signed_in(request.head)

    # The origin of a workspace or of one of its ports (ADR 0005, ADR 0013)

    def _route_workspace_origin(
        self, head: RequestHead, peer: str, workspace_id: str, host: str, port: int = 0
    ) -> RouteResult:
        if target_holds_token(head.target):
            return self._refusals.token_in_target(head)
        own = self._origins.workspace_origin(workspace_id, port)
        if is_cross_origin(head, self._origins, own, workspace_id):
            return refusals.cross_origin()
        if head.target.startswith(_RESERVED):
            address = self._relays.client_address(head, peer)
            return self._entry.handle_reserved_path(head, workspace_id, port, address)
        grant = self._cookie_grant(head, workspace_id, host)
        if grant is None:
            if head.is_navigation:
                return self._entry.begin(head, workspace_id, port, head.target.decode())
            return refusals.not_entered()
        request = WorkspaceRequest(
            head, peer, workspace_id, head.target, grant.session_hash, grant.expires_at, port
        )
        session_user = self._route_cache.session_user(grant.session_hash)
        route = self._route_cache.route(workspace_id)
        if isinstance(session_user, NotCached) or isinstance(route, NotCached):
            return PendingRoute(self._look_up(request, at_entry=False))
        return self._connect(request, session_user, route)

    def _connect(
        self, request: WorkspaceRequest, session_user: SessionUser | None, route: Route | None
    ) -> RouteResult:
        head = request.head
        if session_user is None or session_user.expires_at <= time.time():
            return self._redirect_to_entry(request) if head.is_navigation else refusals.not_entered()
        if refusal := self._refusals.access(head, session_user, route):
            return refusal
        assert route is not None
        if _is_connectable(route, head):
            return self._relay(request, session_user, route)
        return self._redirect_to_entry(request) if head.is_navigation else refusals.not_running()

    def _cookie_grant(self, head: RequestHead, workspace_id: str, host: str) -> cookies.CookieGrant | None:
        now = time.time()
        for value in cookies.cookie_values(head.get(b"cookie"), self._origins.workspace_cookie):
            if grant := cookies.verify(self._key, value, workspace_id, host, now):
                return grant
        return None

    # Both

    async def _look_up(self, request: WorkspaceRequest, *, at_entry: bool) -> RouteResult:
        address = self._relays.client_address(request.head, request.peer)
        session_user = await self._route_cache.find_session_user(request.session_hash, address)
        route = None
        if session_user is not None:
            route = await self._route_cache.find_route(request.workspace_id, session_user.user_id)
        if session_user and not self._route_cache.is_session_cached(request.session_hash):
            # If the session ended during the route's lookup, nothing would end what opens now.
            session_user = await self._route_cache.load_session_user(request.session_hash)
        decide = self._enter if at_entry else self._connect
        return decide(request, session_user, route)

    def _relay(self, request: WorkspaceRequest, session_user: SessionUser, route: Route) -> Relay | Reply:
        if not request.port:
            return self._relays.to_workspace(request, session_user, route)
        return self._relays.to_port(request, session_user, route) or self._port_errors.off(request.head)

    def _redirect_to_entry(self, request: WorkspaceRequest) -> Reply:
        """Redirect to the plain address of the workspace's entry, where everything begins again."""
        entry = self._origins.entry_url(request.workspace_id, request.port)
        return reply.redirect(f"{entry}{request.target.decode()}")


def _is_event_stream(path: bytes) -> bool:
    """Return whether the API decodes this to the path of its events. Longer paths are not decoded."""
    return len(path) <= 3 * len(_EVENTS) and unquote_to_bytes(path) == _EVENTS


def _is_connectable(route: Route, head: RequestHead) -> bool:
    """Return whether to relay. While an operation runs, open pages go on and new ones wait."""
    if route.phase is not Phase.RUNNING or route.upstream is None:
        return False
    return route.operation is Operation.NONE or not head.is_navigation
