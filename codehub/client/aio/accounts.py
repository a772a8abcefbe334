"""TokenList and users."""

from collections.abc import Sequence
from typing import Any

from codehub.client.aio.calls import AsyncCalls
from codehub.client.models import NewToken, Token, TokenList, User, UserPage
from codehub.client.requests import Request, get, segment

PAGE = 200


class AsyncTokens:
    """TokenList of the caller, or of a user. No token reaches them: sign in with a password."""

    def __init__(self, calls: AsyncCalls, path: str = "/tokens") -> None:
        self._calls = calls
        self._path = path

    async def list(self) -> Sequence[Token]:
        return [*(await self._calls.fetch(TokenList, get(self._path))).items]

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        workspaces: Sequence[str] | None = None,
        expires_in_days: int | None = None,
    ) -> NewToken:
        """Make a token. Its secret is in `token`, and no later call returns it."""
        body: dict[str, Any] = {
            "name": name, "scopes": list(scopes), "expires_in_days": expires_in_days,
            "workspaces": None if workspaces is None else list(workspaces),
        }  # fmt: skip
        return await self._calls.fetch(NewToken, Request("POST", self._path, json=body))

    async def revoke(self, token_id: str) -> None:
        path = f"{self._path}/{segment(token_id, 'token')}"
        await self._calls.send(Request("DELETE", path, is_repeatable=True))


class AsyncUsers:
    """Accounts of the server. They need an admin."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls

    async def list(self) -> Sequence[User]:
        found: dict[str, User] = {}
        offset = 0
        while True:
            page = await self._calls.fetch(UserPage, get("/users", limit=PAGE, offset=offset))
            found |= {user.id: user for user in page.items}
            offset += len(page.items)
            if not page.items or offset >= page.total:
                return [*found.values()]

    async def create(self, username: str, password: str, role: str = "user") -> User:
        """Create an account of a person. No token may: sign in with a password."""
        body = {"username": username, "password": password, "role": role}
        return await self._calls.fetch(User, Request("POST", "/users", json=body))

    async def create_service(self, username: str) -> User:
        """Create an account of programs, which has tokens and no password."""
        body = {"username": username, "service": True}
        return await self._calls.fetch(User, Request("POST", "/users", json=body))

    async def set_role(self, user_id: str, role: str) -> User:
        path = f"/users/{segment(user_id, 'user')}"
        return await self._calls.fetch(User, Request("PATCH", path, json={"role": role}, is_repeatable=True))

    async def delete(self, user_id: str) -> None:
        """Delete an account, and put its workspaces into the trash."""
        await self._calls.send(Request("DELETE", f"/users/{segment(user_id, 'user')}", is_repeatable=True))

    def tokens(self, user_id: str) -> AsyncTokens:
        """Return the tokens of a user."""
        return AsyncTokens(self._calls, f"/users/{segment(user_id, 'user')}/tokens")
