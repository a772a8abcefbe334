"""Fast path for a request that differs from the one before it only in its target.

A browser sends the same fields with request after request. Fields that were parsed, checked and
rewritten once are therefore compared and not read again. The permission is not remembered here: the
route cache must still hold the same session and route objects that permitted the first request.
"""

from __future__ import annotations

import re
import time

from codehub.domain.reserved_paths import RESERVED_PREFIX
from codehub.gateway.activity import PORT_PATHS, ActivityRecorder
from codehub.gateway.http1.relay import Relay
from codehub.gateway.http1.request_head import MAX_TARGET, RequestHead
from codehub.gateway.platform_tokens import target_holds_token
from codehub.gateway.route_cache import RouteCache

_RESERVED = RESERVED_PREFIX.encode()
_REQUEST_LINE = re.compile(rb"GET (/[!-\"$-~]{,%d}) HTTP/1\.1" % (MAX_TARGET - 1))


class RequestFastPath:
    """A permitted GET, with the fields that the next one must have in common with it."""

    __slots__ = (
        "_after_target",
        "_always_counts",
        "_cut",
        "_expires_at",
        "_fields",
        "_prefix",
        "_relay",
        "_route",
        "_session_user",
        "head",
    )

    def __init__(self, data: bytes, head: RequestHead, relay: Relay) -> None:
        request, session_user, route = relay.request, relay.session_user, relay.route
        assert request is not None and session_user is not None and route is not None
        self.head = head
        self._fields = data[data.index(b"\r\n") :]
        """All of the head but its first line, as it arrived."""
        self._relay = relay
        self._cut = len(head.target) - len(request.target)
        """Length of the target's beginning that the upstream does not receive."""
        self._prefix = request.base + b"/"
        self._after_target = relay.wire[len(b"GET ") + len(request.target) :]
        self._always_counts = relay.always_counts
        self._session_user = session_user
        self._route = route
        self._expires_at = min(session_user.expires_at, request.expires_at)

    def repeat(self, data: bytes, route_cache: RouteCache, recorder: ActivityRecorder) -> Relay | None:
        """Return the relay of the request in `data`, or None if that request must be read in full.

        The head and the relay are updated and not copied: a connection has one request at a time.
        """
        if not data.endswith(self._fields):
            return None
        line = _REQUEST_LINE.fullmatch(data, 0, len(data) - len(self._fields))
        relay, route = self._relay, self._route
        if line is None or not route_cache.is_current(relay.session_hash, self._session_user, route):
            return None
        target = line[1]
        sent = target[self._cut :] if self._cut else target
        if not target.startswith(self._prefix) or sent.startswith(_RESERVED):
            return None
        if self._expires_at <= time.time() or target_holds_token(target):
            return None
        self.head.target = target
        if not relay.port and sent.startswith(PORT_PATHS):
            if self._cut:
                return None  # in path mode this is for a port, and not for the IDE
            recorder.record_use(route.workspace_id)
        elif self._always_counts:
            recorder.record_use(route.workspace_id)
        relay.wire = b"GET " + sent + self._after_target
        return relay


def make_fast_path(data: bytes, head: RequestHead, relay: Relay) -> RequestFastPath | None:
    """Return the fast path for requests like this one, or None if more than the target may differ."""
    is_repeatable = (
        relay.request is not None
        and head.method == b"GET"
        and head.minor == 1
        and not head.has_body
        and not head.wants_websocket
        and b"upgrade" not in head.fields
    )
    return RequestFastPath(data, head, relay) if is_repeatable else None
