"""h11 as a reference: a strict parser that shares no code with llhttp."""

from dataclasses import dataclass

import h11

LARGE = 1 << 20
OURS = ("session", "__host-session", "codehub-workspace", "__host-codehub-workspace")


@dataclass(frozen=True)
class Reading:
    """A message as h11 reads it."""

    start: tuple[object, ...]
    """Method, target and version; or status and version."""
    fields: list[tuple[bytes, bytes]]
    end: int | None
    """Where the message ends. None if it is incomplete, or if only the connection ends it."""
    keep_alive: bool | None
    """None if the connection may switch protocols."""


def names_platform_cookie(cookies: bytes) -> bool:
    """Return whether a server that also strips Latin-1 whitespace would see a platform cookie."""
    names = (part.partition("=")[0].strip().lower() for part in cookies.decode("latin-1").split(";"))
    return any(name in OURS for name in names)


def read_request(data: bytes) -> Reading | None:
    """Return the first request in `data`, or None if h11 rejects it."""
    return _read(h11.Connection(h11.SERVER, max_incomplete_event_size=LARGE), data)


def read_response(data: bytes, method: bytes = b"GET") -> Reading | None:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGE)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    return _read(connection, data)


def _read(connection: h11.Connection, data: bytes) -> Reading | None:
    try:
        connection.receive_data(data)
        event = connection.next_event()
        if isinstance(event, h11.Request):
            start: tuple[object, ...] = (event.method, event.target, event.http_version)
        elif isinstance(event, h11.Response | h11.InformationalResponse):
            start = (event.status_code, event.http_version)
        else:
            return None
        over = isinstance(event, h11.InformationalResponse) or _read_body(connection)
    except h11.RemoteProtocolError:
        return None
    end = len(data) - len(connection.trailing_data[0]) if over else None
    keeps = {h11.DONE: True, h11.MUST_CLOSE: False}.get(connection.their_state)
    return Reading(start, sorted(event.headers), end, keeps)


def _read_body(connection: h11.Connection) -> bool:
    """Return whether the message is complete."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.EndOfMessage):
            return True
        if event is h11.NEED_DATA:
            return False
        assert isinstance(event, h11.Data)
