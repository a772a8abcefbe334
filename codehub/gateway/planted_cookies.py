"""Check for cookies that another page may have planted: it rejects the request and clears them.

A page of any host below a shared domain can set cookies for that domain: a second session cookie, or
so many that servers refuse the request. The browser sends them until a response expires them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from codehub.domain.cookie_domains import parent_domains
from codehub.gateway.config import Origins
from codehub.gateway.cookies import MAX_COOKIES, cookie_parts, cookie_values
from codehub.gateway.http1 import reply
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import MAX_COOKIE, RequestHead, parse_beginning
from codehub.gateway.pages import Pages

MAX_CLEARING: Final = 48 << 10
"""Bytes of Set-Cookie values in one reply: browsers and proxies limit the size of a head."""


class PlantedCookieCheck:
    """Check of the cookies of every request, for a second session or too many of them."""

    def __init__(self, origins: Origins, pages: Pages) -> None:
        self._origins = origins
        self._pages = pages
        self._platform_hosts = origins.aliases | {origins.platform_host}

    def refuse(self, head: RequestHead, host: str) -> Reply | None:
        """Return the reply to a request that is refused for its cookies, or None."""
        if b"cookie" not in head.fields:
            return None
        cookie = head.get(b"cookie")
        if len(cookie) > MAX_COOKIE or cookie.count(b";") >= MAX_COOKIES:
            return self._too_many(head, cookie)
        is_platform = host in self._platform_hosts
        if is_platform and len(cookie_values(cookie, self._origins.session_cookie)) > 1:
            return self._two_sessions(head)
        return None

    def refuse_too_large(self, data: bytes) -> Reply | None:
        """Return the reply to a head that is too large, if its cookies are the reason."""
        head = parse_beginning(data)
        if head is None or len(cookie := head.get(b"cookie")) <= MAX_COOKIE:
            return None
        return self._too_many(head, cookie)

    def _too_many(self, head: RequestHead, cookie: bytes) -> Reply:
        if head.is_navigation:
            answer = self._pages.too_many_cookies(head)
        else:
            message = "This request has too many cookies. They are cleared: send it again."
            answer = reply.error(431, "BAD_REQUEST", message)
        # Clear-Site-Data clears the whole domain. Cookies of other paths cannot be expired in another way.
        whole_site = (("Clear-Site-Data", '"cookies"'),) if self._origins.secure else ()
        return self._clearing(answer, head, _cookie_names(cookie), *whole_site)

    def _two_sessions(self, head: RequestHead) -> Reply:
        if head.is_navigation:
            answer = self._pages.two_sessions(head)
        else:
            message = "This request has two session cookies. Both are cleared: sign in again."
            answer = reply.error(400, "BAD_REQUEST", message)
        return self._clearing(answer, head, (self._origins.session_cookie,))

    def _clearing(
        self, answer: Reply, head: RequestHead, names: Iterable[bytes], *more: tuple[str, str]
    ) -> Reply:
        lines, room = [*answer.headers, *more], MAX_CLEARING
        for cookie in expirations(dict.fromkeys(names), head, secure=self._origins.secure):
            room -= len(cookie)
            if room < 0:
                break
            lines.append(("Set-Cookie", cookie))
        return replace(answer, headers=tuple(lines))


def expirations(names: Iterable[bytes], head: RequestHead, *, secure: bool) -> Iterator[str]:
    """Yield Set-Cookie values that expire these cookies for every path and domain that matches."""
    hostname = head.host.rpartition(":")[0] if head.host.rpartition(":")[2].isdigit() else head.host
    domains = ["", *(f"; Domain={domain}" for domain in parent_domains(hostname))]
    pairs = [f"{name.decode('latin-1')}=" if name else "=x" for name in names]
    ending = "; Secure" if secure else ""
    for path in _path_beginnings(head.path.decode()):
        for pair in pairs:
            for domain in domains:
                yield f"{pair}; Max-Age=0; Path={path}{domain}{ending}"


def _cookie_names(cookie: bytes) -> Iterator[bytes]:
    """Yield the names of the first cookies. One without a name arrives as its bare value."""
    for part in cookie_parts(cookie):
        name, separator, _ = part.partition(b"=")
        yield name.strip() if separator else b""


def _path_beginnings(path: str) -> Iterator[str]:
    """Yield the cookie paths that match this path, `/` first (RFC 6265, 5.1.4)."""
    yield "/"
    for position, letter in enumerate(path):
        if letter == ";":
            return  # it would end the attribute
        if position and letter == "/":
            yield path[:position]
            yield path[: position + 1]
    if not path.endswith("/"):
        yield path
