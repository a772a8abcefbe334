"""Replies to requests that the gateway does not relay: a page for navigations, JSON for the rest."""

from urllib.parse import quote

from codehub.database.gateway_queries import Route, SessionUser
from codehub.domain.problems import InsufficientStorage, TooManyRequests
from codehub.domain.states import Phase
from codehub.gateway.config import Origins
from codehub.gateway.http1 import reply
from codehub.gateway.http1.reply import RETRY_AFTER, Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.pages import Pages


class Refusals:
    """Builder of the replies that depend on the client or the session."""

    def __init__(self, origins: Origins, pages: Pages) -> None:
        self._origins = origins
        self._pages = pages

    def access(self, head: RequestHead, session_user: SessionUser, route: Route | None) -> Reply | None:
        """Return the refusal if the workspace does not exist or belongs to another user, or None."""
        if route is None or route.phase in (Phase.DELETING, Phase.DELETED):
            if head.is_navigation:
                return self._pages.missing(head)
            return reply.error(404, "WORKSPACE_NOT_FOUND", "There is no such workspace.")
        if route.owner_id != session_user.user_id:
            if head.is_navigation:
                return self._pages.forbidden(head)
            return reply.error(403, "FORBIDDEN", "This workspace belongs to someone else.")
        return None

    def not_signed_in(self, head: RequestHead) -> Reply:
        if head.is_navigation:
            target = quote(head.target.decode(), safe="/")
            return reply.redirect(f"{self._origins.platform}/login?next={target}")
        return reply.error(401, "UNAUTHORIZED", "Sign in first.")

    def token_in_target(self, head: RequestHead) -> Reply:
        """Refuse an address that would show a token to the workspace, its logs and its pages."""
        if head.is_navigation:
            return self._pages.token_in_address(head)
        message = "The address holds a CodeHub token. Send it to the API only, in the Authorization field."
        return reply.error(400, "BAD_REQUEST", message)

    def misdirected(self, head: RequestHead) -> Reply:
        """Refuse a host that belongs to neither the platform nor a workspace (RFC 9110, 15.5.20)."""
        if head.is_navigation:
            return self._pages.misdirected(head)
        message = f"This is not {self._origins.platform}, nor the address of a workspace."
        return reply.error(421, "MISDIRECTED", message)

    def unreachable(self, head: RequestHead, *, for_workspace: bool) -> Reply:
        if head.is_navigation:
            return self._pages.unreachable(head, for_workspace=for_workspace)
        return reply.error(502, "UPSTREAM_UNAVAILABLE", "The upstream does not answer.")

    def too_many_fields(self, head: RequestHead, *, for_workspace: bool) -> Reply:
        """Reply in place of an answer whose header fields are too many."""
        if not for_workspace:
            return self.unreachable(head, for_workspace=False)
        if head.is_navigation:
            return self._pages.too_many_fields(head)
        message = "The workspace answered with too many header fields."
        return reply.error(502, "UPSTREAM_UNAVAILABLE", message)

    def unavailable(self, head: RequestHead) -> Reply:
        """Reply to a request while PostgreSQL or Redis is unavailable."""
        if head.is_navigation:
            return self._pages.unavailable(head)
        return reply.error(
            503,
            "UNAVAILABLE",
            "CodeHub is temporarily unavailable. Try again shortly.",
            retry_after=RETRY_AFTER,
        )

    def no_space(self, head: RequestHead, full: InsufficientStorage) -> Reply:
        if head.is_navigation:
            return self._pages.no_space(head)
        return reply.error(full.status, full.code, full.message, retry_after=RETRY_AFTER)

    def too_many_requests(self, head: RequestHead, problem: TooManyRequests) -> Reply:
        if head.is_navigation:
            return self._pages.refused(head, problem, head.target.decode())
        return reply.error(problem.status, problem.code, problem.message, retry_after=problem.retry_after)


def not_found() -> Reply:
    return reply.error(404, "NOT_FOUND", "There is nothing here.")


def cross_origin() -> Reply:
    return reply.error(403, "FORBIDDEN", "Pages of another site may not send this request.")


def not_entered() -> Reply:
    """Refuse a request to a workspace's origin without its cookie."""
    return reply.error(401, "UNAUTHORIZED", "Open this workspace from CodeHub first.")


def not_running() -> Reply:
    return reply.error(503, "UPSTREAM_UNAVAILABLE", "The workspace is not running.", retry_after=RETRY_AFTER)


def revoked() -> Reply:
    """Reply to a request whose grant was withdrawn before its response began."""
    message = "The workspace is not running, or you are no longer signed in."
    return reply.error(503, "UPSTREAM_UNAVAILABLE", message, close=True, retry_after=RETRY_AFTER)
