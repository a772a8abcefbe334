"""Entry of a workspace: its page on the platform, and the ticket that leads to its origin.

Each workspace has an origin (ADR 0005), and a ticket is bound to one browser (ADR 0022).
"""

import re
from typing import Final, Protocol
from urllib.parse import parse_qs, quote, urlencode

from codehub.bus.tickets import Ticket
from codehub.database.gateway_queries import SessionUser, StatusPageData
from codehub.domain.audit import network_of
from codehub.domain.other_backends import left_alone_message
from codehub.domain.ports import parse_port
from codehub.domain.problems import OperationInProgress, Problem, RunningLimitExceeded, WorkspaceNotFound
from codehub.domain.reserved_paths import BEGIN_PATH, ENTER_PATH
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.gateway import cookies, entry_nonce, refusals
from codehub.gateway.config import Origins
from codehub.gateway.http1 import reply
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.http1.route_result import PendingRoute
from codehub.gateway.pages import Pages
from codehub.gateway.route_cache import RouteCache
from codehub.gateway.workspace_request import WorkspaceRequest
from codehub.rate_limits import FairQueue

_BEGIN: Final = BEGIN_PATH.encode()
_ENTER: Final = ENTER_PATH.encode()
TICKETS_AT_ONCE: Final = 8
TICKETS_WAITING: Final = 256
"""Tickets of all networks. Anyone can send invented ones."""
TOO_MANY_TICKETS: Final = "Too many workspaces are being opened at this moment. Try again shortly."
_MAX_VALUES: Final = 16
_ESCAPED = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*+")
_LOCAL_PATH = re.compile(r"/[!-\"$-~]*")  # printable, without a fragment


class Tickets(Protocol):
    async def issue(self, ticket: Ticket) -> str: ...

    async def consume(self, token: str) -> Ticket | None: ...


