"""Exchange of one request and its response between a client and an upstream."""

from time import perf_counter
from typing import Final

import structlog

from codehub.gateway.http1.body_framing import Body, FramingError, UntilCloseBody
from codehub.gateway.http1.interfaces import ClientSide
from codehub.gateway.http1.relay import Relay
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.http1.response_head import (
    MAX_RESPONSE_HEAD,
    SHORT,
    BadResponseError,
    ResponseHead,
    TooManyFieldsError,
    parse_response,
)
from codehub.gateway.http1.upstream import UpstreamConnection

logger = structlog.get_logger(__name__)

MAX_INTERIM: Final = 16


class Exchange:
    """State machine of one request and its response."""

    __slots__ = (
        "_began",
        "_body",
        "_buffer",
        "_client",
        "_head",
        "_interim",
        "_keep",
        "_over",
        "_response",
        "_upstream",
        "relay",
    )

    def __init__(self, client: ClientSide, head: RequestHead, relay: Relay) -> None:
        self.relay = relay
        self._began = perf_counter()
        self._client = client
        self._head = head
        self._upstream: UpstreamConnection | None = None
        self._buffer = b""
        self._body: Body | None = None
        self._response: ResponseHead | None = None
        self._interim = 0
        self._keep = False
        self._over = False

    @property
    def connected(self) -> bool:
        return self._upstream is not None

    @property
    def answered(self) -> bool:
        """Whether the client has received any of the final response."""
        return self._body is not None

    def start(self) -> None:
        """Send the request, over an idle connection if it can be repeated: that connection may be dead."""
        connection = self._client.gateway.pool.take(self.relay.upstream) if self._may_retry else None
        if connection is not None:
            self._send(connection)
        else:
            self._client.gateway.start(self._connect())

    def send_body(self, data: bytes) -> None:
        if self._upstream is not None:
            self._upstream.transport.write(data)

    def client_writable(self, writable: bool) -> None:
        if self._upstream is not None:
            self._upstream.hold(not writable)

    def client_lost(self) -> None:
        self._over = True
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None

    def upstream_writable(self, writable: bool) -> None:
        self._client.hold_for_upstream(not writable)

    def upstream_data(self, data: memoryview) -> int:
        if self._body is not None:
            return self._pass_body(b"", data)
        if self._buffer:
            data = memoryview(self._buffer + data)
            self._buffer = b""
        try:
            return self._take_head(data)
        except BadResponseError as error:
            self._charge()
            self._fail(str(error), too_many_fields=isinstance(error, TooManyFieldsError))
        return 0

    def upstream_lost(self, error: Exception | None) -> None:
        was_reused = self._upstream is not None and self._upstream.reused
        self._upstream = None
        if self._body is None:
            if was_reused and self._may_retry and not self._buffer and not self._interim:
                self._client.gateway.start(self._connect())
            else:
                self._fail("the upstream closed the connection without an answer")
        elif isinstance(self._body, UntilCloseBody) and error is None:
            self._over = True
            self._client.exchange_done(keep=False)
        else:
            self._over = True
            self._client.reset()  # the client must see that the response is incomplete

    @property
    def _may_retry(self) -> bool:
        """Whether the request may be sent twice (RFC 9110, 9.2.1)."""
        return self._head.is_safe and not self._head.has_body and not self._head.wants_websocket

    async def _connect(self) -> None:
        try:
            connection = await self._client.gateway.pool.connect(self.relay.upstream)
        except (OSError, TimeoutError) as error:
            self._fail(f"the upstream cannot be reached: {error!r}")
            return
        if self._over:
            connection.abort()
        else:
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        self._upstream = connection
        connection.user = self
        connection.transport.write(self.relay.wire)
        if self._client.write_paused:
            connection.hold(True)
        self._client.upstream_ready()

    def _take_head(self, data: memoryview) -> int:
        """Relay one head and what may follow it. Return the number of bytes left for another turn."""
        start = bytes(data[:SHORT])
        end = start.find(b"\r\n\r\n") + 4
        if end < 4:
            self._charge()  # a long head costs more, and one in many pieces is searched again with each
            start = bytes(data[: MAX_RESPONSE_HEAD + 1])
            end = start.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(data) > MAX_RESPONSE_HEAD:
                raise BadResponseError("the response head is too large")
            self._buffer = start
            return 0
        head, rest = parse_response(start[:end]), data[end:]
        if head.status == 101:
            return self._switch(head, rest)
        if head.status >= 200:
            return self._begin(head, rest)
        self._pass_interim(head)
        return len(rest)

    def _charge(self) -> None:
        if self._upstream is not None:
            self._upstream.charge()

    def _pass_interim(self, head: ResponseHead) -> None:
        """Relay a 1xx response (RFC 9110, 15.2), but not to HTTP/1.0."""
        self._interim += 1
        if self._interim > MAX_INTERIM:
            raise BadResponseError("too many interim responses")
        if self._head.minor == 1:
            self._client.transport.write(self._for_client(head, close=False))

    def _begin(self, head: ResponseHead, data: memoryview) -> int:
        if head.transfer_encoding and self._head.minor == 0:
            raise BadResponseError("a chunked response to HTTP/1.0")
        body = head.body(self._head.method)
        until_close = isinstance(body, UntilCloseBody)
        # After a response that overtakes its request, the rest of that request would be in the way.
        self._keep = self._client.may_stay(self._head) and not until_close and self._client.request_done
        self._response = head
        self._body = body
        self._client.response_begun()
        self._client.gateway.metrics.count_relay(head.status, perf_counter() - self._began)
        if self.relay.port:
            # Count the response and not the request: a page that polls until an app listens is not activity.
            self._client.gateway.recorder.record_use(self.relay.workspace_id)
        return self._pass_body(self._for_client(head, close=not self._keep), data)

    def _for_client(self, head: ResponseHead, *, close: bool) -> bytes:
        relay = self.relay
        return head.for_client(
            from_workspace=bool(relay.workspace_id),
            own_origin=relay.own_origin,
            close=close,
            policy=relay.policy,
        )

    def _pass_body(self, head: bytes, data: memoryview) -> int:
        """Relay as much of the body as one turn allows, and return the number of bytes left."""
        body = self._body
        assert body is not None
        try:
            taken = body.feed(data)
        except FramingError as error:
            if head:
                self._body = None  # nothing was sent yet, so the client can still get an error
            self._fail(str(error))
            return 0
        left = len(data) - taken
        self._client.send(head, data[:taken] if left else data)
        if body.done:
            self._finish(clean=not left)
            return 0
        return left

    def _finish(self, *, clean: bool) -> None:
        connection, self._upstream = self._upstream, None
        self._over = True
        assert connection is not None and self._response is not None
        clean = clean and not connection.has_rest
        reusable = clean and self._response.keep_alive and self._head.minor == 1 and self._client.request_done
        if reusable:
            self._client.gateway.pool.put(connection, self._client.gateway.now)
        else:
            connection.abort()
        self._client.exchange_done(keep=self._keep)

    def _switch(self, head: ResponseHead, data: memoryview) -> int:
        """Begin a tunnel: the upstream agreed to speak WebSocket (RFC 9110, 7.8)."""
        if not self._head.wants_websocket or head.upgrade != b"websocket":
            raise BadResponseError("the upstream switched to a protocol that was not requested")
        connection, self._upstream = self._upstream, None
        assert connection is not None
        self._over = True
        self._client.gateway.metrics.count_relay(head.status, perf_counter() - self._began)
        self._client.transport.write(self._for_client(head, close=False))
        inspectors = self._client.gateway.recorder.make_inspectors(
            self.relay.activity, self.relay.workspace_id, freshly_loaded=self.relay.freshly_loaded
        )
        tunnel = self._client.begin_tunnel(connection, inspectors)
        return tunnel.upstream_data(data) if data else 0

    def _fail(self, why: str, *, too_many_fields: bool = False) -> None:
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
        if self._over:
            return
        self._over = True
        write_log = logger.debug if self.relay.port else logger.warning  # an app may not have started yet
        write_log("relay failed", upstream=self.relay.upstream, why=why, answered=self.answered)
        if self._body is not None:
            self._client.abort()
        else:
            self._client.upstream_failed(self._head, self.relay, too_many_fields=too_many_fields)
