"""Replies of the gateway itself."""

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from codehub.gateway.http1.route_result import RouteResult

RETRY_AFTER: Final = 2


@dataclass(frozen=True)
class Reply(RouteResult):
    """A whole response in memory."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False
    page: str = ""
    """The name of the page in the body, or empty."""

    def wire(self, *, head_only: bool, close: bool) -> bytes:
        """Return the response as it is sent."""
        reason = HTTPStatus(self.status).phrase
        lines = [f"HTTP/1.1 {self.status} {reason}", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if close:
            lines.append("Connection: close")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return head if head_only else head + self.body


def error(
    status: int, code: str, message: str, *, close: bool = False, retry_after: int | None = None
) -> Reply:
    """Return an error in the API's format, for a client that is not opening a page."""
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
    if retry_after is not None:
        headers.append(("Retry-After", str(retry_after)))
    return Reply(status, body, tuple(headers), close)


def redirect(location: str, *headers: tuple[str, str], status: int = 302) -> Reply:
    fixed = (("Location", location), ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"))
    return Reply(status, b"", (*fixed, *headers))
