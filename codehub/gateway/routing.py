"""Where a request goes: decided from memory, or by an errand when something has to be looked up first."""

import re
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import structlog
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from codehub.database.engine import CONNECTION_ERRORS
from codehub.database.gateway_queries import Route, Visitor
from codehub.domain.ids import ULID
from codehub.domain.ports import parse_port, port_address
from codehub.domain.problems import InsufficientStorage, TooManyRequests
from codehub.domain.states import Operation, Phase
from codehub.gateway import cookies
from codehub.gateway.activity import FORWARDED, ActivityRecorder
from codehub.gateway.config import GatewayConfig
from codehub.gateway.cookie_guard import CookieGuard
from codehub.gateway.http1 import reply
from codehub.gateway.http1.exchange import Relay
from codehub.gateway.http1.head_rewrite import Forwarding, request_for_api, request_for_workspace
from codehub.gateway.http1.repeated_request import OWN, RepeatedRequest, may_repeat
from codehub.gateway.http1.reply import RETRY_AFTER, Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.origin_check import is_cross_origin
from codehub.gateway.page_forms import PageForms
from codehub.gateway.pages import Pages
from codehub.gateway.platform_tokens import target_holds_token
from codehub.gateway.port_errors import PortErrors
from codehub.gateway.response_policy import HSTS, policy_for_api, policy_for_workspace
from codehub.gateway.route_cache import NotCached, RouteCache
from codehub.gateway.workspace_entry import ENTER, WorkspaceEntry, WorkspaceRequest, requests_page
from codehub.no_space import insufficient_storage

logger = structlog.get_logger(__name__)

Decision = Relay | Reply | Coroutine[Any, Any, Relay | Reply]

_ENTRANCE = re.compile(rf"/w/({ULID})(?=[/?]|$)".encode())
_PORT = re.compile(rb"/(abs)?proxy/([^/?]*)")
_EVENTS: Final = b"/api/v1/events"
_HEALTH: Final = b"/healthz"
_INTERNAL: Final = frozenset((b"/readyz", b"/metrics"))
"""Served by the internal listener only. On the platform's host the API answers that there is nothing."""


