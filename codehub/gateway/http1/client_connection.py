"""A client's connection: reads requests, has them routed, and relays or answers them."""

import asyncio
import math
import socket
import struct
from typing import cast

from codehub.gateway.activity import TunnelInspectors
from codehub.gateway.address_limits import peer_address
from codehub.gateway.http1 import reply
from codehub.gateway.http1.body_framing import Body, FramingError, request_body
from codehub.gateway.http1.buffered_input import BufferedInput
from codehub.gateway.http1.exchange import Exchange
from codehub.gateway.http1.interfaces import Worker
from codehub.gateway.http1.relay import Relay
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_fast_path import RequestFastPath, make_fast_path
from codehub.gateway.http1.request_head import (
    LONG_HEAD,
    MAX_HEAD,
    BadRequestError,
    RequestHead,
    looks_broken,
    parse_head,
)
from codehub.gateway.http1.route_result import PendingRoute, RouteResult
from codehub.gateway.http1.tunnel import Tunnel
from codehub.gateway.http1.turn_queue import COSTLY_A_TICK, WINDOW
from codehub.gateway.http1.upstream import COPIED, UpstreamConnection
from codehub.gateway.open_connections import Grant
from codehub.gateway.tls_records import LimitedRecords

_NO_LINGER = struct.pack("ii", 1, 0)

# The states of a connection. Integers, because the members of an enum are slow to reach.
HEAD = 0  # between requests, or inside a request head
BODY = 1  # the request's body is arriving
BUSY = 2  # the whole request has arrived, its response is not finished
TUNNEL = 3
CLOSING = 4  # the rest of the output is being sent, and input is discarded


