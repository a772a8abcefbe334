"""The entrance of a workspace: the way in by ticket, and the pages while there is none."""

import math
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, quote, urlencode

from codehub.bus.tickets import Ticket
from codehub.database.gateway_queries import StatusPageData, Visitor
from codehub.domain.backends import left_alone_message
from codehub.domain.ports import parse_port
from codehub.domain.problems import OperationInProgress, Problem, RunningLimitExceeded, WorkspaceNotFound
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.gateway import cookies, entry_nonce
from codehub.gateway.config import Origins
from codehub.gateway.http1 import reply
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.pages import Pages
from codehub.gateway.route_cache import RouteCache

BEGIN: Final = "/.codehub/begin"
ENTER: Final = "/.codehub/enter"


class Tickets(Protocol):
    async def issue(self, ticket: Ticket) -> str: ...

    async def consume(self, token: str) -> Ticket | None: ...


@dataclass(slots=True)
class WorkspaceRequest:
    """A request of a session for a workspace; `target` is what the workspace will see.

    `expires_at` is of the cookie that shows the session, which may have an earlier end of its own. `port` is
    0 for the IDE. `base` is the path below which all that goes to the same place lies.
    """

    head: RequestHead
    peer: str
    workspace_id: str
    target: bytes
    session_hash: bytes
    expires_at: float = math.inf
    port: int = 0
    base: bytes = b""
    nonce_hash: str = ""
    """Of the nonce that the browser has at the workspace's origin, when it comes from there."""


class WorkspaceEntry:
    def __init__(
        self, origins: Origins, directory: RouteCache, tickets: Tickets, pages: Pages, cookie_key: bytes
    ) -> None:
        self._origins = origins
        self._directory = directory
        self._tickets = tickets
        self._pages = pages
        self._key = cookie_key

    def begin(self, head: RequestHead, workspace_id: str, port: int, to: str) -> Reply:
        """Give the browser a nonce on the workspace's origin, and send it to the platform for a ticket."""
        nonce_hash, cookie = entry_nonce.renew_nonce(head, self._origins)
        query = {"nonce": nonce_hash, "to": to, **({"port": str(port)} if port else {})}
        entry = f"{self._origins.entrance(workspace_id)}{ENTER}?{_encoded(query)}"
        return reply.redirect(entry, ("Set-Cookie", cookie))

    def read_entry(self, visit: WorkspaceRequest) -> bool:
        """Take place and nonce of a visit from the query that `begin` made; False when it has no nonce."""
        asked = _asked(visit.target)
        visit.port = parse_port(asked.get("port", "")) or 0
        visit.target = local_path(asked.get("to", "/")).encode()
        visit.nonce_hash = asked.get("nonce", "")
        return entry_nonce.is_hash(visit.nonce_hash)

    def admit(self, visit: WorkspaceRequest) -> Reply | Coroutine[Any, Any, Reply]:
        """Send a checked session on to the workspace's origin, or to the one of its port."""
        if visit.nonce_hash:
            return self._hand_over(visit)
        origin = self._origins.workspace_origin(visit.workspace_id, visit.port)
        return reply.redirect(f"{origin}{BEGIN}?{_encoded({'to': visit.target.decode()})}")

    async def _hand_over(self, visit: WorkspaceRequest) -> Reply:
        host = self._origins.workspace_host(visit.workspace_id, visit.port)
        ticket = Ticket(visit.session_hash.hex(), visit.workspace_id, host, visit.nonce_hash)
        query = {"ticket": await self._tickets.issue(ticket), "to": visit.target.decode()}
        origin = self._origins.workspace_origin(visit.workspace_id, visit.port)
        return reply.redirect(f"{origin}{ENTER}?{_encoded(query)}")

    def at_workspace(
        self, head: RequestHead, workspace_id: str, port: int
    ) -> Reply | Coroutine[Any, Any, Reply]:
        """Answer below `/.codehub/` on the origin of a workspace or a port."""
        asked = _asked(head.target)
        to = local_path(asked.get("to", "/"))
        if head.path == BEGIN.encode() and head.method in (b"GET", b"HEAD"):
            if requests_page(head):
                return self.begin(head, workspace_id, port, to)
            return reply.error(401, "UNAUTHORIZED", "Open this workspace from CodeHub first.")
        if head.path == ENTER.encode() and head.method == b"GET":
            return self._arrive(head, workspace_id, port, asked.get("ticket", ""), to)
        return reply.error(404, "NOT_FOUND", "There is nothing here.")

    async def _arrive(self, head: RequestHead, workspace_id: str, port: int, token: str, to: str) -> Reply:
        """Exchange the ticket for the workspace-only cookie."""
        host = self._origins.workspace_host(workspace_id, port)
        ticket = await self._tickets.consume(token)
        entrance = f"{self._origins.entrance(workspace_id, port)}{to}"
        if ticket is None or ticket.workspace_id != workspace_id or ticket.host != host:
            return _start_over(head, entrance)
        if ticket.nonce_hash not in map(entry_nonce.hash_of, entry_nonce.find_nonces(head, self._origins)):
            return self._other_browser(head, entrance)
        session_hash = bytes.fromhex(ticket.session_hash)
        visitor = await self._directory.load_visitor(session_hash)
        if visitor is None:
            return _start_over(head, entrance)
        cookie = self._cookie(session_hash, visitor, workspace_id, host)
        origin = self._origins.workspace_origin(workspace_id, port)
        return reply.redirect(f"{origin}{to}", ("Set-Cookie", cookie))

    def _other_browser(self, head: RequestHead, entrance: str) -> Reply:
        """Refuse a ticket without its nonce. Starting over would loop in a browser that blocks cookies."""
        if head.is_navigation:
            return self._pages.other_browser(head, entrance)
        return reply.error(403, "FORBIDDEN", "Another browser asked for this ticket, or cookies are blocked.")

    async def page(self, visit: WorkspaceRequest, visitor: Visitor) -> Reply:
        """The page of a workspace that cannot be connected to now. This navigation may wake it."""
        head = visit.head
        situation = await self._directory.source.situation(visit.workspace_id)
        if situation is None or situation.workspace.phase in (Phase.DELETING, Phase.DELETED):
            return self._pages.missing(head)
        workspace = situation.workspace
        if left_alone_message(workspace) is not None:
            return self._pages.left_alone(head, workspace)
        if workspace.operation is not Operation.NONE or workspace.request is not None:
            return self._pages.loading(head, workspace, situation.home)
        if workspace.phase is Phase.ERROR:
            return self._pages.error(head, situation)
        if workspace.phase is Phase.STANDBY:
            cause = _reason_to_ask_first(situation)
            if cause is not None:
                return self._pages.stopped(head, situation, cause)
            return await self._wake(visit, visitor)
        if workspace.phase is Phase.RUNNING or workspace.desired_state is DesiredState.RUNNING:
            return self._pages.loading(head, workspace)
        if workspace.phase is Phase.ARCHIVED:
            return self._pages.archived(head, workspace)
        return self._pages.pending(head, workspace)

    async def _wake(self, visit: WorkspaceRequest, visitor: Visitor) -> Reply:
        problem: Problem | None = None
        try:
            await self._directory.source.wake(visit.workspace_id, visitor.username)
        except WorkspaceNotFound:
            return self._pages.missing(visit.head)
        except RunningLimitExceeded as error:
            counted = await self._directory.source.counted(visitor.user_id, besides=visit.workspace_id)
            return self._pages.over_the_limit(visit.head, error.message, counted)
        except OperationInProgress:
            problem = None  # the loading page asks again when it ends
        except Problem as error:
            problem = error
        situation = await self._directory.source.situation(visit.workspace_id)
        if situation is None:
            return self._pages.missing(visit.head)
        if problem is not None:
            return self._pages.error(visit.head, situation)
        return self._pages.loading(visit.head, situation.workspace, situation.home)

    def _cookie(self, session_hash: bytes, visitor: Visitor, workspace_id: str, host: str) -> str:
        grant = cookies.CookieGrant(session_hash, int(visitor.expires_at))
        value = cookies.sign(self._key, grant, workspace_id, host)
        secure = "; Secure" if self._origins.secure else ""
        name = self._origins.workspace_cookie.decode()
        return f"{name}={value}; Path=/; HttpOnly; SameSite=Lax{secure}"


