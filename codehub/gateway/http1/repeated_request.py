"""What was decided for one request, and holds for the next one of its kind on the same connection.

A browser sends the same fields with request after request; only the first line differs. So fields that were
parsed, checked and rewritten once are compared, and not read again. Who may pass is not remembered here: the
directory must still hold the very session and the very route that the decision was made of.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from codehub.database.gateway_queries import Route, Visitor
from codehub.gateway.activity import FORWARDED, ActivityRecorder
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.platform_tokens import target_holds_token
from codehub.gateway.route_cache import RouteCache

if TYPE_CHECKING:
    from codehub.gateway.http1.exchange import Relay

OWN: Final = b"/.codehub/"
"""What is the platform's of a workspace's paths, on its own origin and below its entrance."""

_LINE = re.compile(rb"GET (/[!-\"$-~]*) HTTP/1\.1")


class RepeatedRequest:
    """One GET that was let through, with what the next one must have in common with it."""

    __slots__ = (
        "_after_target",
        "_always_counts",
        "_cut",
        "_expires_at",
        "_prefix",
        "_relay",
        "_route",
        "_visitor",
        "fields",
        "head",
    )

    def __init__(
        self,
        head: RequestHead,
        relay: Relay,
        *,
        cut: int,
        base: bytes,
        always_counts: bool,
        visitor: Visitor,
        route: Route,
        expires_at: float,
    ) -> None:
        self.head = head
        self.fields = b""
        """All of the head but its first line, as it came."""
        self._relay = relay
        self._cut = cut
        self._prefix = base + b"/"
        self._after_target = relay.wire[len(b"GET ") + len(head.target) - cut :]
        self._always_counts = always_counts
        self._visitor = visitor
        self._route = route
        self._expires_at = expires_at

    def again(self, data: bytes, directory: RouteCache, recorder: ActivityRecorder) -> Relay | None:
        """The request in `data` on its way, or None when it has to be looked at in full.

        `head` and the relay are told anew, not made anew: a connection has one request at a time.
        """
        if not data.endswith(self.fields):
            return None
        line = _LINE.fullmatch(data, 0, len(data) - len(self.fields))
        relay, route = self._relay, self._route
        if line is None or not directory.holds(relay.session_hash, self._visitor, route):
            return None
        target = line[1]
        seen = target[self._cut :] if self._cut else target
        if not target.startswith(self._prefix) or seen.startswith(OWN) or self._expires_at <= time.time():
            return None
        if target_holds_token(target):
            return None
        self.head.target = target
        if not relay.port and seen.startswith(FORWARDED):
            if self._cut:
                return None  # it is not the IDE that this is for
            recorder.touch(route.workspace_id)
        elif self._always_counts:
            recorder.touch(route.workspace_id)
        relay.wire = b"GET " + seen + self._after_target
        return relay


def may_repeat(head: RequestHead) -> bool:
    """Whether nothing but the target can differ in the next request with the same fields."""
    return (
        head.method == b"GET"
        and head.minor == 1
        and not head.has_body
        and not head.wants_websocket
        and b"upgrade" not in head.fields
    )