class Router:
    def __init__(
        self,
        config: GatewayConfig,
        directory: RouteCache,
        recorder: ActivityRecorder,
        entrance: WorkspaceEntry,
        pages: Pages,
        cookie_key: bytes,
    ) -> None:
        self._config = config
        self._origins = config.origins
        self._directory = directory
        self._recorder = recorder
        self._entrance = entrance
        self._pages = pages
        self._forms = PageForms(config.origins, directory, pages)
        self._ports = PortErrors(pages)
        self._cookies = CookieGuard(config.origins, pages)
        self._api_policy = policy_for_api(config.origins)
        self._key = cookie_key
        self._internal_key = None if config.internal_key is None else config.internal_key.encode()

    def route(self, head: RequestHead, peer: str) -> Decision:
        decision = self._route(head, peer)
        return self._stay_on_https(head, decision) if isinstance(decision, Reply) else decision

    def _route(self, head: RequestHead, peer: str) -> Decision:
        host = self._origins.normal(head.host)
        if refusal := self._cookies.refuse(head, host):
            return refusal
        workspace_id = self._origins.workspace_of(host)
        if workspace_id is not None:
            return self._workspace_origin(head, peer, workspace_id, host)
        if host == self._origins.platform_host:
            return self._platform(head, peer)
        if (found := self._origins.port_of(host)) is not None:
            return self._port_origin(head, peer, host, *found)
        return self._elsewhere(head, peer, host)

    async def settle(self, errand: Coroutine[Any, Any, Relay | Reply], head: RequestHead) -> Relay | Reply:
        """The errand's outcome; a database or Redis that is away is a 503 that says so."""
        decision = await self._settle(errand, head)
        return self._stay_on_https(head, decision) if isinstance(decision, Reply) else decision

    async def _settle(self, errand: Coroutine[Any, Any, Relay | Reply], head: RequestHead) -> Relay | Reply:
        try:
            return await errand
        except (SQLAlchemyError, *CONNECTION_ERRORS, RedisError) as error:
            logger.warning("a request could not be decided", path=head.path.decode(), error=repr(error))
            if (full := insufficient_storage(error)) is not None:
                return self._no_space(head, full)
            if head.is_navigation:
                return self._pages.unavailable(head)
            return reply.error(503, "UNAVAILABLE", "CodeHub cannot answer just now.", retry_after=RETRY_AFTER)
        except TooManyRequests as problem:
            if head.is_navigation:
                return self._pages.refused(head, problem, head.target.decode())
            return reply.error(problem.status, problem.code, problem.message, retry_after=problem.retry_after)

    def _no_space(self, head: RequestHead, full: InsufficientStorage) -> Reply:
        if head.is_navigation:
            return self._pages.no_space(head)
        return reply.error(full.status, full.code, full.message, retry_after=RETRY_AFTER)

    def refuse_too_large(self, data: bytes) -> Reply | None:
        return self._cookies.refuse_too_large(data)

    def unreachable(self, head: RequestHead, relay: Relay) -> Reply:
        if relay.port:
            answer = self._ports.unreachable(head, relay.port, relay.upstream)
        elif head.is_navigation:
            answer = self._pages.unreachable(head, for_workspace=bool(relay.workspace_id))
        else:
            answer = reply.error(502, "UPSTREAM_UNAVAILABLE", "The upstream does not answer.")
        return self._stay_on_https(head, answer)

    def _stay_on_https(self, head: RequestHead, answer: Reply) -> Reply:
        """Add HSTS to an answer of the gateway itself. Those of upstreams get it by their policy."""
        origins, host = self._origins, self._origins.normal(head.host)
        if host == origins.platform_host:
            stays = origins.platform_stays_on_https
        else:
            stays = origins.workspaces_stay_on_https and origins.is_app_host(host)
        return replace(answer, headers=(*answer.headers, HSTS)) if stays else answer

    def unavailable(self) -> Reply:
        words = "The workspace is not running, or you are no longer signed in."
        return reply.error(503, "UPSTREAM_UNAVAILABLE", words, close=True, retry_after=RETRY_AFTER)

    # The platform

    def _platform(self, head: RequestHead, peer: str) -> Decision:
        if head.target.startswith(b"/w/") and (match := _ENTRANCE.match(head.target)):
            if target_holds_token(head.target):
                return self._token_in_address(head)
            rest = head.target[match.end() :]
            if not rest.startswith(b"/"):
                location = f"{self._origins.platform}{(match[0] + b'/' + rest).decode()}"
                return reply.redirect(location, status=308)
            place = WorkspaceRequest(head, peer, match[1].decode(), rest, b"", base=match[0])
            if rest.startswith(OWN):
                if rest.partition(b"?")[0] == ENTER.encode() and not self._origins.path_mode:
                    return self._at_entry(place)
                return self._forms.handle(place, self._client_text(head, peer))
            if (forwarded := _PORT.match(rest)) and (self._origins.path_mode or not forwarded[1]):
                return self._at_port(place, forwarded)
            return self._at_entrance(place)
        return self._api(head, peer)

    def _at_port(self, visit: WorkspaceRequest, forwarded: re.Match[bytes]) -> Decision:
        """The same two ways as code-server's own: what is told its base sees the whole path."""
        port, rest = parse_port(forwarded[2].decode()), visit.target[forwarded.end() :]
        if port is None:
            return self._ports.none(visit.head)
        base = visit.base + forwarded[0]
        if not rest.startswith(b"/"):
            return reply.redirect(f"{self._origins.platform}{(base + b'/' + rest).decode()}", status=308)
        visit.port, visit.base = port, base
        visit.target = visit.head.target if forwarded[1] else rest
        return self._at_entrance(visit)

    def _api(self, head: RequestHead, peer: str) -> Decision:
        wire = request_for_api(head, self._forwarding(head, peer), self._internal_key)
        relay = Relay(self._config.api_upstream, wire)
        if self._origins.normal(head.host) == self._origins.platform_host:
            relay.policy = self._api_policy
        if unquote_to_bytes(head.path) != _EVENTS:  # as the API reads it
            return relay
        relay.is_stream = True
        sessions = cookies.cookie_values(head.get(b"cookie"), self._origins.session_cookie)
        return self._stream_of(sessions[0], relay, self._client_text(head, peer)) if sessions else relay

    async def _stream_of(self, session: bytes, relay: Relay, address: str) -> Relay:
        relay.session_hash = cookies.session_hash(session)
        visitor = await self._directory.find_visitor(relay.session_hash, address)
        relay.role = visitor.role if visitor else None
        return relay

    def _elsewhere(self, head: RequestHead, peer: str, host: str) -> Decision:
        if head.path == _HEALTH:
            return self._api(head, peer)
        if head.path in _INTERNAL:
            return reply.error(404, "NOT_FOUND", "There is nothing here.")
        if host in self._origins.aliases:
            if head.is_navigation:
                return reply.redirect(self._origins.platform + head.target.decode())
            if not head.target.startswith(b"/w/"):
                return self._api(head, peer)
        if head.is_navigation:
            return self._pages.misdirected(head)
        words = f"This is not {self._origins.platform}, nor the address of a workspace."
        return reply.error(421, "MISDIRECTED", words)

    def _at_entry(self, visit: WorkspaceRequest) -> Decision:
        """Continue a visit that comes back from the workspace's origin with a nonce."""
        if self._entrance.read_entry(visit):
            return self._at_entrance(visit)
        return self._start_over(visit)

    def _at_entrance(self, visit: WorkspaceRequest) -> Decision:
        head = visit.head
        if self._origins.path_mode and is_cross_origin(head, self._origins, self._origins.platform):
            return _foreign()
        values = cookies.cookie_values(head.get(b"cookie"), self._origins.session_cookie)
        if not values:
            return self._sign_in(visit)
        visit.session_hash = cookies.session_hash(values[0])
        visitor = self._directory.visitor(visit.session_hash)
        route = self._directory.route(visit.workspace_id)
        if isinstance(visitor, NotCached) or isinstance(route, NotCached):
            return self._look_up(visit, at_entrance=True)
        return self._enter(visit, visitor, route)

    async def _look_up(self, visit: WorkspaceRequest, *, at_entrance: bool) -> Relay | Reply:
        address = self._client_text(visit.head, visit.peer)
        visitor = await self._directory.find_visitor(visit.session_hash, address)
        route = await self._directory.load_route(visit.workspace_id) if visitor else None
        if visitor and not self._directory.remembers(visit.session_hash):
            # The session may have ended while the route was looked up; nobody would end what opens now.
            visitor = await self._directory.load_visitor(visit.session_hash)
        decide = self._enter if at_entrance else self._connect
        decision = decide(visit, visitor, route)
        return decision if isinstance(decision, Relay | Reply) else await decision

    def _enter(self, visit: WorkspaceRequest, visitor: Visitor | None, route: Route | None) -> Decision:
        head = visit.head
        if visitor is None or visitor.expires_at <= time.time():
            return self._sign_in(visit)
        if refusal := self._refusal(head, visitor, route):
            return refusal
        assert route is not None
        if _is_connectable(route, head):
            if self._origins.path_mode:
                return self._relay(visit, visitor, route)
            if requests_page(head):
                return self._entrance.admit(visit)
            return reply.error(403, "FORBIDDEN", "A workspace is opened by navigating to it.")
        if head.is_navigation:
            if visit.nonce_hash:  # a page stays open for longer than a nonce lives
                return self._start_over(visit)
            return self._entrance.page(visit, visitor)
        return _not_running()

    def _sign_in(self, visit: WorkspaceRequest) -> Reply:
        head = visit.head
        if visit.nonce_hash:
            return self._start_over(visit)
        if head.is_navigation:
            target = quote(head.target.decode(), safe="/")
            return reply.redirect(f"{self._origins.platform}/login?next={target}")
        return reply.error(401, "UNAUTHORIZED", "Sign in first.")

    # A workspace's own origin

    def _workspace_origin(
        self, head: RequestHead, peer: str, workspace_id: str, host: str, port: int = 0
    ) -> Decision:
        if target_holds_token(head.target):
            return self._token_in_address(head)
        own = self._origins.workspace_origin(workspace_id, port)
        if is_cross_origin(head, self._origins, own, workspace_id):
            return _foreign()
        if head.target.startswith(OWN):
            return self._entrance.at_workspace(head, workspace_id, port)
        grant = self._grant(head, workspace_id, host)
        if grant is None:
            if head.is_navigation:
                return self._entrance.begin(head, workspace_id, port, head.target.decode())
            return _not_opened()
        visit = WorkspaceRequest(
            head, peer, workspace_id, head.target, grant.session_hash, grant.expires_at, port
        )
        visitor = self._directory.visitor(grant.session_hash)
        route = self._directory.route(workspace_id)
        if isinstance(visitor, NotCached) or isinstance(route, NotCached):
            return self._look_up(visit, at_entrance=False)
        return self._connect(visit, visitor, route)

    def _port_origin(
        self, head: RequestHead, peer: str, host: str, workspace_id: str, port: int | None
    ) -> Decision:
        if port is None:
            return self._ports.none(head)
        return self._workspace_origin(head, peer, workspace_id, host, port)

    def _connect(self, visit: WorkspaceRequest, visitor: Visitor | None, route: Route | None) -> Decision:
        head = visit.head
        if visitor is None or visitor.expires_at <= time.time():
            return self._to_entrance(visit)
        if refusal := self._refusal(head, visitor, route):
            return refusal
        assert route is not None
        if _is_connectable(route, head):
            return self._relay(visit, visitor, route)
        if head.is_navigation:
            return self._to_entrance(visit)
        return _not_running()

    def _grant(self, head: RequestHead, workspace_id: str, host: str) -> cookies.CookieGrant | None:
        now = time.time()
        for value in cookies.cookie_values(head.get(b"cookie"), self._origins.workspace_cookie):
            if grant := cookies.verify(self._key, value, workspace_id, host, now):
                return grant
        return None

    def _to_entrance(self, visit: WorkspaceRequest) -> Reply:
        return self._start_over(visit) if visit.head.is_navigation else _not_opened()

    # Both

    def _start_over(self, visit: WorkspaceRequest) -> Reply:
        """Send the visit to the plain address of the entrance."""
        entrance = self._origins.entrance(visit.workspace_id, visit.port)
        return reply.redirect(f"{entrance}{visit.target.decode()}")

    def _token_in_address(self, head: RequestHead) -> Reply:
        """Refuse an address that would show a token to the workspace, its logs and its pages."""
        if head.is_navigation:
            return self._pages.token_in_address(head)
        message = "The address holds a CodeHub token. Send it to the API only, in the Authorization field."
        return reply.error(400, "BAD_REQUEST", message)

    def _refusal(self, head: RequestHead, visitor: Visitor, route: Route | None) -> Reply | None:
        if route is None or route.phase in (Phase.DELETING, Phase.DELETED):
            if head.is_navigation:
                return self._pages.missing(head)
            return reply.error(404, "WORKSPACE_NOT_FOUND", "There is no such workspace.")
        if route.owner_id != visitor.user_id:
            if head.is_navigation:
                return self._pages.forbidden(head)
            return reply.error(403, "FORBIDDEN", "This workspace belongs to someone else.")
        return None

    def _relay(self, visit: WorkspaceRequest, visitor: Visitor, route: Route) -> Relay | Reply:
        assert route.upstream is not None
        if visit.port:
            return self._relay_to_port(visit, visitor, route, route.upstream)
        head, kind = visit.head, self._config.activity.get(route.image_ref, "any")
        self._recorder.request(head, visit.target, kind, route.workspace_id)
        wire = request_for_workspace(
            head, visit.target, self._forwarding(head, visit.peer), strip_extensions=kind == "vscode"
        )
        always_counts = kind == "any" or head.is_navigation
        if kind == "vscode" and visit.target.startswith(FORWARDED):
            kind = "any"  # what listens on a forwarded port is not VS Code
        fresh = b"reconnection=false" in visit.target
        relay = Relay(route.upstream, wire, route.workspace_id, visit.session_hash, visitor.role, kind, fresh)
        relay.own_origin = not self._origins.path_mode
        relay.policy = policy_for_workspace(head, self._origins, route.workspace_id, visit.port)
        return _with_passage(relay, visit, visitor, route, always_counts=always_counts)

    def _relay_to_port(
        self, visit: WorkspaceRequest, visitor: Visitor, route: Route, ide: str
    ) -> Relay | Reply:
        head, upstream = visit.head, port_address(ide, visit.port)
        if upstream is None:
            return self._ports.off(head)
        forwarding = self._forwarding(head, visit.peer)
        if visit.target != head.target:
            forwarding.prefix = visit.base
        wire = request_for_workspace(head, visit.target, forwarding, strip_extensions=False)
        relay = Relay(upstream, wire, route.workspace_id, visit.session_hash, visitor.role, port=visit.port)
        relay.own_origin = not self._origins.path_mode
        relay.policy = policy_for_workspace(head, self._origins, route.workspace_id, visit.port)
        return _with_passage(relay, visit, visitor, route, always_counts=False)

    def _forwarding(self, head: RequestHead, peer: str) -> Forwarding:
        return Forwarding(self._client_address(head, peer), head.host, self._origins.scheme)

    def _client_text(self, head: RequestHead, peer: str) -> str:
        return self._client_address(head, peer).decode("latin-1")

    def _client_address(self, head: RequestHead, peer: str) -> bytes:
        client = peer.encode()
        if peer in self._config.trusted_proxies and b"x-forwarded-for" in head.fields:
            client = head.get(b"x-forwarded-for").rpartition(b",")[2].strip() or client
        return client


def _is_connectable(route: Route, head: RequestHead) -> bool:
    """While an operation runs, what is open goes on, but a new page waits for the end of it."""
    if route.phase is not Phase.RUNNING or route.upstream is None:
        return False
    return route.operation is Operation.NONE or not head.is_navigation


def _with_passage(
    relay: Relay, visit: WorkspaceRequest, visitor: Visitor, route: Route, *, always_counts: bool
) -> Relay:
    head = visit.head
    if may_repeat(head):
        relay.passage = RepeatedRequest(
            head,
            relay,
            cut=len(head.target) - len(visit.target),
            base=visit.base,
            always_counts=always_counts,
            visitor=visitor,
            route=route,
            expires_at=min(visitor.expires_at, visit.expires_at),
        )
    return relay


def _foreign() -> Reply:
    return reply.error(403, "FORBIDDEN", "Another site's page may not ask this.")


def _not_opened() -> Reply:
    return reply.error(401, "UNAUTHORIZED", "Open this workspace from CodeHub first.")


def _not_running() -> Reply:
    return reply.error(503, "UPSTREAM_UNAVAILABLE", "The workspace is not running.", retry_after=RETRY_AFTER)