def _reason_to_ask_first(situation: StatusPageData) -> str | None:
    """Return why a visit alone does not wake a workspace: it was stopped for the disk, or given up for it.

    Woken by each visit, it would fill the disk again, or be given up again, for as long as a tab is open.
    """
    workspace, home = situation.workspace, situation.home
    if workspace.desired_state is DesiredState.RUNNING:
        return None
    if home is not None and home.stopped_at is not None and home.notice is not None:
        return home.notice
    return workspace.error_message if workspace.error_reason is None else None


def _start_over(head: RequestHead, entrance: str) -> Reply:
    """A ticket that is used up, too old or someone else's: the entrance gives a new one."""
    if head.is_navigation:
        return reply.redirect(entrance)
    return reply.error(401, "UNAUTHORIZED", "This ticket is not valid, or no longer.")


def requests_page(head: RequestHead) -> bool:
    """Whether a person opens a page, or a client without fetch metadata (curl) asks for one."""
    return head.is_navigation or (head.method in (b"GET", b"HEAD") and not head.sends_fetch_metadata)


def _asked(target: bytes) -> dict[str, str]:
    query = target.decode().partition("?")[2]
    return {name: values[0] for name, values in parse_qs(query).items()}


def _encoded(query: dict[str, str]) -> str:
    return urlencode(query, safe="/", quote_via=quote)


def local_path(to: str) -> str:
    """The path to go to, or the root when it is not plainly a path."""
    plain = to.startswith("/") and all("!" <= letter <= "~" for letter in to) and "#" not in to
    return to if plain else "/"
