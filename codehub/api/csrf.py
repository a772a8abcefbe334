"""No other site may act through a person's cookie."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from codehub.api.errors import envelope

CHANGING = frozenset({"POST", "PATCH", "PUT", "DELETE"})
OWN_SITES = frozenset({"same-origin", "none"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str | None:
    """`scheme://host:port` in one spelling; None for what is no origin ("null")."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    return f"{parts.scheme}://{parts.hostname}:{port}"


def is_foreign(fetch_sites: Sequence[str], origins: Sequence[str], own_origin: str) -> bool:
    """Whether a browser says that the call comes from elsewhere. What sends neither header is no browser."""
    if any(site not in OWN_SITES for site in fetch_sites):
        return True
    own = origin_of(own_origin)
    return any(origin_of(origin) != own for origin in origins)


class CsrfMiddleware:
    """Checks calls that change something and carry the session cookie, and the sign-in that sets it."""

    def __init__(self, app: ASGIApp, *, own_origin: str, cookie_name: str, login_path: str) -> None:
        self._app = app
        self._own_origin = own_origin
        self._cookie_name = cookie_name
        self._login_path = login_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in CHANGING:
            headers = Headers(scope=scope)
            if self._is_guarded(scope["path"], headers) and is_foreign(
                headers.getlist("sec-fetch-site"), headers.getlist("origin"), self._own_origin
            ):
                refusal = envelope(403, "FORBIDDEN", "This call came from another site and was refused.")
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_guarded(self, path: str, headers: Headers) -> bool:
        if path == self._login_path:
            return True
        return any(self._cookie_name in cookie_parser(line) for line in headers.getlist("cookie"))
