"""Connections without a network."""

from codehub.gateway.upstream import UpstreamConnection


class Wire:
    """A transport that only keeps what is written."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

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

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading


def arrive(connection: UpstreamConnection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
