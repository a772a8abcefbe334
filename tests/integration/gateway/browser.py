"""The parts of a browser that are needed to enter a workspace: host-only cookies and redirects."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from codehub.gateway.config import GatewayConfig
from tests.integration.gateway.harness import NAVIGATE, SESSION, Client, header, headers, status

MAX_REDIRECTS = 20


class ServedGateway(Protocol):
    """A gateway that accepts connections."""

    @property
    def config(self) -> GatewayConfig: ...

    @property
    def platform(self) -> str: ...

    async def connect(self) -> Client: ...


@dataclass
class Answer:
    url: str
    head: str
    body: str

    @property
    def status(self) -> int:
        return status(self.head)

    @property
    def location(self) -> str:
        return header(self.head, "location") or ""


@dataclass
class Browser:
    """Minimal browser, which adds the header lines `more` and keeps no cookies of `blocks`."""

    served: ServedGateway
    session: str = SESSION
    blocks: tuple[str, ...] = ()
    more: str = NAVIGATE
    dial: Callable[[str], Awaitable[Client]] | None = None
    """How to connect to a host, if a plain connection to the gateway is not enough."""
    jar: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.session:
            name = self.served.config.origins.session_cookie.decode()
            self.jar[self.served.platform] = {name: self.session}

    def cookies_of(self, host: str) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.jar.get(host, {}).items())

    async def navigate(self, url: str) -> Answer:
        """Request one page, and keep the cookies that it sets."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        cookies = f"Cookie: {self.cookies_of(parts.netloc)}\r\n" if self.jar.get(parts.netloc) else ""
        client = await (self.dial(parts.hostname or "") if self.dial else self.served.connect())
        client.send(f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n{cookies}{self.more}\r\n")
        head, body = await client.response()
        client.close()
        self._keep_cookies(parts.netloc, head)
        return Answer(url, head, body.decode())

    async def open(self, url: str, *, until: str = "") -> Answer:
        """Follow redirects to a page, or until a redirect target contains `until`."""
        for _ in range(MAX_REDIRECTS):
            answer = await self.navigate(url)
            url = answer.location
            if not url or (until and until in url):
                return answer
        raise AssertionError("too many redirects")

    async def find_ticket(self, url: str) -> str:
        """Follow redirects up to the link with the ticket, and return that link."""
        return (await self.open(url, until="ticket=")).location

    def _keep_cookies(self, host: str, head: str) -> None:
        if host in self.blocks:
            return
        for line in headers(head, "set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self.jar.setdefault(host, {})[name] = value
            if "Max-Age=0" in line:
                del self.jar[host][name]