class ClientConnection(BufferedInput):
    """State machine of one client's connection (RFC 9112)."""

    __slots__ = (
        "_body",
        "_exchange",
        "_fast_path",
        "_grant",
        "_request",
        "_state",
        "_tunnel",
        "deadline",
        "peer",
        "write_paused",
    )

    def __init__(self, gateway: Worker) -> None:
        super().__init__(gateway)
        self.peer = ""
        self.deadline = math.inf
        self.write_paused = False
        self._state = HEAD
        self._request: RequestHead | None = None
        self._body: Body | None = None
        self._exchange: Exchange | Tunnel | None = None
        self._tunnel: Tunnel | None = None
        self._grant: Grant | None = None
        self._fast_path: RequestFastPath | None = None

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # Pause writing as soon as anything is left unsent. (With 0, TLS would never resume.)
        self.transport.set_write_buffer_limits(1)
        records = transport.get_extra_info("ssl_object")
        if isinstance(records, LimitedRecords):
            records.on_limit = self._wait_for_records
        self.peer = peer_address(transport.get_extra_info("peername"))
        self.deadline = self.gateway.now + self.gateway.timeouts.head
        self._share = self.gateway.addresses.enter(self.peer)
        if (refusal := self.gateway.admit(self, self._share)) is None:
            return
        self.gateway.metrics.count_refusal()
        if self._share.is_flooded:
            self.abort()
        else:
            self._write(refusal, None)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == CLOSING:
            return
        if state == BUSY:
            self._append(data)
            self._hold_for_buffer(self._buffered > MAX_HEAD)
        elif state == HEAD:
            self._append(data)
            self._take_next_request()
        elif self._is_waiting or self._share.costly >= COSTLY_A_TICK:
            self._append(data)
            self._wait_for_turn()
        else:
            self._relay_received(data)

    def eof_received(self) -> bool:
        return False  # the client reads no response any more: close the upstream's side as well

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = CLOSING
        records = self.transport.get_extra_info("ssl_object")
        if isinstance(records, LimitedRecords):
            records.on_limit = None  # break the cycle
        self._share.connections -= 1
        self.gateway.forget(self)
        self._set_grant(None)
        if self._exchange is not None:
            self._exchange.client_lost()
            self._exchange = self._tunnel = None

    def pause_writing(self) -> None:
        self.write_paused = True
        self.deadline = self.gateway.now + self.gateway.timeouts.write
        if self._exchange is not None:
            self._exchange.client_writable(False)

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._exchange is not None:
            self._exchange.client_writable(True)
            is_endless = self._answered or self._state == TUNNEL
            self.deadline = math.inf if is_endless else self.gateway.now + self._response_timeout
        elif self._state == HEAD:
            self._next_request()
            self._take_next_request()

    # Called by the worker

    def expire(self) -> None:
        """End a connection whose deadline passed."""
        if self._state == HEAD and self._buffer:
            self._refuse(BadRequestError("the request took too long", 408))
        elif self._state == BODY and not self.write_paused and not self._answered:
            self._fail(reply.error(408, "TIMEOUT", "The request took too long.", close=True))
        elif self._state == BUSY and not self.write_paused and not self._answered:
            self._fail(reply.error(504, "UPSTREAM_UNAVAILABLE", "There was no answer in time.", close=True))
        elif self._state == HEAD:
            self._close()
        else:
            self.abort()

    def revoke(self) -> None:
        """End a connection whose grant was withdrawn."""
        if self._state == BUSY and not self._answered:
            self._fail(self.gateway.router.unavailable())
        elif self._state != CLOSING:
            self._drop_exchange()
            self._close()

    def drain(self) -> None:
        """Close if idle or endless. Other responses will say `Connection: close`."""
        is_endless = isinstance(self._exchange, Exchange) and self._exchange.relay.is_stream
        if self._state == HEAD and not self._buffer and self._request is None:
            # The first request may be under way, and browsers do not repeat it on another connection.
            self.deadline = min(self.deadline, self.gateway.now + self.gateway.timeouts.linger)
        elif (self._state == HEAD and not self._buffer) or self._state == TUNNEL or is_endless:
            self._drop_exchange()
            self._close()

    def abort(self) -> None:
        self._drop_exchange()
        self._state = CLOSING
        self.transport.abort()

    # Called by the exchange and the tunnel

    def send(self, head: bytes, data: memoryview) -> None:
        """Send data that is valid during this call only.

        If the transport cannot send all of it at once, it keeps the pool's read buffer, and the pool
        gets a new one.
        """
        if len(data) <= COPIED:
            self.transport.write(head + data)
            return
        self.transport.writelines((head, data))
        if self.transport.get_write_buffer_size():
            self.gateway.pool.renew_read_buffer()

    def reset(self) -> None:
        """Send a reset, so that the client sees an incomplete response even if it has no length."""
        if (connection := self.transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.abort()

    @property
    def request_done(self) -> bool:
        return self._body is None or self._body.done

    def may_stay(self, head: RequestHead) -> bool:
        return head.keep_alive and not head.wants_websocket and not self.gateway.draining

    def hold_for_upstream(self, hold: bool) -> None:
        if hold != self._held_for_upstream:
            self._held_for_upstream = hold
            self._update_reading()
            if self._is_slow and self._state == BODY and not self._answered:
                self.deadline = math.inf if hold else self.gateway.now + self.gateway.timeouts.body
            if not hold and self._buffer and self._state in (BODY, TUNNEL):
                self._wait_for_turn()

    def upstream_ready(self) -> None:
        if self._state == BODY:
            self._receive_buffered()

    def response_begun(self) -> None:
        if not self.write_paused:
            self.deadline = math.inf

    def exchange_done(self, *, keep: bool) -> None:
        self._exchange = None
        self.hold_for_upstream(False)
        if not keep or not self.request_done:
            self._close()
            return
        self._next_request()
        self._take_next_request()

    def upstream_failed(self, head: RequestHead, relay: Relay, *, too_many_fields: bool) -> None:
        self._exchange = None
        self.gateway.metrics.count_upstream_failure()
        router = self.gateway.router
        answer = router.too_many_fields(head, relay) if too_many_fields else router.unreachable(head, relay)
        self._write(answer, head)
        self._take_next_request()

    def begin_tunnel(self, upstream: UpstreamConnection, inspectors: TunnelInspectors) -> Tunnel:
        tunnel = Tunnel(self, upstream, inspectors)
        upstream.user = tunnel
        self._state = TUNNEL
        self._exchange = self._tunnel = tunnel
        self._fast_path = None
        self.deadline = math.inf
        self._receive_buffered()
        return tunnel

    def tunnel_ended(self) -> None:
        self._exchange = self._tunnel = None
        self._close()

    # Requests

    def _take_next_request(self) -> None:
        """Take the next request from the buffer if the client reads. Those behind it wait for a turn."""
        if self._state != HEAD or self._is_waiting:
            return
        if not self._buffer or self.write_paused:
            self._hold_for_buffer(self.write_paused)
        elif self._share.is_spent:
            self._wait_for_turn()
        else:
            self._take_request()

    def _take_request(self) -> None:
        start = self._buffer_start
        end = self._buffer.find(b"\r\n\r\n", start) + 4
        if end < 4 or end - start > MAX_HEAD:
            self._hold_for_buffer(False)
            self._check_unfinished_head(too_large=end >= 4 or self._buffered > MAX_HEAD)
            return
        data = self._buffer[start:end]
        if len(data) > LONG_HEAD:
            self._share.costly += 1
        self._drop_until(end)
        if not self._repeat_request(data):
            self._read_request(data)
        if self._state == HEAD and self._buffer:
            self._wait_for_turn()
        elif self._state in (HEAD, BUSY):
            self._hold_for_buffer(self._buffered > MAX_HEAD)

    def _repeat_request(self, data: bytes) -> bool:
        """Relay a request that repeats the one before it; False if it does not."""
        fast_path = self._fast_path
        if fast_path is None:
            return False
        relay = fast_path.repeat(data, self.gateway.route_cache, self.gateway.recorder)
        if relay is None:
            return False
        self._request = fast_path.head
        self._state = BUSY
        self.deadline = self.gateway.now + self.gateway.timeouts.response
        self._start_exchange(fast_path.head, relay)
        return True

    def _read_request(self, data: bytes) -> None:
        self._fast_path = None
        try:
            head = parse_head(data)
        except BadRequestError as error:
            self._refuse(error)
            return
        self._request = head
        self._body = request_body(head.length, head.chunked) if head.has_body else None
        self._state = BUSY
        self.deadline = self.gateway.now + self.gateway.timeouts.response
        result = self.gateway.router.route(head, self.peer)
        if isinstance(result, PendingRoute):
            self.gateway.start(self._look_up(head, result))
            return
        self._carry_out(head, result)
        if isinstance(result, Relay):
            self._fast_path = make_fast_path(data, head, result)

    async def _look_up(self, head: RequestHead, lookup: PendingRoute) -> None:
        result = await self.gateway.router.finish_lookup(lookup, head)
        if self._state != BUSY or self._request is not head:
            return  # the client disconnected, or the deadline passed
        self._carry_out(head, result)
        if isinstance(result, Reply):
            self._take_next_request()

    def _carry_out(self, head: RequestHead, result: RouteResult) -> None:
        if isinstance(result, Relay):
            self._relay(head, result)
        else:
            assert isinstance(result, Reply)
            self._write_reply(result, head)

    def _relay(self, head: RequestHead, relay: Relay) -> None:
        if relay.session_hash:
            role = relay.session_user.role if relay.session_user else None
            self._set_grant(Grant(relay.session_hash, relay.workspace_id, role))
        else:
            self._set_grant(None)
        self._start_exchange(head, relay)

    def _start_exchange(self, head: RequestHead, relay: Relay) -> None:
        exchange = self._exchange = Exchange(self, head, relay)
        if relay.is_slow:
            self.deadline = self.gateway.now + self._response_timeout
        if self._body is not None:
            self._state = BODY
        exchange.start()

    def _check_unfinished_head(self, *, too_large: bool) -> None:
        self._share.costly += 1  # each further piece causes another search
        data = self._buffer[self._buffer_start :]
        if too_large:
            answer = self.gateway.router.refuse_too_large(data)
            self._refuse(BadRequestError("the request head is too large"), answer)
        elif looks_broken(data):
            self._refuse(BadRequestError("a bare LF or NUL in the head"))
        elif self._request is not None:
            self._request = None
            self.deadline = self.gateway.now + self.gateway.timeouts.head

    # Bytes of a body or of a tunnel

    @property
    def _upstream_takes_more(self) -> bool:
        exchange = self._exchange
        if isinstance(exchange, Exchange) and not exchange.connected:
            return False
        return exchange is not None and not self._held_for_upstream

    def _relay_received(self, data: bytes) -> None:
        if self._buffer or (self._tunnel is None and not self._upstream_takes_more):
            self._append(data)
            self._hold_for_buffer(True)
            return
        taken = self._relay_data(data)
        if taken < len(data) and self._state != CLOSING:
            self._buffer, self._buffer_start = data, taken
            if self._state == BUSY:
                self._hold_for_buffer(self._buffered > MAX_HEAD)
            else:
                self._share.costly += 1
                self._wait_for_turn()

    def _receive_buffered(self) -> None:
        """Process what arrived before the upstream was connected as if it arrived now."""
        self._hold_for_buffer(False)
        if data := self._take_all():
            self._relay_received(data)

    def _relay_buffered(self) -> None:
        if not self._buffer or not self._upstream_takes_more:
            return
        start = self._buffer_start
        taken = self._relay_data(self._buffer[start : start + WINDOW])
        if self._state == CLOSING:
            return
        self._drop_until(start + taken)
        if self._state != BUSY and self._buffer:
            self._wait_for_turn()
        else:
            self._hold_for_buffer(self._buffered > MAX_HEAD)

    def _relay_data(self, data: bytes) -> int:
        """Relay as much as one turn allows, and return the number of bytes relayed."""
        return self._relay_body(data) if self._tunnel is None else self._tunnel.client_data(data)

    def _relay_body(self, data: bytes) -> int:
        exchange, body = self._exchange, self._body
        assert isinstance(exchange, Exchange) and body is not None
        try:
            taken = body.feed(data)
        except FramingError as error:
            message = f"The request body is not valid: {error}."
            self._fail(reply.error(400, "BAD_REQUEST", message, close=True))
            return 0
        if body.done:
            self._state = BUSY
        if exchange.relay.is_slow and body.done:
            self.deadline = math.inf  # a command may read its input at any later time
        elif not exchange.answered:
            timeouts = self.gateway.timeouts
            self.deadline = self.gateway.now + (timeouts.response if body.done else timeouts.body)
        exchange.send_body(data if taken == len(data) else data[:taken])
        return taken

    def _take_turn(self) -> None:
        self._is_waiting = False
        try:
            if self._state == HEAD and self._buffer and not self.write_paused:
                self._take_request()
            elif self._state in (BODY, TUNNEL):
                self._relay_buffered()
        except BaseException:
            self.abort()
            raise

    # Endings

    @property
    def _is_slow(self) -> bool:
        return isinstance(self._exchange, Exchange) and self._exchange.relay.is_slow

    @property
    def _response_timeout(self) -> float:
        timeouts = self.gateway.timeouts
        return timeouts.access if self._is_slow else timeouts.response

    @property
    def _answered(self) -> bool:
        return isinstance(self._exchange, Exchange) and self._exchange.answered

    def _refuse(self, error: BadRequestError, answer: Reply | None = None) -> None:
        message = f"The request is not valid: {error}."
        self.gateway.metrics.count_refusal()
        self._write(answer or reply.error(error.status, "BAD_REQUEST", message, close=True), None)

    def _fail(self, answer: Reply) -> None:
        """Send this reply instead of the upstream's, unless the client has seen part of that."""
        if self._answered:
            self.abort()
            return
        self._drop_exchange()
        self._write_reply(answer, self._request)

    def _write_reply(self, answer: Reply, head: RequestHead | None) -> None:
        self.gateway.metrics.count_reply(answer)
        self._write(answer, head)

    def _write(self, answer: Reply, head: RequestHead | None) -> None:
        self._share.costly += 1
        keep = head is not None and self.may_stay(head) and self.request_done and not answer.close
        head_only = head is not None and head.method == b"HEAD"
        self.transport.write(answer.wire(head_only=head_only, close=not keep))
        if keep:
            self._next_request()
        else:
            self._close(refused=head is None)

    def _next_request(self) -> None:
        self._state = HEAD
        self._body = None
        self.deadline = self.gateway.now + self.gateway.timeouts.idle

    def _drop_exchange(self) -> None:
        if self._exchange is not None:
            exchange, self._exchange, self._tunnel = self._exchange, None, None
            exchange.client_lost()

    def _close(self, *, refused: bool = False) -> None:
        """Close once the output is sent.

        Until then, discard what the client still sends: the kernel answers unread input with a reset,
        which would destroy the response (RFC 9112, 9.6).
        """
        is_unread = not self.request_done or refused
        timeouts = self.gateway.timeouts
        self._state = CLOSING
        self._buffer, self._buffer_start = b"", 0
        self._held_for_upstream = self._held_for_buffer = False
        if self.transport.is_closing():
            return
        if is_unread and self.transport.can_write_eof():
            self.deadline = self.gateway.now + timeouts.linger
            self.transport.resume_reading()
            self.transport.write_eof()
        else:
            self.deadline = self.gateway.now + timeouts.write
            self.transport.close()  # over TLS, this also discards input until the client confirms the end

    def _set_grant(self, grant: Grant | None) -> None:
        if grant == self._grant:
            return
        if self._grant is not None:
            self.gateway.open_connections.discard(self, self._grant)
        if grant is not None:
            self.gateway.open_connections.add(self, grant)
        self._grant = grant
