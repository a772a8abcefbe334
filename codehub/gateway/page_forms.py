"""The buttons of the pages where no script runs: a form is posted, and its page is shown again."""

import time
from collections.abc import Coroutine
from typing import Any, Final
from urllib.parse import parse_qs, quote

from codehub.database.gate import RecoverFrom
from codehub.database.gateway_queries import Visitor
from codehub.domain.audit import Actor
from codehub.domain.ids import is_ulid
from codehub.domain.problems import NotFound, Problem, RunningLimitExceeded, WorkspaceNotFound
from codehub.domain.states import Phase
from codehub.domain.workspace import RecoverSource
from codehub.gateway import cookies
from codehub.gateway.config import Origins
from codehub.gateway.http1 import reply
from codehub.gateway.http1.reply import Reply
from codehub.gateway.origin_check import is_cross_origin
from codehub.gateway.pages import Pages
from codehub.gateway.route_cache import RouteCache
from codehub.gateway.workspace_entry import WorkspaceRequest, local_path

PLACE: Final = "/.codehub/do"


class PageForms:
    def __init__(self, origins: Origins, directory: RouteCache, pages: Pages) -> None:
        self._origins = origins
        self._directory = directory
        self._pages = pages

    def handle(self, visit: WorkspaceRequest, address: str) -> Reply | Coroutine[Any, Any, Reply]:
        """Answer a form that the owner sent, from `address`; all that it says is in its URL."""
        head = visit.head
        path, _, query = visit.target.decode().partition("?")
        if path != PLACE or head.method not in (b"GET", b"POST"):
            return reply.error(404, "NOT_FOUND", "There is nothing here.")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        page = f"/w/{visit.workspace_id}{local_path(asked.get('to', '/'))}"
        if head.method == b"GET":  # somebody loads again what a form led to
            return self._go(page)
        if is_cross_origin(head, self._origins, self._origins.platform):
            return reply.error(403, "FORBIDDEN", "Another site's page may not ask this.")
        return self._submit(visit, address, asked, page)

    async def _submit(self, visit: WorkspaceRequest, address: str, asked: dict[str, str], page: str) -> Reply:
        head = visit.head
        visitor = await self._visitor(visit, address)
        if visitor is None:
            return self._go(f"/login?next={quote(page, safe='/')}")
        try:
            await self._fulfil(visit.workspace_id, visitor, address, asked)
        except RunningLimitExceeded as problem:
            counted = await self._directory.source.counted(visitor.user_id, besides=visit.workspace_id)
            return self._pages.over_the_limit(head, problem.message, counted, page)
        except WorkspaceNotFound:
            return self._pages.missing(head)
        except Problem as problem:
            return self._pages.refused(head, problem, page)
        return self._go(page)

    async def _visitor(self, visit: WorkspaceRequest, address: str) -> Visitor | None:
        values = cookies.cookie_values(visit.head.get(b"cookie"), self._origins.session_cookie)
        if not values:
            return None
        visitor = await self._directory.find_visitor(cookies.session_hash(values[0]), address)
        return None if visitor is None or visitor.expires_at <= time.time() else visitor

    async def _fulfil(self, workspace_id: str, visitor: Visitor, address: str, asked: dict[str, str]) -> None:
        source, wish = self._directory.source, asked.get("wish", "")
        about = asked.get("workspace", workspace_id)
        await self._check_owner(about, visitor)
        if wish == "start":
            await source.wake(about, visitor.username)
        elif wish == "stop":
            await source.stop(about, visitor.username)
        elif wish == "recover":
            owner = Actor.person(visitor.user_id, visitor.username, visitor.role, address)
            await source.recover(about, owner, _recover_from(asked))
        else:
            raise NotFound

    async def _check_owner(self, workspace_id: str, visitor: Visitor) -> None:
        route = None
        if is_ulid(workspace_id):
            route = await self._directory.load_route(workspace_id)
        if (
            route is None
            or route.owner_id != visitor.user_id
            or route.phase in (Phase.DELETING, Phase.DELETED)
        ):
            raise WorkspaceNotFound

    def _go(self, path: str) -> Reply:
        return reply.redirect(f"{self._origins.platform}{path}", status=303)


def _recover_from(asked: dict[str, str]) -> RecoverFrom | None:
    if "from" not in asked:
        return None
    try:
        return RecoverFrom(RecoverSource(asked["from"]), asked.get("archive_op_id"))
    except ValueError:
        raise NotFound from None
