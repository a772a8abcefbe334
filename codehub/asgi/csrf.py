"""Protection against cross-site request forgery."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from codehub.asgi.bearer import call_token
from codehub.asgi.errors import envelope

UNSAFE_METHODS = frozenset({"POST", "PATCH", "PUT", "DELETE"})
OWN_SITE_VALUES = frozenset({"same-origin", "none"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str | None:
    """Return the normalized `scheme://host:port`, or None if the URL has no origin ("null")."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    return f"{parts.scheme}://{parts.hostname}:{port}"


def is_cross_site(fetch_sites: Sequence[str], origins: Sequence[str], own_origin: str) -> bool:
    """Return whether the headers mark the call as cross-site. Only browsers send them."""
    if any(site not in OWN_SITE_VALUES for site in fetch_sites):
        return True
    own = origin_of(own_origin)
    return any(origin_of(origin) != own for origin in origins)


class CsrfMiddleware:
    """Middleware that rejects cross-site calls that change something.

    It checks calls with the session cookie, and the sign-in, which sets the cookie. A call with a
    Bearer token is not checked: browsers do not add one by themselves, and its cookie is not read.
    With `checks_reads` it checks calls that read, and WebSockets, as well.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        own_origin: str,
        cookie_name: str,
        login_path: str,
        checks_reads: bool = False,
    ) -> None:
        self._app = app
        self._own_origin = own_origin
        self._cookie_name = cookie_name
        self._login_path = login_path
        self._checks_reads = checks_reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_checked(scope):
            headers = Headers(scope=scope)
            if self._is_protected(scope["path"], headers) and is_cross_site(
                headers.getlist("sec-fetch-site"), headers.getlist("origin"), self._own_origin
            ):
                response = envelope(403, "FORBIDDEN", "This call came from another site and was rejected.")
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_checked(self, scope: Scope) -> bool:
        if scope["type"] == "websocket":
            return self._checks_reads
        return scope["type"] == "http" and (self._checks_reads or scope["method"] in UNSAFE_METHODS)

    def _is_protected(self, path: str, headers: Headers) -> bool:
        if path == self._login_path:
            return True
        if call_token(headers) is not None:
            return False
        return any(self._cookie_name in cookie_parser(line) for line in headers.getlist("cookie"))
