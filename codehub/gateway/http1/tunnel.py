"""An upgraded connection (RFC 9110, 7.8): bytes both ways until one side ends, which ends the other."""

from typing import Final

from codehub.gateway.activity import TunnelInspectors
from codehub.gateway.http1.interfaces import ClientSide
from codehub.gateway.http1.upstream import COPIED, UpstreamConnection

CLOSE_SECONDS: Final = 5.0
"""How long the last bytes may take to reach a side that is being closed."""


class Tunnel:
    __slots__ = ("_client", "_from_client", "_from_upstream", "_inspectors", "_upstream")

    def __init__(
        self, client: ClientSide, upstream: UpstreamConnection, inspectors: TunnelInspectors
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._inspectors = inspectors
        self._from_client = inspectors.from_client
        self._from_upstream = inspectors.from_upstream
        client.gateway.metrics.count_websocket_opened()

    def client_data(self, data: bytes) -> int:
        """Relay as much as one turn allows, and return the number of bytes relayed."""
        taken = len(data) if self._from_client is None else self._from_client.feed(data)
        self._upstream.transport.write(data if taken == len(data) else data[:taken])
        return taken

    def upstream_data(self, data: memoryview) -> int:
        """Relay as much as one turn allows, and return the number of bytes left."""
        if len(data) > COPIED:
            taken = len(data) if self._from_upstream is None else self._from_upstream.feed(bytes(data))
            self._client.send(b"", data[:taken])
        else:
            copy = bytes(data)
            taken = len(copy) if self._from_upstream is None else self._from_upstream.feed(copy)
            self._client.transport.write(copy if taken == len(copy) else copy[:taken])
        return len(data) - taken

    def client_lost(self) -> None:
        self._end()
        self._upstream.close(CLOSE_SECONDS)

    def upstream_lost(self, error: Exception | None) -> None:
        self._end()
        self._client.tunnel_ended()

    def _end(self) -> None:
        self._inspectors.close()
        self._client.gateway.metrics.count_websocket_closed()

    def client_writable(self, writable: bool) -> None:
        self._upstream.hold(not writable)

    def upstream_writable(self, writable: bool) -> None:
        self._client.hold_for_upstream(not writable)
