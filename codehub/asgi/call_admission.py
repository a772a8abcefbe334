"""Admission of calls: who calls, and a slot for the call, before its body is read."""

from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codehub.asgi.bearer import call_token
from codehub.asgi.credential_lookup import CredentialLookup
from codehub.concurrency_limits import ConcurrencyLimit
from codehub.database.credentials import Credential
from codehub.domain.problems import Unauthorized
from codehub.domain.token_format import is_token

SMALL_ANSWER: Final = 16 << 10
"""Bytes that any socket takes at once."""
_CREDENTIAL: Final = "codehub.credential"
_ENDED_SESSION: Final = "codehub.ended_session"
_INVALID_TOKEN: Final = (
    "The token is not valid: it is misspelt, expired or revoked. Make a new one on the page of your account."  # noqa: S105
)


class CallAdmissionMiddleware:
    """Middleware that finds the credential of a call, and bounds the calls of its user under way.

    A Bearer token decides alone: a call whose token is not valid ends here, and no cookie is read. A
    call keeps its slot until its answer has left this process: otherwise a client that reads nothing
    could have any number of answers in memory. WebSockets and `unbounded_paths` (event streams) have
    no slot; the part that serves them bounds them.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        prefix: str,
        cookie_name: str,
        lookup: Callable[[Scope], CredentialLookup],
        calls_per_user: ConcurrencyLimit,
        login_path: str = "",
        unbounded_paths: Collection[str] = (),
    ) -> None:
        """`lookup` returns what to look up credentials with; the cookie of a sign-in is not read."""
        self._app = app
        self._prefix = f"{prefix}/"
        self._cookie_name = cookie_name
        self._lookup = lookup
        self._calls_per_user = calls_per_user
        self._login_path = login_path
        self._unbounded_paths = frozenset(unbounded_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        credential = await self._find_credential(scope)
        scope[_CREDENTIAL] = credential
        async with AsyncExitStack() as stack:
            if credential is not None and self._is_bounded(scope):
                await stack.enter_async_context(self._calls_per_user.slot(credential.user_id))
                send = _until_sent(send)
            await self._app(scope, receive, send)

    def _is_bounded(self, scope: Scope) -> bool:
        return scope["type"] == "http" and scope["path"] not in self._unbounded_paths

    async def _find_credential(self, scope: Scope) -> Credential | None:
        if scope["type"] not in ("http", "websocket") or not scope["path"].startswith(self._prefix):
            return None
        connection = HTTPConnection(scope)
        token = call_token(connection.headers)
        if token is not None:
            return await self._find_token(scope, token, client_address(connection))
        session_id = connection.cookies.get(self._cookie_name)
        if not session_id or scope["path"] == self._login_path:
            return None
        found = await self._lookup(scope).session(session_id, client_address(connection))
        scope[_ENDED_SESSION] = found is None
        return found

    async def _find_token(self, scope: Scope, token: str, address: str) -> Credential:
        """Return the token's credential. Text that cannot be a token costs no query."""
        found = await self._lookup(scope).token(token, address) if is_token(token) else None
        if found is None:
            raise Unauthorized(_INVALID_TOKEN)
        return found


def admitted_credential(scope: Scope) -> Credential | None:
    """Return the credential that the middleware found for this call."""
    credential: Credential | None = scope.get(_CREDENTIAL)
    return credential


def has_ended_session(scope: Scope) -> bool:
    """Return whether this call came with the cookie of a session that has ended."""
    has_ended: bool = scope.get(_ENDED_SESSION, False)
    return has_ended


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
