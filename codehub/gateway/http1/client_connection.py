"""A client's connection: request heads in, decisions, and the bytes of what may pass."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from codehub.gateway.address_limits import AddressShare, peer_address
from codehub.gateway.http1 import reply
from codehub.gateway.http1.body_framing import Body, FramingError, request_body
from codehub.gateway.http1.exchange import Exchange, Relay
from codehub.gateway.http1.repeated_request import RepeatedRequest
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import (
    MAX_HEAD,
    BadRequestError,
    RequestHead,
    looks_broken,
    parse_head,
)
from codehub.gateway.http1.tunnel import Tunnel
from codehub.gateway.http1.turn_queue import COSTLY_A_TICK, WINDOW
from codehub.gateway.http1.upstream import COPIED
from codehub.gateway.open_connections import Grant

if TYPE_CHECKING:
    from codehub.gateway.server import Gateway


_NO_LINGER = struct.pack("ii", 1, 0)

# Where a connection stands. Numbers, since the members of an enum are slow to reach.
HEAD = 0  # between requests, or inside a request head
BODY = 1  # the request's body is coming in
BUSY = 2  # the whole request is here; its answer is not finished
TUNNEL = 3
CLOSING = 4  # all that is left is to send what was written; what comes in is thrown away


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_buffer",
        "_buffer_start",
        "_exchange",
        "_held_for_buffer",
        "_held_for_upstream",
        "_is_waiting",
        "_leave",
        "_passage",
        "_request",
        "_share",
        "_state",
        "_tunnel",
        "deadline",
        "gateway",
        "peer",
        "transport",
        "write_paused",
    )

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.transport: asyncio.Transport
        self.peer = ""
        self.deadline = math.inf
        self.write_paused = False
        self._state = HEAD
        self._buffer = b""
        """What came in and was not taken up yet, from `_buffer_start` on; nothing when all of it was."""
        self._buffer_start = 0
        self._is_waiting = False
        """Whether this connection is in the queue for its turn."""
        self._share: AddressShare
        self._request: RequestHead | None = None
        self._body: Body | None = None
        self._exchange: Exchange | Tunnel | None = None
        self._leave: Grant | None = None
        self._passage: RepeatedRequest | None = None
        self._tunnel: Tunnel | None = None
        self._held_for_upstream = False
        self._held_for_buffer = False

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # What is written is sent at once, or its upstream waits. (With 0, TLS would never be ready.)
        self.transport.set_write_buffer_limits(1)
        self.peer = peer_address(transport.get_extra_info("peername"))
        self.deadline = self.gateway.now + self.gateway.timeouts.head
        self._share = self.gateway.addresses.enter(self.peer)
        if (refusal := self.gateway.admit(self, self._share)) is None:
            return
        self.gateway.metrics.refused()
        if self._share.is_flooded:
            self.abort()
        else:
            self._write(refusal, None)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == CLOSING:
            return
        if state == BUSY:
            self._add(data)
            self._hold_for_buffer(self._buffered > MAX_HEAD)
        elif state == HEAD:
            self._add(data)
            self._advance()
        elif self._is_waiting or self._share.costly >= COSTLY_A_TICK:
            self._add(data)
            self._wait_for_turn()
        else:
            self._pass_on_received(data)

    def eof_received(self) -> bool:
        return False  # nobody is left to answer: closing ends the upstream's side as well

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = CLOSING
        self._share.connections -= 1
        self.gateway.forget(self)
        self._set_leave(None)
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
            endless = self._answered or self._state == TUNNEL
            self.deadline = math.inf if endless else self.gateway.now + self.gateway.timeouts.response
        elif self._state == HEAD:
            self._next_request()
            self._advance()

    # The gateway's side

    def expire(self) -> None:
        """The deadline passed."""
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
        """The leave by which this connection is open was withdrawn."""
        if self._state == BUSY and not self._answered:
            self._fail(self.gateway.router.unavailable())
        elif self._state != CLOSING:
            self._drop_exchange()
            self._close()

    def drain(self) -> None:
        """The gateway stops: end what is idle or has no end; the rest says `Connection: close`."""
        endless = isinstance(self._exchange, Exchange) and self._exchange.relay.is_stream
        if self._state == HEAD and not self._buffer and self._request is None:
            # Its first request may be on the way, and nobody repeats that for the person who waits.
            self.deadline = min(self.deadline, self.gateway.now + self.gateway.timeouts.linger)
        elif (self._state == HEAD and not self._buffer) or self._state == TUNNEL or endless:
            self._drop_exchange()
            self._close()

    def abort(self) -> None:
        self._drop_exchange()
        self._state = CLOSING
        self.transport.abort()

    # The exchange's side

    def send(self, head: bytes, data: memoryview) -> None:
        """Pass on what came in. What cannot be sent at once stays where it lies, and others go elsewhere."""
        if len(data) <= COPIED:
            self.transport.write(head + data)
            return
        self.transport.writelines((head, data))
        if self.transport.get_write_buffer_size():
            self.gateway.pool.renew_arrivals()

    def reset(self) -> None:
        """End in a way that nobody takes for the end of a response, not even of one without a length."""
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
        self._advance()

    def upstream_failed(self, head: RequestHead, relay: Relay) -> None:
        self._exchange = None
        self.gateway.metrics.upstream_failed()
        self._write(self.gateway.router.unreachable(head, relay), head)
        self._advance()

    def tunnel_begins(self, tunnel: Tunnel) -> None:
        self._state = TUNNEL
        self._exchange = self._tunnel = tunnel
        self._passage = None
        self.deadline = math.inf
        self._receive_buffered()

    def tunnel_ended(self) -> None:
        self._exchange = self._tunnel = None
        self._close()

    # Requests

    def _advance(self) -> None:
        """Take up the next request in the buffer, if its client reads. Those behind it wait for a turn."""
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
            self._unfinished_head(too_large=end >= 4 or self._buffered > MAX_HEAD)
            return
        data = self._buffer[start:end]
        self._drop_buffer_until(end)
        if not self._follow(data):
            self._read(data)
        if self._state == HEAD and self._buffer:
            self._wait_for_turn()
        elif self._state in (HEAD, BUSY):
            self._hold_for_buffer(self._buffered > MAX_HEAD)

    def _follow(self, data: bytes) -> bool:
        """Let a request through that only repeats the one before it."""
        passage = self._passage
        if passage is None:
            return False
        relay = passage.again(data, self.gateway.directory, self.gateway.recorder)
        if relay is None:
            return False
        self._request = passage.head
        self._state = BUSY
        self.deadline = self.gateway.now + self.gateway.timeouts.response
        self._relay(passage.head, relay)
        return True

    def _read(self, data: bytes) -> None:
        self._passage = None
        try:
            head = parse_head(data)
        except BadRequestError as error:
            self._refuse(error)
            return
        self._take_up(head)
        exchange = self._exchange
        if isinstance(exchange, Exchange) and (passage := exchange.relay.passage) is not None:
            passage.fields = data[data.index(b"\r\n") :]
            self._passage = passage

    def _unfinished_head(self, *, too_large: bool) -> None:
        self._share.costly += 1  # it is searched again with each piece that follows
        begun = self._buffer[self._buffer_start :]
        if too_large:
            answer = self.gateway.router.refuse_too_large(begun)
            self._refuse(BadRequestError("the request head is too large"), answer)
        elif looks_broken(begun):
            self._refuse(BadRequestError("a bare LF or NUL in the head"))
        elif self._request is not None:
            self._request = None
            self.deadline = self.gateway.now + self.gateway.timeouts.head

    def _take_up(self, head: RequestHead) -> None:
        self._request = head
        self._body = request_body(head.length, head.chunked) if head.has_body else None
        self._state = BUSY
        self.deadline = self.gateway.now + self.gateway.timeouts.response
        decision = self.gateway.router.route(head, self.peer)
        if isinstance(decision, Relay):
            self._relay(head, decision)
        elif isinstance(decision, Reply):
            self._write_reply(decision, head)
        else:
            self.gateway.start(self._decide(head, decision))

    async def _decide(self, head: RequestHead, errand: Coroutine[Any, Any, Relay | Reply]) -> None:
        decision = await self.gateway.router.settle(errand, head)
        if self._state != BUSY or self._request is not head:
            return  # the client went, or the time was over
        if isinstance(decision, Relay):
            self._relay(head, decision)
        else:
            self._write_reply(decision, head)
            self._advance()

    def _relay(self, head: RequestHead, relay: Relay) -> None:
        if relay.passage is None or relay.passage is not self._passage:
            leave = Grant(relay.session_hash, relay.workspace_id, relay.role)
            self._set_leave(leave if relay.session_hash else None)
        exchange = self._exchange = Exchange(self, head, relay)
        if self._body is not None:
            self._state = BODY
        exchange.start()

    # The bytes of a body or of a tunnel

    @property
    def _upstream_takes_more(self) -> bool:
        exchange = self._exchange
        if isinstance(exchange, Exchange) and not exchange.connected:
            return False
        return exchange is not None and not self._held_for_upstream

    def _pass_on_received(self, data: bytes) -> None:
        if self._buffer or (self._tunnel is None and not self._upstream_takes_more):
            self._add(data)
            self._hold_for_buffer(True)
            return
        taken = self._pass_on(data)
        if taken < len(data) and self._state != CLOSING:
            self._buffer, self._buffer_start = data, taken
            if self._state != BUSY:
                self._share.costly += 1
                self._wait_for_turn()

    def _receive_buffered(self) -> None:
        """Take what came in before the upstream was connected as if it came in now."""
        self._hold_for_buffer(False)
        data = self._buffer[self._buffer_start :]
        self._buffer, self._buffer_start = b"", 0
        if data:
            self._pass_on_received(data)

    def _pass_on_buffered(self) -> None:
        if not self._buffer or not self._upstream_takes_more:
            return
        start = self._buffer_start
        taken = self._pass_on(self._buffer[start : start + WINDOW])
        if self._state == CLOSING:
            return
        self._drop_buffer_until(start + taken)
        if self._state != BUSY and self._buffer:
            self._wait_for_turn()
        else:
            self._hold_for_buffer(self._buffered > MAX_HEAD)

    def _pass_on(self, data: bytes) -> int:
        """Pass on as much as one turn allows, and return the number of bytes that were passed on."""
        return self._pass_on_body(data) if self._tunnel is None else self._tunnel.client_data(data)

    def _pass_on_body(self, data: bytes) -> int:
        exchange, body = self._exchange, self._body
        assert isinstance(exchange, Exchange) and body is not None
        try:
            taken = body.feed(data)
        except FramingError as error:
            self._fail(
                reply.error(400, "BAD_REQUEST", f"The request body is not valid: {error}.", close=True)
            )
            return 0
        if body.done:
            self._state = BUSY
        if not exchange.answered:
            timeouts = self.gateway.timeouts
            self.deadline = self.gateway.now + (timeouts.response if body.done else timeouts.body)
        exchange.send_body(data if taken == len(data) else data[:taken])
        return taken

    # Turns

    def _wait_for_turn(self) -> None:
        """Read nothing, and go on with what is buffered in a later turn of the loop."""
        self._hold_for_buffer(True)
        if not self._is_waiting:
            self._is_waiting = True
            self.gateway.turns.add(self._share, self._take_turn)

    def _take_turn(self) -> None:
        self._is_waiting = False
        try:
            if self._state == HEAD and self._buffer and not self.write_paused:
                self._take_request()
            elif self._state in (BODY, TUNNEL):
                self._pass_on_buffered()
        except BaseException:
            self.abort()
            raise

    @property
    def _buffered(self) -> int:
        return len(self._buffer) - self._buffer_start

    def _add(self, data: bytes) -> None:
        if self._buffer:
            self._buffer = self._buffer[self._buffer_start :] + data
        else:
            self._buffer = data
        self._buffer_start = 0

    def _drop_buffer_until(self, position: int) -> None:
        """Forget the beginning of the buffer, without a copy of the rest for each request in it."""
        if position == len(self._buffer):
            self._buffer, self._buffer_start = b"", 0
        else:
            self._buffer_start = position

    # Endings

    @property
    def _answered(self) -> bool:
        return isinstance(self._exchange, Exchange) and self._exchange.answered

    def _refuse(self, error: BadRequestError, answer: Reply | None = None) -> None:
        words = f"The request is not valid: {error}."
        self.gateway.metrics.refused()
        self._write(answer or reply.error(error.status, "BAD_REQUEST", words, close=True), None)

    def _fail(self, answer: Reply) -> None:
        """Give this answer instead of the upstream's, of which the client has seen nothing yet."""
        if self._answered:
            self.abort()
            return
        self._drop_exchange()
        self._write_reply(answer, self._request)

    def _write_reply(self, answer: Reply, head: RequestHead | None) -> None:
        self.gateway.metrics.answered(answer)
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
        """Send what was written, and take in what the client still sends: a reset would lose the answer."""
        unread = not self.request_done or refused
        timeouts = self.gateway.timeouts
        self._state = CLOSING
        self._buffer, self._buffer_start = b"", 0
        self._held_for_upstream = self._held_for_buffer = False
        if self.transport.is_closing():
            return
        if unread and self.transport.can_write_eof():
            self.deadline = self.gateway.now + timeouts.linger
            self.transport.resume_reading()
            self.transport.write_eof()
        else:
            self.deadline = self.gateway.now + timeouts.write
            self.transport.close()  # over TLS, what comes in until the client agrees is taken in as well

    # Flow control

    def _hold_for_buffer(self, hold: bool) -> None:
        if hold != self._held_for_buffer:
            self._held_for_buffer = hold
            self._update_reading()

    def _update_reading(self) -> None:
        if self.transport.is_closing():
            return
        if self._held_for_upstream or self._held_for_buffer:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _set_leave(self, leave: Grant | None) -> None:
        if leave == self._leave:
            return
        if self._leave is not None:
            self.gateway.live.discard(self, self._leave)
        if leave is not None:
            self.gateway.live.add(self, leave)
        self._leave = leave
