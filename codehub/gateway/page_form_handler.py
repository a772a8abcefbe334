"""Forms behind the buttons of the gateway's pages, for browsers that run no script."""

import time
from urllib.parse import quote

from codehub.database.gate import RecoverFrom
from codehub.database.gateway_queries import SessionUser
from codehub.domain.audit import Actor
from codehub.domain.ids import is_ulid
from codehub.domain.problems import NotFound, Problem, RunningLimitExceeded, WorkspaceNotFound
from codehub.domain.reserved_paths import FORM_PATH
from codehub.domain.states import Phase
from codehub.domain.workspace import RecoverSource
from codehub.gateway import cookies, refusals
from codehub.gateway.config import Origins
from codehub.gateway.http1 import reply
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.route_result import PendingRoute
from codehub.gateway.origin_check import is_cross_origin
from codehub.gateway.pages import Pages
from codehub.gateway.route_cache import RouteCache
from codehub.gateway.workspace_entry import local_path, parse_query
from codehub.gateway.workspace_request import WorkspaceRequest


class PageFormHandler:
    """Handler of the forms. Each redirects to the page that it was on."""

    def __init__(self, origins: Origins, route_cache: RouteCache, pages: Pages) -> None:
        self._origins = origins
        self._route_cache = route_cache
        self._pages = pages

    def handle(self, request: WorkspaceRequest, address: str) -> Reply | PendingRoute:
        """Handle a form from the client at `address`. All of its values are in the URL."""
        head = request.head
        if request.target.partition(b"?")[0] != FORM_PATH.encode() or head.method not in (b"GET", b"POST"):
            return refusals.not_found()
        values = parse_query(request.target)
        page = f"/w/{request.workspace_id}{local_path(values.get('to', '/'))}"
        if head.method == b"GET":  # a reload of what a form led to
            return self._redirect(page)
        if is_cross_origin(head, self._origins, self._origins.platform):
            return refusals.cross_origin()
        return PendingRoute(self._submit(request, address, values, page))

    async def _submit(
        self, request: WorkspaceRequest, address: str, values: dict[str, str], page: str
    ) -> Reply:
        session_user = await self._session_user(request, address)
        if session_user is None:
            return self._redirect(f"/login?next={quote(page, safe='/')}")
        async with self._route_cache.slot(session_user.user_id):
            return await self._apply_and_reply(request, session_user, address, values, page)

    async def _apply_and_reply(
        self,
        request: WorkspaceRequest,
        session_user: SessionUser,
        address: str,
        values: dict[str, str],
        page: str,
    ) -> Reply:
        head = request.head
        try:
            await self._apply(request.workspace_id, session_user, address, values)
        except RunningLimitExceeded as problem:
            counted = await self._route_cache.source.counted_workspaces(
                session_user.user_id, besides=request.workspace_id
            )
            return self._pages.over_the_limit(head, problem.message, counted, page)
        except WorkspaceNotFound:
            return self._pages.missing(head)
        except Problem as problem:
            return self._pages.refused(head, problem, page)
        return self._redirect(page)

    async def _session_user(self, request: WorkspaceRequest, address: str) -> SessionUser | None:
        sessions = cookies.cookie_values(request.head.get(b"cookie"), self._origins.session_cookie)
        if not sessions:
            return None
        session_user = await self._route_cache.find_session_user(cookies.session_hash(sessions[0]), address)
        return None if session_user is None or session_user.expires_at <= time.time() else session_user

    async def _apply(
        self, workspace_id: str, session_user: SessionUser, address: str, values: dict[str, str]
    ) -> None:
        source = self._route_cache.source
        action = values.get("action", values.get("wish", ""))  # pages from before an upgrade send `wish`
        target_id = values.get("workspace", workspace_id)
        await self._check_owner(target_id, session_user)
        if action == "start":
            await source.wake(target_id, session_user.username)
        elif action == "stop":
            await source.stop(target_id, session_user.username)
        elif action == "recover":
            owner = Actor.person(session_user.user_id, session_user.username, session_user.role, address)
            await source.recover(target_id, owner, _recover_from(values))
        else:
            raise NotFound

    async def _check_owner(self, workspace_id: str, session_user: SessionUser) -> None:
        route = None
        if is_ulid(workspace_id):
            route = await self._route_cache.load_route(workspace_id)
        if (
            route is None
            or route.owner_id != session_user.user_id
            or route.phase in (Phase.DELETING, Phase.DELETED)
        ):
            raise WorkspaceNotFound

    def _redirect(self, path: str) -> Reply:
        return reply.redirect(f"{self._origins.platform}{path}", status=303)


def _recover_from(values: dict[str, str]) -> RecoverFrom | None:
    if "from" not in values:
        return None
    try:
        return RecoverFrom(RecoverSource(values["from"]), values.get("archive_op_id"))
    except ValueError:
        raise NotFound from None
