"""The client of a server."""

from contextlib import suppress

from codehub.client.aio.accounts import AsyncTokens, AsyncUsers
from codehub.client.aio.calls import AsyncCalls
from codehub.client.aio.workspaces import AsyncWorkspaces
from codehub.client.credentials import find_server
from codehub.client.errors import CodehubError, UnexpectedAnswer
from codehub.client.models import Image, ImageList, Session
from codehub.client.requests import Request, Server, get, normalized_url
from codehub.client.retries import RECONNECT_SECONDS, RETRY_SECONDS


class AsyncClient:
    """Client of a CodeHub server.

    Without arguments, it uses CODEHUB_URL and CODEHUB_TOKEN, or else the server of `codehub login`.
    `server` names one of several. Use it with `with`, or call `close`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        server: str | None = None,
        retry_seconds: float = RETRY_SECONDS,
        reconnect_seconds: float = RECONNECT_SECONDS,
    ) -> None:
        self._begin(AsyncCalls(find_server(url, token, server), retry_seconds, reconnect_seconds))

    def _begin(self, calls: AsyncCalls) -> None:
        self._calls = calls
        self.workspaces = AsyncWorkspaces(calls)
        self.tokens = AsyncTokens(calls)
        self.users = AsyncUsers(calls)

    @classmethod
    async def sign_in(cls, url: str, username: str, password: str) -> "AsyncClient":
        """Sign in with a password, as a person. `close` signs out.

        Only such a client can make tokens. Scripts use tokens.
        """
        calls = AsyncCalls(Server(normalized_url(url)))
        try:
            body = {"username": username, "password": password}
            answer = await calls.send(Request("POST", "/login", json=body))
            answer.json()
        finally:
            await calls.close()
        cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        if "=" not in cookie:
            raise UnexpectedAnswer(f"{calls.server.url} opened no session.", answer.status)
        client = cls.__new__(cls)
        client._begin(AsyncCalls(Server(calls.server.url, cookie=cookie)))
        return client

    @property
    def url(self) -> str:
        """The server's address."""
        return self._calls.server.url

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections. Commands in workspaces go on."""
        try:
            if self._calls.server.cookie:
                with suppress(CodehubError):  # the session ends anyway, a day later
                    await self._calls.send(Request("POST", "/logout"))
        finally:
            await self._calls.close()

    async def session(self) -> Session:
        """Return whom the server takes this client for, and what its token permits."""
        return await self._calls.fetch(Session, get("/session"))

    async def images(self) -> list[Image]:
        """Return the images that a workspace can be created from."""
        return [*(await self._calls.fetch(ImageList, get("/images"))).items]
