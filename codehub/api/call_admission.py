"""Admission of calls: who calls, and a slot for the call, before its body is read."""

from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codehub.api.services import Services
from codehub.clock import utc_now
from codehub.database.sessions import Session, find_session, hash_session_id

SMALL_ANSWER: Final = 16 << 10
"""Bytes that any socket takes at once."""
_SESSION: Final = "codehub.session"


class CallAdmissionMiddleware:
    """Middleware that finds the session of a call, and bounds the calls of its user under way.

    A call keeps its slot until its answer has left this process: otherwise a client that reads nothing
    could have any number of answers in memory. An event stream has no slot; `OpenStreams` bounds those.
    """

    def __init__(self, app: ASGIApp, *, prefix: str, login_path: str, events_path: str) -> None:
        self._app = app
        self._prefix = f"{prefix}/"
        self._login_path = login_path
        self._events_path = events_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = await self._find_session(scope) if scope["type"] == "http" else None
        if session is None or scope["path"] == self._events_path:
            await self._app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        async with services.calls_per_user.slot(session.user_id):
            await self._app(scope, receive, _until_sent(send))

    async def _find_session(self, scope: Scope) -> Session | None:
        if not scope["path"].startswith(self._prefix) or scope["path"] == self._login_path:
            return None
        services: Services = scope["app"].state.services
        connection = HTTPConnection(scope)
        session_id = connection.cookies.get(services.config.cookie_name)
        if not session_id:
            return None
        id_hash = hash_session_id(session_id)

        async def look_up() -> Session | None:
            async with services.engine.connect() as conn:
                return await find_session(conn, id_hash, utc_now())

        async with services.calls_per_session.slot(id_hash):
            session = await services.session_lookup_limit.find(id_hash, client_address(connection), look_up)
        scope[_SESSION] = session
        return session


def admitted_session(scope: Scope) -> Session | None:
    """Return the session that the middleware found for this call."""
    session: Session | None = scope.get(_SESSION)
    return session


def client_address(connection: HTTPConnection) -> str:
    """Return the address that the gateway appended: only the gateway can reach this socket."""
    forwarded = connection.headers.get("x-forwarded-for", "")
    return forwarded.rsplit(",", 1)[-1].strip()


def _until_sent(send: Send) -> Send:
    """Return a `send` that ends once a large answer has left the process's memory.

    uvicorn waits for the previous message to be written, and not for the last one. So the last one is
    empty.
    """

    async def send_until_sent(message: Message) -> None:
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if is_last and len(message.get("body", b"")) > SMALL_ANSWER:
            await send({**message, "more_body": True})
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return send_until_sent