class WorkspaceEntry:
    """Redirects between the platform and the workspaces' origins, and the pages of the entry."""

    def __init__(
        self, origins: Origins, route_cache: RouteCache, tickets: Tickets, pages: Pages, cookie_key: bytes
    ) -> None:
        self._origins = origins
        self._route_cache = route_cache
        self._tickets = tickets
        self._pages = pages
        self._key = cookie_key
        self._ticket_queue = FairQueue(TICKETS_AT_ONCE, TICKETS_WAITING, TOO_MANY_TICKETS)

    def begin(self, head: RequestHead, workspace_id: str, port: int, to: str) -> Reply:
        """Give the browser a nonce on the workspace's origin, and send it to the platform for a ticket."""
        nonce_hash, cookie = entry_nonce.renew_nonce(head, self._origins)
        query = {"nonce": nonce_hash, "to": to, **({"port": str(port)} if port else {})}
        url = f"{self._origins.entry_url(workspace_id)}{ENTER_PATH}?{_encode_query(query)}"
        return reply.redirect(url, ("Set-Cookie", cookie))

    def read_enter_query(self, request: WorkspaceRequest) -> bool:
        """Read port, target and nonce from the query that `begin` made; False if it has no nonce."""
        query = parse_query(request.target)
        request.port = parse_port(query.get("port", "")) or 0
        request.target = local_path(query.get("to", "/")).encode()
        request.nonce_hash = query.get("nonce", "")
        return entry_nonce.is_hash(request.nonce_hash)

    def send_to_workspace(self, request: WorkspaceRequest, session_user: SessionUser) -> Reply | PendingRoute:
        """Redirect a checked session to the workspace's origin, or to the one of its port."""
        if request.nonce_hash:
            return PendingRoute(self._issue_ticket(request, session_user))
        origin = self._origins.workspace_origin(request.workspace_id, request.port)
        return reply.redirect(f"{origin}{BEGIN_PATH}?{_encode_query({'to': request.target.decode()})}")

    async def _issue_ticket(self, request: WorkspaceRequest, session_user: SessionUser) -> Reply:
        host = self._origins.workspace_host(request.workspace_id, request.port)
        ticket = Ticket(request.session_hash.hex(), request.workspace_id, host, request.nonce_hash)
        async with self._route_cache.slot(session_user.user_id):
            token = await self._tickets.issue(ticket)
        query = {"ticket": token, "to": request.target.decode()}
        origin = self._origins.workspace_origin(request.workspace_id, request.port)
        return reply.redirect(f"{origin}{ENTER_PATH}?{_encode_query(query)}")

    def handle_reserved_path(
        self, head: RequestHead, workspace_id: str, port: int, address: str
    ) -> Reply | PendingRoute:
        """Reply to a request below `/.codehub/` on the origin of a workspace or a port."""
        query = parse_query(head.target)
        to = local_path(query.get("to", "/"))
        if head.path == _BEGIN and head.method in (b"GET", b"HEAD"):
            if requests_page(head):
                return self.begin(head, workspace_id, port, to)
            return refusals.not_entered()
        if head.path == _ENTER and head.method == b"GET":
            token = query.get("ticket", "")
            return PendingRoute(self._redeem_ticket(head, workspace_id, port, token, to, address))
        return refusals.not_found()

    async def _redeem_ticket(
        self, head: RequestHead, workspace_id: str, port: int, token: str, to: str, address: str
    ) -> Reply:
        """Exchange the ticket for the workspace-only cookie."""
        host = self._origins.workspace_host(workspace_id, port)
        async with self._ticket_queue.slot(network_of(address) or "unknown"):
            ticket = await self._tickets.consume(token)
        entry = f"{self._origins.entry_url(workspace_id, port)}{to}"
        if ticket is None or ticket.workspace_id != workspace_id or ticket.host != host:
            return _reissue_ticket(head, entry)
        if ticket.nonce_hash not in map(entry_nonce.hash_of, entry_nonce.find_nonces(head, self._origins)):
            return self._other_browser(head, entry)
        session_hash = bytes.fromhex(ticket.session_hash)
        session_user = await self._route_cache.load_session_user(session_hash)
        if session_user is None:
            return _reissue_ticket(head, entry)
        cookie = self._cookie(session_hash, session_user, workspace_id, host)
        origin = self._origins.workspace_origin(workspace_id, port)
        return reply.redirect(f"{origin}{to}", ("Set-Cookie", cookie))

    def _other_browser(self, head: RequestHead, entry: str) -> Reply:
        """Refuse a ticket without its nonce. Restarting would loop in a browser that blocks cookies."""
        if head.is_navigation:
            return self._pages.other_browser(head, entry)
        return reply.error(
            403, "FORBIDDEN", "This ticket was issued to another browser, or cookies are blocked."
        )

    def show_page(self, request: WorkspaceRequest, session_user: SessionUser) -> PendingRoute:
        """Show the page of a workspace that cannot be connected to now. This may wake the workspace."""
        return PendingRoute(self._page(request, session_user))

    async def _page(self, request: WorkspaceRequest, session_user: SessionUser) -> Reply:
        async with self._route_cache.slot(session_user.user_id):
            return await self._make_page(request, session_user)

    async def _make_page(self, request: WorkspaceRequest, session_user: SessionUser) -> Reply:
        head = request.head
        data = await self._route_cache.source.status_page_data(request.workspace_id)
        if data is None or data.workspace.phase in (Phase.DELETING, Phase.DELETED):
            return self._pages.missing(head)
        workspace = data.workspace
        if left_alone_message(workspace) is not None:
            return self._pages.left_alone(head, workspace)
        if workspace.operation is not Operation.NONE or workspace.request is not None:
            return self._pages.loading(head, workspace, data.home)
        if workspace.phase is Phase.ERROR:
            return self._pages.error(head, data)
        if workspace.phase is Phase.STANDBY:
            cause = _why_confirmation_needed(data)
            if cause is not None:
                return self._pages.stopped(head, data, cause)
            return await self._wake(request, session_user)
        if workspace.phase is Phase.RUNNING or workspace.desired_state is DesiredState.RUNNING:
            return self._pages.loading(head, workspace)
        if workspace.phase is Phase.ARCHIVED:
            return self._pages.archived(head, workspace)
        return self._pages.pending(head, workspace)

    async def _wake(self, request: WorkspaceRequest, session_user: SessionUser) -> Reply:
        head, source, problem = request.head, self._route_cache.source, None
        try:
            await source.wake(request.workspace_id, session_user.username)
        except WorkspaceNotFound:
            return self._pages.missing(head)
        except RunningLimitExceeded as error:
            counted = await source.counted_workspaces(session_user.user_id, besides=request.workspace_id)
            return self._pages.over_the_limit(head, error.message, counted)
        except OperationInProgress:
            pass  # the loading page retries when that operation ends
        except Problem as error:
            problem = error
        data = await source.status_page_data(request.workspace_id)
        if data is None:
            return self._pages.missing(head)
        if problem is not None:
            return self._pages.error(head, data)
        return self._pages.loading(head, data.workspace, data.home)

    def _cookie(self, session_hash: bytes, session_user: SessionUser, workspace_id: str, host: str) -> str:
        grant = cookies.CookieGrant(session_hash, int(session_user.expires_at))
        value = cookies.sign(self._key, grant, workspace_id, host)
        secure = "; Secure" if self._origins.secure else ""
        name = self._origins.workspace_cookie.decode()
        return f"{name}={value}; Path=/; HttpOnly; SameSite=Lax{secure}"


def _why_confirmation_needed(data: StatusPageData) -> str | None:
    """Return why only a click starts this workspace, or None if opening its page does.

    If a workspace was stopped because the disk was full, or its start was given up, each reload of an
    open tab would otherwise repeat that.
    """
    workspace, home = data.workspace, data.home
    if workspace.desired_state is DesiredState.RUNNING:
        return None
    if home is not None and home.stopped_at is not None and home.notice is not None:
        return home.notice
    return workspace.error_message if workspace.error_reason is None else None


def _reissue_ticket(head: RequestHead, entry: str) -> Reply:
    """Reply to a ticket that is used, expired or for another host: the entry issues a new one."""
    if head.is_navigation:
        return reply.redirect(entry)
    return reply.error(401, "UNAUTHORIZED", "This ticket is not valid, or has expired.")


def requests_page(head: RequestHead) -> bool:
    """Return whether the request is for a page: a navigation, or any without fetch metadata."""
    return head.is_navigation or (head.method in (b"GET", b"HEAD") and not head.sends_fetch_metadata)


def parse_query(target: bytes) -> dict[str, str]:
    """Return the values in the query of a target that the gateway made; none if it made no such target."""
    query = target.decode().partition("?")[2]
    if query.count("&") >= _MAX_VALUES or not _ESCAPED.fullmatch(query):
        return {}
    return {name: values[0] for name, values in parse_qs(query).items()}


def _encode_query(query: dict[str, str]) -> str:
    return urlencode(query, safe="/", quote_via=quote)


def local_path(to: str) -> str:
    """Return `to` if it is a path and nothing else, or the root."""
    return to if _LOCAL_PATH.fullmatch(to) else "/"
