"""A transport without a network, and helpers to feed data to bodies and connections."""

from collections.abc import Iterable

from codehub.gateway.http1.body_framing import Body
from codehub.gateway.http1.upstream import UpstreamConnection


class FakeTransport:
    """Transport that records what is written."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False
        self.is_read = True

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("192.0.2.7", 1)

    def set_write_buffer_limits(self, _high: int) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    abort = write_eof = close

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0


def feed_all(body: Body, data: bytes) -> int:
    """Feed a body until it is done or has no more data, and return how many bytes it took."""
    position = 0
    while not body.done and (taken := body.feed(data[position:])):
        position += taken
    return position


def deliver(connection: UpstreamConnection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
